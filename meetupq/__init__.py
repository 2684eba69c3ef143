"""meetupq: real NATS work queues on a stage, broken with a button, seen live."""

from meetupq.errors import LeaseLost, MeetupqError
from meetupq.history import Event, History
from meetupq.lab import Lab
from meetupq.leases import Leases
from meetupq.letters import LettersPanel
from meetupq.panels import LeasePanel, QueuePanel
from meetupq.timing import Timing
from meetupq.tour import Tour
from meetupq.work_queue import WorkQueue

__all__ = [
    "Event",
    "History",
    "Lab",
    "LeaseLost",
    "LeasePanel",
    "Leases",
    "LettersPanel",
    "MeetupqError",
    "QueuePanel",
    "Timing",
    "Tour",
    "WorkQueue",
]
