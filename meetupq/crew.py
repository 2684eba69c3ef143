"""The crew: launches workers by name, stops them politely, kills them honestly, freezes them, cuts their network.

A worker is a task of ours or a process of its own. A task shares our process, so a kill must not be kinder than
SIGKILL: its connection is cut with everything that still waits to be sent, then the task is dropped. The broker sees
what it would see of a machine that lost power. A process gets SIGKILL itself; to freeze one is SIGSTOP, to thaw it
SIGCONT.

Every worker of our own broker is connected through a wire of its own, which can be cut (see `wire`).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from nats.aio.client import Client

from meetupq import errors, subjects
from meetupq.broker import Broker, sever
from meetupq.errors import ActionImpossible, BrokerUnreachable, MeetupqError, UnknownWorker, WorkerBusy
from meetupq.hiring import Job, Role, make_worker
from meetupq.history import History
from meetupq.processes import SIGKILL, Child, Line, Processes
from meetupq.tasks import drop
from meetupq.timing import Timing
from meetupq.wire import Wire
from meetupq.workers import LeaseWorker, QueueWorker

Report = Callable[[str, BaseException], None]
WORKER: Final = [sys.executable, "-P", "-m", "meetupq.worker_process"]
"""-P: nothing that lies in the current folder is imported by mistake."""
START_LIMIT: Final = 15.0
"""Seconds until a worker process must be ready."""
GOODBYE: Final = 1.0
"""Seconds that the last words of a worker that was stopped may take to the broker."""


@dataclass(eq=False)
class _Member:
    """One worker. `task` runs until it ends, be it its own code or the wait for its process."""

    name: str
    job: Job
    wire: Wire | None = None
    client: Client | None = None
    worker: QueueWorker | LeaseWorker | None = None
    child: Child | None = None
    task: asyncio.Task[None] | None = None
    killed: bool = False
    frozen: bool = False
    stopping: bool = False
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while it is frozen or thawed

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
        self._processes = Processes()

    @property
    def names(self) -> list[str]:
        """All that were ever launched, in that order."""
        return list(self._members)

    @property
    def at_work(self) -> list[str]:
        """Those who work now, or would if they weren't frozen or cut off."""
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
            MeetupqError: its process did not start.
        """
        subjects.checked(name, "the worker")
        job = job or Job()
        if self.is_at_work(name) and not self.is_stopping(name):
            raise WorkerBusy(f"{name} is at work already: stop or kill it first, or choose another name")
        self._starting[name] = job  # a second click comes while the first one still connects
        try:
            await self._start(name, job)
        finally:
            del self._starting[name]

    async def _start(self, name: str, job: Job) -> None:
        if former := self._members.get(name):
            if former.stopping and former.task:
                await asyncio.wait({former.task})  # it finishes first what it holds
            await self._clear_away(former)
        if self.broker.ours and not self.broker.running:
            raise BrokerUnreachable("the broker is not running: start it first")
        member = _Member(name, job)
        try:
            if self.broker.ours:
                member.wire = Wire(self.broker.port)
                await member.wire.open()
            if job.process:
                await self._start_process(member)
            else:
                await self._start_task(member)
        except BaseException:
            member.killed = True
            if member.child:
                await self._processes.signal(member.child, SIGKILL)
            await self._clear_away(member)
            raise

    async def _start_task(self, member: _Member) -> None:
        async def close_in_vain(_: Exception) -> None:
            """While the broker is away the wire answers and hangs up; nats-py then leaves its own side open."""
            if member.client and not member.client.is_connected and member.client._transport:
                member.client._transport.close()

        at = {"servers": f"nats://127.0.0.1:{member.wire.port}", "error_cb": close_in_vain} if member.wire else {}
        member.client = await self.broker.connect(member.name, **at)
        member.worker = await make_worker(member.name, member.job, member.client, self.timing, self.history)
        self._begin(member, member.worker.run())

    async def _start_process(self, member: _Member) -> None:
        ready = asyncio.get_running_loop().create_future()
        crash: list[MeetupqError] = []

        def heard(line: Line) -> None:
            if "event" in line:
                self._write_down(line["event"])
            elif "crashed" in line:
                crash.append(_error(line))
            elif "ready" in line and member.child and not member.killed and not member.task:
                self._begin(member, self._follow(member.child, crash))
                ready.set_result(None)

        member.child = await self._processes.start(
            WORKER, config(member, self.broker, self.timing, self.history), heard
        )
        await asyncio.wait({ready, member.child.exit}, timeout=START_LIMIT, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            why = "its process ended at once" if member.child.exit.done() else f"not ready within {START_LIMIT:g} s"
            raise crash[0] if crash else MeetupqError(f"{member.name} can't start: {why}; try again")

    def _begin(self, member: _Member, run: Coroutine[Any, Any, None]) -> None:
        self._members[member.name] = member
        self.history.append("started", worker=member.name, detail=str(member.job))
        member.task = asyncio.create_task(run, name=f"worker {member.name}")
        member.task.add_done_callback(lambda task: self._ended(member, task))

    def _write_down(self, event: dict[str, Any]) -> None:
        """Take over what a worker process says of itself; its clock is ours."""
        with contextlib.suppress(TypeError, ValueError):  # no event: nothing that a worker of ours says
            self.history.append(**event)

    async def _follow(self, child: Child, crash: list[MeetupqError]) -> None:
        """What the task of a worker does that is a process: wait for its end, and end as it did."""
        code = await child.exit
        if crash:
            raise crash[0]
        if code < 0:
            raise MeetupqError(f"its process was ended by {_signal_name(-code)}, which did not come from here")
        if code:
            raise MeetupqError(f"its process has ended with the exit code {code}")

    def _ended(self, member: _Member, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if member.killed:
            if member.child:
                # Only now: all that it wrote before its end is in the history.
                self.history.append("killed", worker=member.name)
        elif error:
            # Reported first: who waits for the event finds the failure.
            self._report(f"worker {member.name} crashed", error)
            self.history.append("killed", worker=member.name, source="worker", detail=f"crashed: {error}")

    async def _clear_away(self, member: _Member) -> None:
        """Wait for the end of a worker that has ended, or is ending, and close what it leaves open."""
        if member.wire:
            member.wire.abort()
        if member.client:
            await sever(member.client)
        if member.child:
            await asyncio.wait({member.child.exit})
            if member.task:
                await asyncio.wait({member.task})
        elif member.task:
            await drop(member.task)
        if member.wire:
            await member.wire.close()

    def is_at_work(self, name: str, role: Role | None = None) -> bool:
        """Whether a worker of this name (and role) is at work now, or about to be."""
        if not isinstance(name, str):
            return False
        if job := self._starting.get(name):
            return role in (None, job.role)
        member = self._members.get(name)
        return member is not None and member.at_work and role in (None, member.job.role)

    def is_stopping(self, name: str) -> bool:
        """Whether a worker of this name is at work, but was asked to stop."""
        member = self._members.get(name)
        return member is not None and member.at_work and member.stopping and name not in self._starting

    def is_frozen(self, name: str) -> bool:
        """Whether a worker of this name is at work, but frozen."""
        member = self._members.get(name)
        return member is not None and member.at_work and member.frozen

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
        if member.job.role != "queue":
            raise UnknownWorker(f"{name} lobbies for leases: heartbeats and prefetch are for workers of the queue")
        member.job = replace(member.job, **setting)  # type: ignore[arg-type]
        if member.child:
            self._processes.tell(member.child, {"set": setting})
        for what, value in setting.items() if member.worker else ():
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

        One that is cut off stops too, but can hand back nothing; one that is frozen can't hear of it.

        Raises:
            UnknownWorker: no such name.
            MeetupqError: it did not finish in time; it is still at work.
        """
        member = self._settled(name)
        if not member.at_work:
            return f"{name} is not at work; nothing was changed"
        if member.frozen:
            return f"{name} is frozen and hears nothing: thaw it first, or kill it; nothing was changed"
        assert member.task
        member.stopping = True
        if member.child:
            self._processes.tell(member.child, {"stop": True})
        elif member.worker:
            member.worker.stop()
        await asyncio.wait({member.task}, timeout=within)
        if not member.task.done():
            raise MeetupqError(f"{name} did not finish within {within:g} s; wait for it, or kill it")
        if member.killed:
            return f"{name} was killed before it had finished"
        if not member.task.cancelled() and member.task.exception() is None:
            self.history.append("stopped", worker=name)
        if member.client:
            with contextlib.suppress(Exception):  # a broker that is away can't say goodbye
                await member.client.close()
        if member.wire:
            await member.wire.close(within=GOODBYE)
        return f"{name} finished and stopped"

    async def kill(self, name: str) -> str:
        """End a worker in the middle of whatever it does. Returns what happened; killing a dead one changes nothing.

        Raises:
            UnknownWorker: no such name.
        """
        member = self._settled(name)
        if not member.at_work:
            return f"{name} is dead already; nothing was changed"
        assert member.task
        member.killed = True
        if member.child:
            await self._processes.signal(member.child, SIGKILL)
            await asyncio.wait({member.task})  # its end writes down that it was killed
        else:
            # The cut is one step of the loop, so that whatever the dying task still does reaches nobody.
            self.history.append("killed", worker=name)
        await self._clear_away(member)
        return f"{name} was killed"

    async def freeze(self, name: str) -> str:
        """Make a worker stand still where it is, as a long pause of its machine would. Returns what happened.

        Raises:
            UnknownWorker: no such name.
            ActionImpossible: it is a task, and shares our process; or this system can't freeze.
        """
        member = self._settled(name)
        if not member.at_work:
            return f"{name} is not at work; nothing was changed"
        if not member.child:
            raise ActionImpossible(
                f"{name} is a task and shares our process: launch it with process=True, then it can be frozen"
            )
        if not hasattr(signal, "SIGSTOP"):
            raise ActionImpossible("this system can't freeze a process: freeze and thaw need Linux or macOS")
        async with member.changing:
            if member.frozen:
                return f"{name} is frozen already; nothing was changed"
            member.frozen = True
            await self._processes.signal(member.child, signal.SIGSTOP)
            if not member.at_work:
                return f"{name} was dead before it was frozen"
            self.history.append("frozen", worker=name)
        return f"{name} was frozen"

    async def thaw(self, name: str) -> str:
        """Let a frozen worker go on where it stood. Returns what happened.

        Raises:
            UnknownWorker: no such name.
        """
        member = self._settled(name)
        async with member.changing:
            if not member.at_work:
                return f"{name} is not at work; nothing was changed"
            if not member.frozen or not member.child:
                return f"{name} is not frozen; nothing was changed"
            member.frozen = False
            self.history.append("thawed", worker=name)  # first: what it finds out comes after it
            await self._processes.signal(member.child, signal.SIGCONT)
        return f"{name} was thawed"

    async def cut(self, name: str) -> str:
        """Take away the network between a worker and the broker; neither is told. Returns what happened.

        Raises:
            UnknownWorker: no such name.
            ActionImpossible: the broker isn't ours, so that it has no wire of ours either.
        """
        member = self._settled(name)
        if not member.at_work:
            return f"{name} is not at work; nothing was changed"
        if not member.wire:
            raise ActionImpossible(
                f"{name} works at a server that was there before: only a lab with a server of its own has wires to cut"
            )
        if member.wire.is_cut:
            return f"{name} is cut off already; nothing was changed"
        member.wire.cut()
        self.history.append("cut", worker=name)
        return f"{name} was cut off"

    async def restore(self, name: str) -> str:
        """Give a worker its network back; what was sent meanwhile arrives now. Returns what happened.

        Raises:
            UnknownWorker: no such name.
        """
        member = self._settled(name)
        if not member.at_work:
            return f"{name} is not at work; nothing was changed"
        if not member.wire or not member.wire.is_cut:
            return f"{name} is not cut off; nothing was changed"
        self.history.append("restored", worker=name)  # first: what arrives now comes after it
        member.wire.restore()
        return f"{name} is connected again"

    async def kill_all(self, role: Role | None = None) -> str:
        """Kill everybody who is at work (in a role)."""
        if role not in (None, "queue", "leases"):
            raise UnknownWorker(f"no worker has the role {role!r}: choose 'queue' or 'leases', or leave it out for all")
        victims = [name for name in self.at_work if self.is_at_work(name, role)]
        for name in victims:
            await self.kill(name)
        return f"killed: {', '.join(victims)}" if victims else "nobody was at work; nothing was changed"

    def abandon(self) -> None:
        """Kill all worker processes, from any thread and without an event loop, if `close` has not done so."""
        self._processes.abandon()

    async def close(self) -> None:
        """End all workers without ceremony; nothing is recorded. Twice does no harm."""
        members = list(self._members.values())
        for member in members:
            if member.child and member.task:
                member.task.cancel()  # its end is not to be written down
        try:
            # All at once: what one of them still does while another one ends would be recorded.
            await asyncio.gather(*(self._clear_away(member) for member in members if not member.child))
        finally:
            await self._processes.close()
        for member in members:
            await self._clear_away(member)


def config(member: _Member, broker: Broker, timing: Timing, history: History) -> Line:
    """What a worker process has to know. Its first line of stdin says it, since it holds the broker's token."""
    return {
        "name": member.name,
        "job": asdict(member.job),
        "timing": asdict(timing),
        "start": history.start,
        "url": broker.secret_url(member.wire.port if member.wire else 0),
        "options": {"max_reconnect_attempts": -1 if broker.ours else 3},
    }


def _error(line: Line) -> MeetupqError:
    """What a worker process crashed of, as the kind of error that it was there if it is one of ours."""
    kind = getattr(errors, str(line.get("error")), MeetupqError)
    return kind(str(line["crashed"])) if issubclass(kind, MeetupqError) else MeetupqError(str(line["crashed"]))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
