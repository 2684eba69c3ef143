"""The whole stage in plain asyncio: a broker, both patterns, a crew, and everything that keeps the history true.

async with Stage() as stage:
    await stage.launch("ada")
    await stage.publish("resize-1")
    await stage.history.until("acked", job="resize-1")
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from nats.aio.client import Client

from meetupq import subjects
from meetupq.broker import Broker, asking, sever
from meetupq.crew import Crew
from meetupq.dead_letters import DeadLetter, DeadLetters
from meetupq.errors import BrokerUnreachable, JobRefused, LeaseError, LetterUnknown, MeetupqError, QueueError
from meetupq.hiring import Job, Role
from meetupq.history import History
from meetupq.leases import Leases
from meetupq.ledger import LedgerService
from meetupq.roster import Claim, Roster
from meetupq.summary import QueueSummary, summarise
from meetupq.tasks import drop
from meetupq.timeline import Timeline
from meetupq.timing import Timing
from meetupq.trials import Trial, measure
from meetupq.twins import post_mortem
from meetupq.witness import Witness
from meetupq.work_items import WorkItems
from meetupq.work_queue import WorkQueue
from meetupq.workers import ENDINGS, Ending, job_payload

TOGETHER: Final = 500
"""So many jobs are on their way to the broker at once."""
LOOK_EVERY: Final = 0.5
"""Seconds between two looks at the broker's counts and at the dead letters, for whoever shows them."""


@dataclass(frozen=True)
class Failure:
    """A background task that failed: what it was, and the exception."""

    what: str
    error: BaseException

    def __str__(self) -> str:
        return f"{self.what}: {type(self.error).__name__}: {self.error}"


class Stage:
    """A broker with both patterns and a crew. `async with` it, or `open` and `close` it.

    Args:
        timing: a `Timing`, the name of a preset, or None for MEETUPQ_TIMING or "class".
        url: of a server that runs already; it is used, and never stopped or wiped.
        store: a folder for the broker's data that outlives the stage; by default a temporary one.
        escalate: whether a dead job of the priority high is first tried again as one of the priority low.
        history: to go on with; a new one by default.

    Attributes:
        sweeping, burying: whether the keeper of dead letters sweeps by itself; whether it moves what it finds.
        counted, letters_seen: the summary and the dead letters, as they were at the last look; None before it.
    """

    def __init__(
        self,
        timing: Timing | str | None = None,
        *,
        url: str | None = None,
        store: str | Path | None = None,
        escalate: bool = False,
        history: History | None = None,
    ) -> None:
        self.timing = Timing.chosen(timing)
        self.history = history if history is not None else History()
        self.history.meta.setdefault("timing", self.timing.name)
        self.broker = Broker(url, store=store)
        self.crew = Crew(self.broker, self.timing, self.history, self._report)
        self.failures: list[Failure] = []
        self.on_news: Callable[[], None] = lambda: None
        self.sweeping = self.burying = True
        self.counted: QueueSummary | None = None
        self.letters_seen: list[DeadLetter] = []
        self._letters_version: tuple[int, ...] = ()
        self._closing = False
        self._escalate = {"high": "low"} if escalate else {}
        self._timeline = Timeline()
        self._numbers: Counter[str] = Counter()
        self._stored_before = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._client: Client | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Start the broker and set up both patterns.

        Raises:
            BrokerError and its kinds; nothing is left behind then.
        """
        try:
            await self.broker.start()
            self.history.append("broker_started", source="broker", detail=f"nats-server {self.broker.version}")
            self._client = await self.broker.connect("stage", closed_cb=self._disconnected)
            self.queue = WorkQueue(self._client, self.timing, self.history)
            self.dead_letters = DeadLetters(self.queue, self._escalate)
            self.leases = Leases(self._client, self.timing, self.history)
            self.items = WorkItems(self._client)
            self.ledger = LedgerService()
            self.roster = Roster(self.leases, self.items)
            for pattern in (self.queue, self.dead_letters, self.leases, self.items):
                await pattern.ensure()
            await self.ledger.serve(self._client, self.history)
            with asking("count what is stored", QueueError):
                self._stored_before = (await self._client.jetstream().stream_info(subjects.JOBS)).state.last_seq
        except BaseException:
            await self.close()
            raise
        keeping = self.dead_letters.run(lambda: self.sweeping, lambda: self.burying)
        self.background(keeping, "the keeper of dead letters")
        self.background(self._look_again_and_again(), "the look at the queue")
        self.background(self.roster.run(), "the roster")
        self.background(self._watch_broker(), "the watch on the broker")
        self.background(Witness(self._client, self.timing, self.history).run(), "the witness")

    async def close(self) -> None:
        """End everything that was started here. Twice does no harm."""
        self._closing = True
        await drop(*self._tasks)
        await self.crew.close()
        if self._client:
            await sever(self._client)  # a polite close can fail half-way if the broker is gone
        await self.broker.close()

    async def _disconnected(self) -> None:
        if not self._closing:
            why = BrokerUnreachable("the broker has closed the lab's own connection: open the lab again")
            self._fail("the connection", why)

    async def _watch_broker(self) -> None:
        """Write down that our server's process has ended, or is back, by whatever hand."""
        pid = self.broker.pid
        while True:
            now = self.broker.pid if self.broker.running else 0
            if now != pid:  # it may have ended and be back between two looks
                if pid:
                    self.history.append("broker_killed", source="inferred", detail="its process has ended")
                if now:
                    self.history.append("broker_started", source="inferred", detail="it is back")
                pid = now
            await asyncio.sleep(0.1)

    def background(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        """Run something beside everything else; if it fails, that is kept in `failures`."""
        task = asyncio.create_task(work, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: self._finished(done, what))
        return task

    def _finished(self, task: asyncio.Task[Any], what: str) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._report(what, error)

    def _report(self, what: str, error: BaseException) -> None:
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        self._fail(what, error)

    def _fail(self, what: str, error: BaseException) -> None:
        self.failures.append(Failure(what, error))
        self.on_news()

    # --- the queue half ----------------------------------------------------------------------------

    async def publish(
        self,
        *jobs: str,
        count: int = 0,
        kind: str = "resize",
        priority: str = "high",
        seconds: float | None = None,
        ending: Ending = "ack",
        after: float = 0.0,
    ) -> list[str]:
        """Publish jobs by name, or `count` jobs named after their kind (resize-1, resize-2, ...).

        Args:
            seconds: how long the work takes; None: as the timing says.
            ending: what a worker does at the end of every attempt: "ack", fail in "silence", "nak", "reject" (copy to
                the dead letters, then terminate) or "term" (without a copy).
            after: the delay of a nak in seconds.

        Returns:
            The names. A name that was published within two minutes is dropped by the broker as a duplicate.

        Raises:
            JobRefused: no number of jobs or seconds, an unknown ending or priority, a delay on top of a backoff.
            NameInvalid, BrokerUnreachable.
        """
        names = [subjects.checked(job, "the job") for job in jobs]
        if type(count) is not int or not 0 <= count <= 100_000:
            raise JobRefused(f"count is {count!r}, but one publishes 1 to 100000 jobs")
        for value in (seconds, after):
            if value is not None and not subjects.is_seconds(value):
                raise JobRefused(f"a job can't take or wait {value!r} s: give seconds from 0 to 86400")
        if ending not in ENDINGS:
            raise JobRefused(f"no job ends with {ending!r}: choose {', '.join(map(repr, ENDINGS))}")
        subjects.job_subject(priority, kind)
        if after and (backoff := self.timing.of(priority).backoff):
            raise JobRefused(
                f"a nak after {after:g} s on a queue with the backoff {backoff} s would wait for both "
                "from the second attempt on: use one of the two (timing.but(ack_wait=...) drops the backoff)"
            )
        job = {"payload": job_payload(seconds=seconds, ending=ending, after=after), "kind": kind, "priority": priority}
        await self._publish(names, job)
        numbered = count or (0 if jobs else 1)
        while numbered > 0:
            # Somebody else may publish here too, and have taken some of these names.
            fresh = await self._publish(self._next_names(kind, numbered), job)
            names += fresh
            numbered -= len(fresh)
        return names

    async def _publish(self, names: list[str], job: dict[str, Any]) -> list[str]:
        """Publish equal jobs, many at once; returns those that the broker did not drop as duplicates."""
        new = []
        for start in range(0, len(names), TOGETHER):
            batch = names[start : start + TOGETHER]
            sent = await asyncio.gather(*(self.queue.publish(n, **job) for n in batch), return_exceptions=True)
            for name, receipt in zip(batch, sent, strict=True):
                if isinstance(receipt, BaseException):
                    raise receipt
                new += [] if receipt.duplicate else [name]
        return new

    async def poison(self, *jobs: str, seconds: float | None = None) -> list[str]:
        """Publish a job that fails in silence at every attempt."""
        return await self.publish(*jobs, kind="poison", seconds=seconds, ending="silence")

    async def slow(self, *jobs: str, seconds: float | None = None) -> list[str]:
        """Publish a job that takes longer than the broker's patience, half as long again if no `seconds` are given."""
        seconds = 1.5 * self.timing.effective_ack_wait if seconds is None else seconds
        return await self.publish(*jobs, kind="slow", seconds=seconds)

    def _next_names(self, kind: str, count: int, event: str = "published") -> list[str]:
        taken = {known.job for known in self.history.where(event)}
        # A store that was there before has names that we don't know; the broker drops one only if it is as good as new.
        # But it has numbered its messages, and we number each kind from there on.
        start = self._stored_before if event == "published" else 0
        names: list[str] = []
        while len(names) < count:
            self._numbers[kind] += 1
            if (name := f"{kind}-{start + self._numbers[kind]}") not in taken:
                names.append(name)
        return names

    async def sweep(self) -> int:
        """Look for dead jobs now. Returns how many were brought to the dead letters."""
        return await self.dead_letters.sweep()

    async def set_keeper(self, *, sweeping: bool | None = None, burying: bool | None = None) -> None:
        """Whether the keeper sweeps by itself, and whether it moves what it hears of and finds; None: as before.

        When this returns, nothing is under way that began under the old rule.
        """
        async with self.dead_letters.one_round, self.dead_letters.one_at_a_time:
            self.sweeping = self.sweeping if sweeping is None else bool(sweeping)
            self.burying = self.burying if burying is None else bool(burying)

    async def letters(self, **which: str) -> list[DeadLetter]:
        """All dead letters, or those whose `kind`, `job` and last `worker` fit the patterns given."""
        return await self.dead_letters.letters(**which)

    async def letter(self, job: str) -> DeadLetter:
        """The newest dead letter of a job.

        Raises:
            LetterUnknown: there is none.
        """
        if found := [letter for letter in await self.letters() if letter.job == job]:
            return found[-1]
        raise LetterUnknown(f"there is no dead letter of {job!r}: letters() lists those that there are")

    async def redrive(self, number: int) -> str:
        """Put one dead letter back into the queue."""
        return await self.dead_letters.redrive(number)

    async def redrive_all(self, **which: str) -> list[str]:
        """Put all dead letters back into the queue, or those that fit; see `letters`."""
        return await self.dead_letters.redrive_all(**which)

    async def summary(self) -> QueueSummary:
        """How many jobs are where, by the broker's own counts."""
        self._timeline.feed(self.history.since(self._timeline.seen))
        return await summarise(self.dead_letters, terminated=self._timeline.counts["terminated"])

    async def _look_again_and_again(self) -> None:
        """Keep `counted` and `letters_seen` up to date for the panels, which must not wait for the broker."""
        seen = -1
        for tick in itertools.count():
            started = time.monotonic()
            # Somebody else may use the same broker, so now and then we look although nothing has happened here.
            if seen != len(self.history) or tick % 4 == 0:
                seen = len(self.history)
                await self._look()
            # Hundreds of letters take a while to read: never more than a fifth of the time.
            await asyncio.sleep(max(LOOK_EVERY, 4 * (time.monotonic() - started)))

    async def _look(self) -> None:
        try:
            counted, version = await self.summary(), await self.dead_letters.version()
            letters = self.letters_seen if version == self._letters_version else await self.letters()
        except (BrokerUnreachable, QueueError):
            return  # the panel keeps what it has; its header says that the broker is down
        self._letters_version = version
        if (counted, letters) != (self.counted, self.letters_seen):
            self.counted, self.letters_seen = counted, letters
            self.on_news()

    async def post_mortem(self, job: str) -> str:
        """How a job died: its deliveries, and the time it took beside what the timing adds up to."""
        return post_mortem(self.history, job, self.timing)

    # --- the lease half ----------------------------------------------------------------------------

    async def add_work(self, *items: str, seconds: float | None = None, steps: int = 10) -> list[str]:
        """Put up items of long work, by name; without a name one called work-1, work-2, ...

        Args:
            seconds: how long an item takes; None: five TTLs of a lease.
            steps: in how many steps, each of which is written down when it is done.

        Returns:
            Those that were new.
        """
        seconds = 5 * self.timing.lease_ttl if seconds is None else seconds
        added = []
        for item in [subjects.checked(item, "the work item") for item in items] or self._next_names("work", 1, "added"):
            if await self.items.add(item, seconds=seconds, steps=steps):
                self.history.append("added", item, detail=f"{steps} steps, {seconds:g} s")
                added.append(item)
        return added

    async def cancel_work(self, *items: str) -> list[str]:
        """Take items of work off the list, their owners stop with the next step; without a name the newest of all.

        Returns:
            Those that were not finished or cancelled already.

        Raises:
            LeaseError: there is no such item.
        """
        unfinished = {item.name for item in await self.items.unfinished()} if not items else set()
        newest = [event.job for event in reversed(self.history.where("added")) if event.job in unfinished][:1]
        cancelled = []
        for item in items or newest:
            if await self.items.cancel(item):
                self.history.append("cancelled", item)
                cancelled.append(item)
        return cancelled

    async def trial(self, how: str, timing: Timing | None = None, **options: Any) -> Trial:
        """Kill owners in a bucket of their own, and measure how late the next ones come; see `trials.measure`."""
        return await measure(self.broker, how, timing or self.timing, **options)

    async def claims(self) -> list[Claim]:
        """The roster, after a look at the bucket as it is now."""
        with asking("read the claims", LeaseError):
            await self.roster.refresh()
        return self.roster.claims()

    # --- the crew ----------------------------------------------------------------------------------

    async def launch(self, *names: str, role: Role = "queue", **options: Any) -> None:
        """Start workers. One that is at work already in this role is left alone, so that a cell can be run twice.

        Args:
            role: "queue" or "leases".
            options: priority, heartbeats, fixed, prefetch, takeover, slots, process; see `hiring.Job`.
        """
        job = self._job(role, **options)
        # One after the other: their order is that of their cards and colours.
        for name in [subjects.checked(name, "the worker") for name in names]:
            if not self.crew.is_at_work(name, role) or self.crew.is_stopping(name):
                await self.crew.launch(name, job)

    @staticmethod
    def _job(role: Role, **options: Any) -> Job:
        return Job(role, ledger=role == "leases", **options)

    async def relaunch(self, name: str) -> str:
        """Start a worker again that was stopped or killed."""
        if self.crew.is_at_work(name) and not self.crew.is_stopping(name):
            return f"{name} is at work already; nothing was changed"
        return await self.crew.relaunch(name)

    async def hire(self, role: Role = "queue") -> str:
        """Start one more worker, the next name of ada, bo, cy, ..."""
        # One that just starts isn't among the names yet: a second click comes while the first still connects.
        name = next(n for n in self._names() if n not in self.crew.names and not self.crew.is_at_work(n))
        await self.crew.launch(name, self._job(role))
        return f"{name} is at work"

    @staticmethod
    def _names() -> Iterator[str]:
        yield from "ada bo cy dan eve flo gus hal ida jo kim lou mia ned oto".split()
        yield from (f"worker-{number}" for number in itertools.count(16))

    async def heartbeats(self, name: str, on: bool) -> str:
        """Let a worker say "in progress" while it works, or not."""
        return self.crew.set_heartbeats(name, on)

    async def prefetch(self, name: str, jobs: int) -> str:
        """How many jobs a worker pulls at once."""
        return self.crew.set_prefetch(name, jobs)

    async def stop(self, name: str) -> str:
        """Ask a worker to finish what it holds and then to end. Returns at once; the event `stopped` says when."""
        if name not in self.crew.at_work or self.crew.is_frozen(name):
            return await self.crew.stop(name)
        self.background(self.crew.stop(name, within=3600), f"stop {name}")
        await asyncio.sleep(0)  # it has begun when this returns
        return f"{name} finishes what it holds, then stops"

    async def kill(self, name: str) -> str:
        """Kill a worker in the middle of whatever it does."""
        return await self.crew.kill(name)

    async def freeze(self, name: str) -> str:
        """Let a worker that is a process stand still."""
        return await self.crew.freeze(name)

    async def thaw(self, name: str) -> str:
        """Let a frozen worker go on."""
        return await self.crew.thaw(name)

    async def cut(self, name: str) -> str:
        """Take away the network between a worker and the broker."""
        return await self.crew.cut(name)

    async def restore(self, name: str) -> str:
        """Give a worker its network back."""
        return await self.crew.restore(name)

    async def kill_all(self, role: Role | None = None) -> str:
        """Kill all workers (of a role)."""
        return await self.crew.kill_all(role)

    def attempt(self, action: Callable[[], Awaitable[Any]], what: str) -> None:
        """Do something because a button was pressed: nobody waits for the result, so an error goes to `failures`."""

        async def doing() -> None:
            try:
                await action()
            except MeetupqError as error:
                self._fail(what, error)

        self.background(doing(), what)
