"""The lab: the one object that a notebook holds, and the only bridge between the notebook's thread and the stage's.

The stage lives on a thread with an event loop of its own. On the kernel's loop it would stand still whenever a cell
computes or sleeps: the broker would then cut it off, redeliver its jobs, and the picture would show our own fault.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from nats.aio.client import Client

from meetupq.dead_letters import DeadLetter
from meetupq.errors import BackgroundFailure, BrokerUnreachable, LabClosed, LeaseError, MeetupqError, NameInvalid
from meetupq.hiring import Role
from meetupq.history import Condition, Event, History
from meetupq.ledger import LedgerService
from meetupq.letters import LettersPanel
from meetupq.panels import LeasePanel, QueuePanel
from meetupq.roster import Claim
from meetupq.sliders import TimerSliders
from meetupq.stage import Failure, Stage
from meetupq.subjects import PRIORITIES
from meetupq.summary import QueueSummary
from meetupq.timing import Timing
from meetupq.trials import Trial
from meetupq.view import Controls, View
from meetupq.workers import Ending

T = TypeVar("T")
P = TypeVar("P", bound=View)
CALL_LIMIT = 15.0
_open_labs: dict[str, Lab] = {}
_one_at_a_time = threading.RLock()


class Lab:
    """A stage that is open from the first line to `close()`: `lab = meetupq.Lab()`.

    Calls from a cell hand over to the stage's thread and come back with the result. Waits are awaited:
    `await lab.until("acked", job="resize-1")`. If a background task has failed, the next call raises that.

    Args:
        timing: "talk", "class", "ci", a `Timing`, or None for MEETUPQ_TIMING or "class".
        url: of a NATS server that runs already (or MEETUPQ_NATS_URL); it is used, and never stopped or wiped.
        store: a folder for jobs, dead letters and leases that outlives the lab; by default all is gone when it closes.
        escalate: whether a dead job of the priority high is first tried again as one of the priority low.
        name: opening a lab closes the one of the same name that this kernel has open, so that a cell can be run twice.

    Raises:
        BrokerError and its kinds, TimingError: one sentence each; nothing is left behind.
    """

    def __init__(
        self,
        timing: Timing | str | None = None,
        *,
        url: str | None = None,
        store: str | Path | None = None,
        escalate: bool = False,
        name: str = "lab",
    ) -> None:
        if not isinstance(name, str):
            raise NameInvalid(f"the lab's name is {name!r}, but it should be a text")
        with _one_at_a_time:
            self._open(name, timing, url=url, store=store, escalate=escalate)

    def _open(self, name: str, timing: Timing | str | None, **how: Any) -> None:
        earlier = _open_labs.pop(name, None)
        self._replaced = earlier is not None
        if earlier:
            earlier._shut()
        self.name = name
        self._stage = Stage(timing, **how)
        self._panels: list[View] = []
        self._stage.on_news = self._refresh_panels
        self._raised = 0
        self._closed = False
        self._pid = os.getpid()
        self._over = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"meetupq {name}", daemon=True)
        try:
            self._thread.start()
            self._wait_for(self._stage.open())
            _open_labs[name] = self
            atexit.register(self._shut)
        except BaseException:
            # An interrupt too: whatever is half open is closed.
            self._shut()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        # The end is this thread's work, so that no interrupt, however often it is pressed, can leave half of it undone.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            self._loop.run_until_complete(asyncio.wait_for(self._stage.close(), CALL_LIMIT))
        self._stage.crew.abandon()  # whatever went wrong above: no worker and no server stays behind
        self._stage.broker.abandon()
        with contextlib.suppress(RuntimeError):
            # As asyncio.run does: nats-py leaves helpers of its own behind.
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        self._over.set()

    def __repr__(self) -> str:
        if self._closed:
            return "<Lab: closed>"
        replaced = "; it replaced the one that was open" if self._replaced else ""
        return f"<Lab: open, timing {self.timing.name!r}, nats-server {self._stage.broker.version}{replaced}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the bridge --------------------------------------------------------------------------------

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise MeetupqError("this call would wait for itself: from the lab's own thread use the stage's methods")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(CALL_LIMIT)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise MeetupqError(f"the lab did not answer within {CALL_LIMIT:g} s; is the broker up?") from None
        except (concurrent.futures.CancelledError, BrokerUnreachable) as error:
            # Closing cuts connections and cancels what is left; which of the two a call meets first is chance.
            if isinstance(error, BrokerUnreachable) and not self._closed:
                raise
            raise LabClosed("the lab was closed while this call was under way") from None
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _call(self, method: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
        self._check()
        return self._wait_for(method(*args, **options))

    def _check(self) -> None:
        """Raise what failed in the background since the last call; then whether the lab is closed."""
        self._raise_failures()
        if self._closed:
            raise LabClosed

    def _raise_failures(self) -> None:
        news = self._stage.failures[self._raised :]
        self._raised += len(news)
        if news:
            raise BackgroundFailure("; ".join(str(failure) for failure in news)) from news[0].error

    def press(self, action: str, *args: Any, **options: Any) -> None:
        """Do what a button says: hand `action`, the name of a method of the stage, over and return at once.

        Safe in any thread, and it never blocks; an error shows up as a red line in the panel.
        """
        if self._closed:
            return
        method: Callable[..., Awaitable[Any]] | None = getattr(self._stage, action, None)
        if method is None or action.startswith("_"):
            raise MeetupqError(f"the stage has no action {action!r}: press names one of its methods, such as 'kill'")
        what = " ".join([action, *map(str, args)])
        self._loop.call_soon_threadsafe(self._stage.attempt, lambda: method(*args, **options), what)

    # --- what happened -----------------------------------------------------------------------------

    @property
    def timing(self) -> Timing:
        """The durations in force."""
        return self._stage.timing

    @property
    def history(self) -> History:
        """All that happened. Raises what failed in the background, so that no check overlooks it."""
        self._raise_failures()
        return self._stage.history

    @property
    def failures(self) -> tuple[Failure, ...]:
        """All background failures so far."""
        return tuple(self._stage.failures)

    @property
    def closed(self) -> bool:
        return self._closed

    async def until(
        self,
        kind: Condition,
        job: str | None = None,
        worker: str | None = None,
        *,
        count: int = 1,
        within: float | None = None,
    ) -> Event:
        """Wait for an event; see `History.until`. The limit is, by default, long enough for any one job to die."""
        self._check()
        to_dead = sum(self.timing.of(priority).time_to_dead for priority in PRIORITIES)  # it may die as both
        limit = 10 + to_dead + self.timing.lease_ttl if within is None else within
        with _stoppable():
            return await self._stage.history.until(kind, job, worker, count=count, within=limit)

    async def pause(self, seconds: float) -> None:
        """Wait in a cell. Unlike a plain `asyncio.sleep` it ends at once when the cell is stopped."""
        with _stoppable():
            await asyncio.sleep(seconds)

    async def connect(self, name: str = "learner") -> Client:
        """A plain nats-py client of the lab's broker, for your own code, on the caller's loop. Close it yourself."""
        self._check()
        return await self._stage.broker.connect(name)

    # --- the queue half ----------------------------------------------------------------------------

    def publish(
        self,
        *jobs: str,
        count: int = 0,
        kind: str = "resize",
        priority: str = "high",
        seconds: float | None = None,
        ending: Ending = "ack",
        after: float = 0.0,
    ) -> list[str]:
        """Publish jobs by name, or `count` jobs named after their kind (resize-1, resize-2, ...); returns the names.

        Args:
            kind, priority: its subject is jobs.PRIORITY.KIND.
            seconds: how long the work takes; None: as the timing says.
            ending: what a worker does at the end of every attempt: "ack", fail in "silence", "nak", "reject" (copy to
                the dead letters, then terminate) or "term" (without a copy).
            after: the delay of a nak in seconds; only where the priority has no backoff.
        """
        job: dict[str, Any] = {"kind": kind, "priority": priority, "seconds": seconds, "ending": ending, "after": after}
        return self._call(self._stage.publish, *jobs, count=count, **job)

    def poison(self, *jobs: str, seconds: float | None = None) -> list[str]:
        """Publish a job that fails in silence at every attempt."""
        return self._call(self._stage.poison, *jobs, seconds=seconds)

    def slow(self, *jobs: str, seconds: float | None = None) -> list[str]:
        """Publish a job that takes longer than the broker's patience, half as long again if no `seconds` are given."""
        return self._call(self._stage.slow, *jobs, seconds=seconds)

    def summary(self) -> QueueSummary:
        """How many jobs are where, by the broker's own counts."""
        return self._call(self._stage.summary)

    def post_mortem(self, job: str) -> str:
        """How a job died: its deliveries, and the time it took beside what the timing adds up to."""
        return self._call(self._stage.post_mortem, job)

    def sweep(self) -> int:
        """Look for dead jobs now, without any worker's help. Returns how many were brought to the dead letters."""
        return self._call(self._stage.sweep)

    @property
    def sweeping(self) -> bool:
        """Whether the keeper sweeps by itself; set it to False to see what the advisory alone is worth."""
        return self._stage.sweeping

    @sweeping.setter
    def sweeping(self, wanted: bool) -> None:
        self._call(self._stage.set_keeper, sweeping=wanted)

    @property
    def burying(self) -> bool:
        """Whether the keeper moves what it hears of and finds; False shows a dead job as the broker leaves it."""
        return self._stage.burying

    @burying.setter
    def burying(self, wanted: bool) -> None:
        self._call(self._stage.set_keeper, burying=wanted)

    def letters(self, *, kind: str = "*", job: str = "*", worker: str = "*") -> list[DeadLetter]:
        """All dead letters, oldest first, or those whose kind, job and last worker fit these patterns ("resize-*")."""
        return self._call(self._stage.letters, kind=kind, job=job, worker=worker)

    def letter(self, job: str) -> DeadLetter:
        """The newest dead letter of a job.

        Raises:
            LetterUnknown: there is none.
        """
        return self._call(self._stage.letter, job)

    def redrive(self, number: int) -> str:
        """Put one dead letter back into the queue; returns the job's name."""
        return self._call(self._stage.redrive, number)

    def redrive_all(self, *, kind: str = "*", job: str = "*", worker: str = "*") -> list[str]:
        """Put all dead letters back into the queue, or those that fit these patterns; returns the jobs' names."""
        return self._call(self._stage.redrive_all, kind=kind, job=job, worker=worker)

    # --- the lease half ----------------------------------------------------------------------------

    def add_work(self, *items: str, seconds: float | None = None, steps: int = 10) -> list[str]:
        """Put up items of long work; returns those that were new. See `Stage.add_work`."""
        return self._call(self._stage.add_work, *items, seconds=seconds, steps=steps)

    def cancel_work(self, *items: str) -> list[str]:
        """Take items of work off the list; their owners stop with the next step. See `Stage.cancel_work`."""
        return self._call(self._stage.cancel_work, *items)

    def claims(self) -> list[Claim]:
        """The roster: who owns what, since when, for how long still, and how we know."""
        return self._call(self._stage.claims)

    def owner(self, item: str) -> str:
        """Who holds the lease on a work item now.

        Raises:
            LeaseError: nobody does.
        """
        for claim in self.claims():
            if claim.item == item and claim.state in ("held", "suspect"):
                return claim.owner
        raise LeaseError(f"nobody holds {item} at the moment: wait for the next claim, or put up work with add_work")

    @property
    def ledger(self) -> LedgerService:
        """What the long work has written so far: `ledger.fenced` and its twin without a fence, `ledger.unfenced`."""
        self._raise_failures()
        return self._stage.ledger

    async def trial(
        self, how: str, *, kills: int = 20, standbys: int = 3, others: int = 20, timing: Timing | None = None
    ) -> Trial:
        """Kill owners, and measure how late the next ones come. It has a bucket of its own, and takes some 3 TTLs.

        Args:
            how: the next owners learn of the end by "poll", "marker", "key_ttl" or "observe"; see `takeovers`.
            kills: how many owners die.
            standbys: how many wait for all of their leases.
            others: how many more leases are alive in the bucket.
            timing: whose leases are tried; None: the lab's.
        """
        self._check()
        settings: dict[str, Any] = {"kills": kills, "standbys": standbys, "others": others, "timing": timing}
        with _stoppable():
            trial = asyncio.run_coroutine_threadsafe(self._stage.trial(how, **settings), self._loop)
            try:
                return await asyncio.wrap_future(trial)
            except asyncio.CancelledError:
                if self._closed:
                    raise LabClosed("the lab was closed while this trial was under way") from None
                raise

    # --- the crew ----------------------------------------------------------------------------------

    def launch(
        self,
        *names: str,
        role: Role = "queue",
        priority: str = "high",
        heartbeats: bool = True,
        fixed: bool = False,
        prefetch: int = 1,
        takeover: str = "marker",
        slots: int = 1,
        process: bool = False,
    ) -> None:
        """Start workers; those at work already are left alone.

        Args:
            role: "queue" (takes jobs) or "leases" (lobbies for long work).
            priority: of the jobs that a worker of the queue takes.
            heartbeats: whether it tells the broker that it is still at it.
            fixed: whether its code has the bug mended, so that every job succeeds.
            prefetch: how many jobs it pulls at once.
            takeover: how a worker of the leases learns that one has ended: "poll", "marker", "key_ttl" or "observe".
            slots: how many leases it holds at once.
            process: whether it is a process of its own, which can be frozen, or a task in the lab's.
        """
        job: dict[str, Any] = {"priority": priority, "heartbeats": heartbeats, "fixed": fixed, "prefetch": prefetch}
        job |= {"takeover": takeover, "slots": slots, "process": process}
        self._call(self._stage.launch, *names, role=role, **job)

    def hire(self, role: Role = "queue") -> str:
        """Start one more worker, the next name of ada, bo, cy, ..."""
        return self._call(self._stage.hire, role)

    def heartbeats(self, name: str, on: bool) -> str:
        """Let a worker say "in progress" while it works, or not, from now on."""
        return self._call(self._stage.heartbeats, name, on)

    def prefetch(self, name: str, jobs: int) -> str:
        """How many jobs a worker pulls at once, from now on."""
        return self._call(self._stage.prefetch, name, jobs)

    def relaunch(self, name: str) -> str:
        """Start a worker again that was stopped or killed."""
        return self._call(self._stage.relaunch, name)

    def stop(self, name: str) -> str:
        """Ask a worker to finish what it holds and to end; returns at once."""
        return self._call(self._stage.stop, name)

    def kill(self, name: str) -> str:
        """Kill a worker in the middle of whatever it does."""
        return self._call(self._stage.kill, name)

    def freeze(self, name: str) -> str:
        """Let a worker that is a process of its own stand still, as a long pause of its machine would (SIGSTOP)."""
        return self._call(self._stage.freeze, name)

    def thaw(self, name: str) -> str:
        """Let a frozen worker go on, where it stood still (SIGCONT)."""
        return self._call(self._stage.thaw, name)

    def cut(self, name: str) -> str:
        """Take away the network between a worker and the broker; neither of them is told."""
        return self._call(self._stage.cut, name)

    def restore(self, name: str) -> str:
        """Give a worker its network back; what was sent meanwhile arrives now."""
        return self._call(self._stage.restore, name)

    def kill_all(self, role: Role | None = None) -> str:
        """Kill all workers (of a role)."""
        return self._call(self._stage.kill_all, role)

    # --- the views ---------------------------------------------------------------------------------

    def queue_panel(self, **size: Any) -> QueuePanel:
        """The work queue, live, with buttons. There is one per lab; showing it again shows the same one."""
        return self._panel(QueuePanel, size)

    def lease_panel(self, **size: Any) -> LeasePanel:
        """The leases, live, with buttons. There is one per lab; showing it again shows the same one."""
        return self._panel(LeasePanel, size)

    def letters_panel(self, **size: Any) -> LettersPanel:
        """The dead letters, live, with buttons. There is one per lab; showing it again shows the same one."""
        return self._panel(LettersPanel, size)

    def timers(self) -> TimerSliders:
        """Sliders for the timers of the leases, and what they would cost; they change nothing in this lab."""
        self._check()
        return TimerSliders(self.timing)

    def _panel(self, kind: type[P], size: dict[str, Any]) -> P:
        self._check()
        self._panels = [panel for panel in self._panels if not panel.ended]
        for panel in self._panels:
            if isinstance(panel, kind):
                return panel
        controls = Controls(
            press=self.press,
            timing=self.timing,
            failures=lambda: [str(failure) for failure in self._stage.failures],
            claims=self._stage.roster.claims,
            counted=lambda: self._stage.counted,
            letters=lambda: self._stage.letters_seen,
        )
        panel = kind(self._stage.history, controls, **size)
        self._panels.append(panel)
        return panel

    def _refresh_panels(self) -> None:
        for panel in self._panels:
            panel.refresh()

    # --- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """End workers, broker and thread, and remove the broker's folder. Twice does no harm.

        Raises:
            BackgroundFailure: after everything is closed, if something had failed that no call has raised yet.
        """
        self._shut()
        self._raise_failures()

    def _shut(self) -> None:
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            return  # a fork of the process that has the lab: its thread isn't here, and it is not ours to end
        if _open_labs.get(self.name) is self:
            del _open_labs[self.name]
        atexit.unregister(self._shut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        # Not a plain join: up to Python 3.11 one that is interrupted takes the thread for ended.
        if self._thread.ident and self._over.wait(2 * CALL_LIMIT):
            self._thread.join(CALL_LIMIT)
        for panel in self._panels:
            panel.freeze()


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Keep the running loop awake while a cell waits.

    ipykernel cancels an awaiting cell from its signal handler, which doesn't wake the loop: with nothing else to do,
    Jupyter's stop button would work only when the wait is over (seen with ipykernel 7.4).
    """
    loop = asyncio.get_running_loop()

    waiting = True

    def tick() -> None:
        if waiting:
            loop.call_later(0.1, tick)

    tick()
    try:
        yield
    finally:
        waiting = False
