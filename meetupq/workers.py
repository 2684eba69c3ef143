"""The two kinds of workers: one takes jobs from the queue, the other lobbies for long work.

Both are plain asyncio: `await worker.run()`. Nothing here tidies up in a `finally`: a worker that is killed must leave
behind exactly what a dead machine would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final, Literal, TypeVar, get_args

from meetupq.buckets import Ended
from meetupq.dead_letters import DeadLetters
from meetupq.errors import BrokerUnreachable, LeaseError, LeaseLost, MeetupqError, QueueError, WorkCancelled
from meetupq.leases import Lease
from meetupq.ledger import LedgerClient
from meetupq.subjects import is_seconds
from meetupq.takeovers import Takeover
from meetupq.tasks import drop
from meetupq.work_items import WorkItem, WorkItems
from meetupq.work_queue import Delivery, WorkQueue

T = TypeVar("T")
Handler = Callable[[Delivery], Awaitable[None]]


class JobFailed(MeetupqError):
    """The handler could not do this job."""


class Retry(JobFailed):
    """Not this time: say so aloud (a nak), and let it be delivered again, `after` seconds from now."""

    def __init__(self, after: float = 0.0) -> None:
        if not is_seconds(after):
            raise JobFailed(f"a job can't be tried again {after!r} s from now: give seconds from 0 to 86400")
        super().__init__(f"asks to be tried again{f' {after:g} s from now' if after else ''}")
        self.after = after


class Reject(JobFailed):
    """This job can never be done: terminate it, after it was copied to the dead letters, unless `copy` is False."""

    def __init__(self, reason: str, *, copy: bool = True) -> None:
        # A term and a header carry it: neither half a character, as file names may have one, nor a whole book.
        super().__init__(reason.encode(errors="replace").decode()[:1000])
        self.copy = copy


Ending = Literal["ack", "silence", "nak", "reject", "term"]
ENDINGS: Final = get_args(Ending)
HOPELESS: Final = "no worker can do this"


def job_payload(*, seconds: float | None = None, ending: Ending = "ack", after: float = 0.0) -> bytes:
    """The payload of a job of the stage.

    Args:
        seconds: how long it takes; None: the timing's `work`.
        ending: what its worker does then, at every attempt: "ack" it, fail in "silence" (poison), "nak" it, "reject"
            it (copy it to the dead letters, then terminate it), or "term" it without a copy.
        after: the delay of a nak in seconds; 0: again at once.
    """
    return json.dumps({"seconds": seconds, "ending": ending, "after": after}).encode()


def do_job(default_seconds: float, *, fixed: bool = False) -> Handler:
    """The handler of the stage: takes the time that the payload asks for, then ends as the payload says.

    Args:
        default_seconds: how long a job takes that doesn't say.
        fixed: the handler with its bug mended: every job succeeds.
    """

    async def handler(delivery: Delivery) -> None:
        try:
            wish = json.loads(delivery.payload or b"{}")
            seconds, ending, after = wish.get("seconds"), wish.get("ending", "ack"), wish.get("after", 0.0)
            seconds = default_seconds if seconds is None else seconds
            if not (is_seconds(seconds) and is_seconds(after) and ending in ENDINGS):
                raise ValueError  # JSON as Python reads it has NaN and Infinity as well
        except (ValueError, AttributeError, RecursionError):
            raise JobFailed("the payload can't be read") from None
        await asyncio.sleep(seconds)
        if fixed or ending == "ack":
            return
        if ending == "nak":
            raise Retry(after)
        if ending in ("reject", "term"):
            raise Reject(HOPELESS, copy=ending == "reject")
        raise JobFailed("poison: this job fails every time")

    return handler


class QueueWorker:
    """Takes one job at a time: pull, work, ack. While it works it says so, often enough for the broker's patience.

    Args:
        name: shown in pictures.
        queue: on a connection of this worker's own.
        priority: of the jobs it takes.
        handler: does the job. `Retry` means a nak, `Reject` a term; any other exception that it failed: then nothing
            is sent: a silent death.
        heartbeats: whether to say "in progress"; may be changed at any time.
        prefetch: how many jobs to pull at once; it does them one by one, and the others grow old in its hands.
    """

    role = "queue"

    def __init__(
        self,
        name: str,
        queue: WorkQueue,
        *,
        priority: str = "high",
        handler: Handler | None = None,
        heartbeats: bool = True,
        prefetch: int = 1,
    ) -> None:
        self.name = name
        self.queue = queue
        self.priority = priority
        self.heartbeats = heartbeats
        self.prefetch = prefetch
        self._dead_letters = DeadLetters(queue)
        self._handler = handler or do_job(queue.timing.of(priority).work)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Finish the job in hand, then take no more."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until stopped. A broker that goes away is waited for."""
        while not self._stopping.is_set():
            try:
                batch = await self.queue.pull_batch(self.prefetch, self.priority, worker=self.name)
            except (BrokerUnreachable, QueueError):
                await _pause(self._stopping, 0.2)
                continue
            for delivery in batch:
                try:
                    if self._stopping.is_set() and delivery is not batch[0]:
                        await delivery.nak()  # handed back: somebody else may have it at once
                        continue
                    if len(batch) > 1:
                        delivery.begin()
                    await self._attempt(delivery)
                except (BrokerUnreachable, QueueError):
                    await _pause(self._stopping, 0.2)  # this one comes again; those behind it are still in our hands

    async def _attempt(self, delivery: Delivery) -> None:
        async with self._heartbeat(delivery):
            try:
                await self._handler(delivery)
            except Exception as error:  # noqa: BLE001 - whatever a handler raises means that its job failed
                await self._fail(delivery, error)
                return
        await delivery.ack()

    async def _fail(self, delivery: Delivery, error: Exception) -> None:
        try:
            if isinstance(error, Retry):
                await delivery.nak(error.after)
                return
            if isinstance(error, Reject):
                if error.copy:
                    await self._dead_letters.keep(delivery, str(error))  # first: a terminated job leaves the stream
                await delivery.term(str(error))
                return
        except QueueError as refusal:
            error = refusal
        delivery.give_up(str(error) or type(error).__name__)

    @contextlib.asynccontextmanager
    async def _heartbeat(self, delivery: Delivery) -> AsyncIterator[None]:
        async def beat() -> None:
            while True:
                await asyncio.sleep(self.queue.timing.of(self.priority).heartbeat)
                if self.heartbeats:
                    with contextlib.suppress(BrokerUnreachable):
                        await delivery.in_progress()

        beating = asyncio.ensure_future(beat())
        try:
            yield
        finally:
            await drop(beating)


class Stopped(MeetupqError):
    """The worker was asked to stop between two steps of its work."""


class LeaseWorker:
    """Lobbies for work: looks for items that nobody holds, claims one, works step by step, releases it.

    Args:
        name: shown in pictures.
        standby: how it learns that a lease has ended; on a connection of this worker's own.
        items: the list of work, on the same connection.
        ledger: where the effect of each step is written, beside the progress; None: nowhere.
        slots: how many items it works on at once.
    """

    role = "leases"

    def __init__(
        self, name: str, standby: Takeover, items: WorkItems, *, ledger: LedgerClient | None = None, slots: int = 1
    ) -> None:
        self.name = name
        self.standby = standby
        self.items = items
        self.ledger = ledger
        self.slots = slots
        self._stopping = False
        self._owning: dict[str, asyncio.Task[None]] = {}
        self._known: list[WorkItem] = []
        self._lobbying = False
        self._random = random.Random(name)  # seeded, so that a run can be repeated

    def stop(self) -> None:
        """Finish the steps in hand, hand back the leases, then lobby no more."""
        self._stopping = True
        self.standby.news.set()

    async def run(self) -> None:
        """Lobby and work until stopped. A broker that goes away is waited for."""
        watching = asyncio.ensure_future(self.standby.run())
        try:
            while not self._stopping or self._owning:
                try:
                    if self._stopping or len(self._owning) == self.slots or not await self._lobby():
                        # With jitter, so that not all look at once.
                        await self.standby.wait(self.standby.leases.timing.lobby * self._random.uniform(0.5, 1.0))
                except LeaseLost:
                    continue
                except (BrokerUnreachable, LeaseError):
                    await asyncio.sleep(0.2)
                for task in [task for task in self._owning.values() if task.done()]:
                    task.result()
                self._owning = {item: task for item, task in self._owning.items() if not task.done()}
        finally:
            await drop(watching, *self._owning.values())

    async def _lobby(self) -> bool:
        """Try for the free items: first for what a dead owner left, since who lists before it claims comes too late."""
        if await self._claim_one(lambda over: over.expired):
            return True
        self._known = await self.items.unfinished()
        if await self._claim_one(lambda over: True):
            return True
        if not self._lobbying:
            self._lobbying = True
            self._record("lobbied", "")
        return False

    async def _claim_one(self, wanted: Callable[[Ended], bool]) -> bool:
        ended = [(item, self.standby.ended(item.name)) for item in self._known if item.name not in self._owning]
        free = [item for item, over in ended if over is not None and wanted(over)]
        self._random.shuffle(free)  # not all run for the same
        for item in free:
            handicap = len(self._owning)
            if not self._stopping and (lease := await self.standby.claim(item.name, self.name, handicap=handicap)):
                self._lobbying = False
                self._owning[item.name] = asyncio.ensure_future(self._own(lease))
                self._owning[item.name].add_done_callback(lambda _: self.standby.news.set())
                return True
        return False

    async def _own(self, lease: Lease) -> None:
        try:
            with contextlib.suppress(Stopped, WorkCancelled):
                await lease.hold(self._work(lease))
            self._known = [item for item in self._known if item.name != lease.key]
            await lease.release()
        except (LeaseError, BrokerUnreachable) as error:
            if lease.valid_until:  # else the loss is in the history already
                lease.lost(str(error))

    async def _work(self, lease: Lease) -> None:
        # Its progress is read now that the lease is ours: the last owner may have written one more step until now.
        item = await _insist(partial(self.items.take, lease.key, lease.token))
        while item and not item.over:
            await asyncio.sleep(item.step_seconds)
            # A frozen owner wakes up here, and can't know how late it is: what it writes next is for a fence to refuse.
            item = await _insist(partial(self._write_down, item, lease))
            self._record("checkpointed", item.name, lease, f"{item.done} of {item.steps} steps")
            if item.finished:
                self._record("finished", item.name, lease, f"{item.done} of {item.steps} steps")
            elif self._stopping:
                raise Stopped

    async def _write_down(self, item: WorkItem, lease: Lease) -> WorkItem:
        if self.ledger:
            await self.ledger.write(item.name, item.done + 1, lease.token, self.name)
        return await self.items.checkpoint(item)

    def _record(self, kind: str, item: str, lease: Lease | None = None, detail: str = "") -> None:
        revision = lease.token.revision if lease else 0
        history = self.standby.leases.history
        history.append(kind, item, self.name, revision=revision, source="worker", detail=detail)


async def _pause(unless: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await unless.wait()


async def _insist(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the broker answers. An outage is no loss: a lease may outlast it, and if not its `hold` ends this."""
    while True:
        try:
            return await ask()
        except BrokerUnreachable:
            await asyncio.sleep(0.1)
