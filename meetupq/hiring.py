"""What a worker is hired for, and how it is made of a connection: the same for a task of ours and for a process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from nats.aio.client import Client

from meetupq import subjects
from meetupq.errors import JobRefused, UnknownWorker
from meetupq.history import History
from meetupq.ledger import LedgerClient
from meetupq.takeovers import TAKEOVERS, takeover
from meetupq.timing import Timing
from meetupq.work_items import WorkItems
from meetupq.work_queue import WorkQueue
from meetupq.workers import LeaseWorker, QueueWorker, do_job

Role = Literal["queue", "leases"]


@dataclass(frozen=True)
class Job:
    """What a worker was hired for; a relaunch hires for the same.

    Attributes:
        role: "queue" or "leases".
        priority: of the jobs that a worker of the queue takes.
        heartbeats: whether it says "in progress" while it works.
        fixed: whether its code has the bug mended that jobs trip over which were published to fail.
        prefetch: how many jobs it pulls at once, 1 to 100.
        takeover: how a worker of the leases learns that one has ended: "poll", "marker", "key_ttl" or "observe".
        slots: how many leases it holds at once, 1 to 100.
        ledger: whether a worker of the leases writes the effect of each step to the ledger of the stage.
        process: whether it is a process of its own, which can be frozen, or a task in ours.

    Raises:
        UnknownWorker: an unknown role, priority or takeover.
        JobRefused: a prefetch or slots that no worker can have; what should be True or False and isn't.
    """

    role: Role = "queue"
    priority: str = "high"
    heartbeats: bool = True
    fixed: bool = False
    prefetch: int = 1
    takeover: str = "marker"
    slots: int = 1
    ledger: bool = False
    process: bool = False

    def __post_init__(self) -> None:
        if self.role not in ("queue", "leases"):
            raise UnknownWorker(f"no worker has the role {self.role!r}: choose 'queue' or 'leases'")
        if not isinstance(self.priority, str) or self.priority not in subjects.PRIORITIES:
            known = " or ".join(map(repr, subjects.PRIORITIES))
            raise UnknownWorker(f"no worker takes jobs of the priority {self.priority!r}: choose {known}")
        if not isinstance(self.takeover, str) or self.takeover not in TAKEOVERS:
            known = ", ".join(map(repr, TAKEOVERS))
            raise UnknownWorker(f"no worker takes leases over by {self.takeover!r}: choose {known}")
        for switch in ("heartbeats", "fixed", "ledger", "process"):
            if not isinstance(getattr(self, switch), bool):
                raise JobRefused(f"{switch} is {getattr(self, switch)!r}, but it is True or False")
        if type(self.prefetch) is not int or not 1 <= self.prefetch <= 100:
            raise JobRefused(f"prefetch is {self.prefetch!r}, but a worker pulls 1 to 100 jobs at once")
        if type(self.slots) is not int or not 1 <= self.slots <= 100:
            raise JobRefused(f"slots is {self.slots!r}, but a worker holds 1 to 100 leases at once")

    def __str__(self) -> str:
        """As the event `started` tells it, and the timeline reads it."""
        alone = ", process" * self.process
        if self.role == "leases":
            return f"leases by {self.takeover}{f', {self.slots} slots' * (self.slots > 1)}{alone}"
        beats = "on" if self.heartbeats else "off"
        return f"queue {self.priority}, heartbeats {beats}, prefetch {self.prefetch}{alone}"


async def make_worker(
    name: str, job: Job, client: Client, timing: Timing, history: History
) -> QueueWorker | LeaseWorker:
    """The worker, ready to `run`, on a connection of its own.

    Raises:
        LeaseError, BrokerUnreachable: what it needs can't be set up.
    """
    if job.role == "queue":
        queue = WorkQueue(client, timing, history)
        handler = do_job(timing.of(job.priority).work, fixed=job.fixed)
        settings: dict[str, Any] = {"heartbeats": job.heartbeats, "prefetch": job.prefetch}
        return QueueWorker(name, queue, priority=job.priority, handler=handler, **settings)
    standby, items = takeover(job.takeover, client, timing, history), WorkItems(client)
    await standby.leases.ensure()
    await items.ensure()
    return LeaseWorker(name, standby, items, ledger=LedgerClient(client) if job.ledger else None, slots=job.slots)
