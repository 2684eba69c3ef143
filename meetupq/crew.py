"""The crew: launches workers by name, stops them politely, and kills them as honestly as a task can be killed.

A task shares its process with us, so a kill must not be kinder than SIGKILL: its connection is cut with everything that
still waits to be sent, then the task is dropped. The broker sees what it would see of a machine that lost power.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from nats.aio.client import Client

from meetupq import subjects
from meetupq.broker import Broker, sever
from meetupq.errors import MeetupqError, UnknownWorker, WorkerBusy
from meetupq.hiring import Job, Role, make_worker
from meetupq.history import History
from meetupq.tasks import drop
from meetupq.timing import Timing
from meetupq.workers import LeaseWorker, QueueWorker

Report = Callable[[str, BaseException], None]


@dataclass
class _Member:
    name: str
    job: Job
    client: Client | None = None
    worker: QueueWorker | LeaseWorker | None = None
    task: asyncio.Task[None] | None = None
    killed: bool = False

    @property
    def at_work(self) -> bool:
        return self.task is not None and not self.task.done() and not self.killed


class Crew:
    """The workers of one broker, by name.

    Args:
        broker: where they work.
        timing, history: passed on to them.
        report: called with a sentence and the exception when a worker crashes by itself.
    """

    def __init__(self, broker: Broker, timing: Timing, history: History, report: Report | None = None) -> None:
        self.broker = broker
        self.timing = timing
        self.history = history
        self._report = report or (lambda what, error: None)
        self._members: dict[str, _Member] = {}
        self._starting: dict[str, Job] = {}

    @property
    def names(self) -> list[str]:
        """All that were ever launched, in that order."""
        return list(self._members)

    @property
    def at_work(self) -> list[str]:
        """Those whose task runs now."""
        return [name for name, member in self._members.items() if member.at_work]

    def _member(self, name: str) -> _Member:
        if not isinstance(name, str) or name not in self._members:
            known = ", ".join(self._members) or "none is launched yet"
            raise UnknownWorker(f"no worker is called {name!r}; the workers are: {known}")
        return self._members[name]

    def _settled(self, name: str) -> _Member:
        if isinstance(name, str) and name in self._starting:
            raise WorkerBusy(f"{name} is just starting: try again in a moment")
        return self._member(name)

    async def launch(self, name: str, job: Job | None = None) -> None:
        """Start a worker; by default one that takes jobs of the high priority from the queue.

        Raises:
            WorkerBusy: one of this name is at work.
            NameInvalid, BrokerUnreachable; UnknownWorker for an unknown role or priority; JobRefused for the prefetch.
        """
        subjects.checked(name, "the worker")
        job = job or Job()
        if self.is_at_work(name):
            raise WorkerBusy(f"{name} is at work already: stop or kill it first, or choose another name")
        self._starting[name] = job  # a second click comes while the first one still connects
        try:
            await self._start(name, job)
        finally:
            del self._starting[name]

    async def _start(self, name: str, job: Job) -> None:
        if (former := self._members.get(name)) and former.client:
            await sever(former.client)  # one that crashed has left it open
        member = _Member(name, job)
        member.client = await self.broker.connect(name)
        try:
            member.worker = await make_worker(name, job, member.client, self.timing, self.history)
        except BaseException:
            await sever(member.client)
            raise
        self._members[name] = member
        self.history.append("started", worker=name, detail=str(job))
        member.task = asyncio.create_task(member.worker.run(), name=f"worker {name}")
        member.task.add_done_callback(lambda task: self._ended(member, task))

    def _ended(self, member: _Member, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            # Reported first: who waits for the event finds the failure.
            self._report(f"worker {member.name} crashed", error)
            self.history.append("killed", worker=member.name, source="worker", detail=f"crashed: {error}")

    def is_at_work(self, name: str, role: Role | None = None) -> bool:
        """Whether a worker of this name (and role) is at work now, or about to be."""
        if not isinstance(name, str):
            return False
        if job := self._starting.get(name):
            return role in (None, job.role)
        member = self._members.get(name)
        return member is not None and member.at_work and role in (None, member.job.role)

    def set_heartbeats(self, name: str, on: bool) -> str:
        """Let a worker of the queue say "in progress", or not, from now on. Returns what is so now.

        Raises:
            UnknownWorker: no such name, or one that lobbies for leases.
        """
        return self._change(name, heartbeats=bool(on))

    def set_prefetch(self, name: str, jobs: int) -> str:
        """How many jobs a worker of the queue pulls at once from now on, 1 to 100. Returns what is so now.

        Raises:
            UnknownWorker: no such name, or one that lobbies for leases.
            JobRefused: no number that a worker can pull.
        """
        return self._change(name, prefetch=jobs)

    def _change(self, name: str, **setting: bool | int) -> str:
        member = self._settled(name)
        if not isinstance(member.worker, QueueWorker):
            raise UnknownWorker(f"{name} lobbies for leases: heartbeats and prefetch are for workers of the queue")
        member.job = replace(member.job, **setting)  # type: ignore[arg-type]
        for what, value in setting.items():
            setattr(member.worker, what, value)
        self.history.append("tuned", worker=name, detail=str(member.job))
        return f"{name} is at work as {member.job}" if member.at_work else f"{name} will be {member.job}"

    async def relaunch(self, name: str) -> str:
        """Start a worker that was stopped or killed again, as what it was.

        Raises:
            UnknownWorker, WorkerBusy.
        """
        member = self._member(name)
        await self.launch(name, member.job)
        return f"{name} is at work again"

    async def stop(self, name: str, *, within: float = 30.0) -> str:
        """Let a worker finish (a job) or hand back (a lease) what it holds, then end it. Returns what happened.

        Raises:
            UnknownWorker: no such name.
            MeetupqError: it did not finish in time; it is still at work.
        """
        member = self._settled(name)
        if not member.at_work:
            return f"{name} is not at work; nothing was changed"
        assert member.worker and member.task and member.client
        member.worker.stop()
        done, _ = await asyncio.wait({member.task}, timeout=within)
        if not done:
            raise MeetupqError(f"{name} did not finish within {within:g} s; wait for it, or kill it")
        if member.killed:
            return f"{name} was killed before it had finished"
        if not member.task.cancelled() and member.task.exception() is None:
            self.history.append("stopped", worker=name)
        with contextlib.suppress(Exception):  # a broker that is away can't say goodbye
            await member.client.close()
        return f"{name} finished and stopped"

    async def kill(self, name: str) -> str:
        """End a worker in the middle of whatever it does. Returns what happened; killing a dead one changes nothing.

        Raises:
            UnknownWorker: no such name.
        """
        member = self._settled(name)
        if not member.at_work:
            return f"{name} is dead already; nothing was changed"
        assert member.task and member.client
        # The cut comes first and is one step of the loop, so that whatever the dying task still does reaches nobody.
        member.killed = True
        self.history.append("killed", worker=name)
        await sever(member.client)
        await drop(member.task)
        return f"{name} was killed"

    async def kill_all(self, role: Role | None = None) -> str:
        """Kill everybody who is at work (in a role)."""
        if role not in (None, "queue", "leases"):
            raise UnknownWorker(f"no worker has the role {role!r}: choose 'queue' or 'leases', or leave it out for all")
        victims = [name for name in self.at_work if self.is_at_work(name, role)]
        for name in victims:
            await self.kill(name)
        return f"killed: {', '.join(victims)}" if victims else "nobody was at work; nothing was changed"

    async def close(self) -> None:
        """End all workers without ceremony; nothing is recorded. Twice does no harm."""
        for member in self._members.values():
            if member.client:
                await sever(member.client)
            if member.task:
                await drop(member.task)
