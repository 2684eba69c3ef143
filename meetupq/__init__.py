"""meetupq: real NATS work queues on a stage, broken with a button, seen live."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOME = {
    "Event": "history",
    "History": "history",
    "Lab": "lab",
    "LeaseLost": "errors",
    "LeasePanel": "panels",
    "Leases": "leases",
    "LettersPanel": "letters",
    "MeetupqError": "errors",
    "QueuePanel": "panels",
    "Timing": "timing",
    "Tour": "tour",
    "WorkQueue": "work_queue",
}


def __getattr__(name: str) -> object:
    """Import what is asked for, and no more: a worker process needs neither widgets nor pictures."""
    if name not in _HOME:
        raise AttributeError(f"module 'meetupq' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"meetupq.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
