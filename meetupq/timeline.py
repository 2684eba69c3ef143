"""The history, folded into what a person asks: which attempts had this job, who owned this work, what does ada do?

`Timeline` is the one reading of the events. Pictures, text twins, panels and verdicts all look at it, so they can't
disagree. It is fed events in the order of the history, all at once or as they come.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, pairwise
from math import inf
from operator import itemgetter
from typing import Final, Literal, NamedTuple, get_args

from meetupq.history import Event, History, events_of

JobState = Literal["waiting", "in flight", "retrying", "stuck", "dead", "terminated", "done"]
JOB_STATES: Final[tuple[JobState, ...]] = get_args(JobState)
JobStory = Literal["smooth", "fresh", "flying", "eventful"]
JOB_STORIES: Final[tuple[JobStory, ...]] = get_args(JobStory)
WorkerState = Literal["waiting", "working", "frozen", "cut off", "killed", "stopped"]
ItemState = Literal["free", "held", "suspect", "done", "cancelled"]
Cause = Literal["", "frozen", "cut", "killed"]
_AWAY: Final[dict[Cause, WorkerState]] = {"frozen": "frozen", "cut": "cut off", "killed": "killed"}


@dataclass(slots=True)
class Attempt:
    """One delivery of a job.

    Attributes:
        number: as the broker counts, from 1.
        worker: who got it.
        start: when it was delivered, seconds.
        until: when the broker's patience with this attempt ends (moved on by heartbeats).
        end: when the worker's part ended; None while it works.
        how: how it ended: "acked", "naked", "terminated", "failed" (the worker gave up and said nothing),
            "killed"; "timed_out" where the worker was still at it when the patience ran out; "" while it works.
        closed: when the broker stopped waiting for this attempt; None while it waits.
        beats: when the worker said that it is still at it.
        in_hand: whether it came while its worker had another one, pulled together with it, and so had to wait.
        begun: when the worker began, if it had pulled several jobs at once and this one waited in its hands.
    """

    number: int
    worker: str
    start: float
    until: float
    end: float | None = None
    how: str = ""
    closed: float | None = None
    beats: list[float] = field(default_factory=list)
    in_hand: bool = False
    begun: float | None = None

    def in_hand_until(self, now: float) -> float:
        """Until when it waited in its worker's hands before the work began; its `start` if it didn't."""
        if self.begun is not None:
            return max(self.begun, self.start)
        if not self.in_hand:
            return self.start
        return max(now if self.end is None else self.end, self.start)

    @property
    def open(self) -> bool:
        """Whether the broker still waits for this attempt."""
        return self.closed is None


@dataclass(slots=True)
class JobLine:
    """One job's life: a row of the picture of delivery attempts.

    Attributes:
        published, done: when; seconds.
        subject: where in the queue it is; "" if unknown.
        sequence: of its message in the stream, the newest one if it was put back; 0 if unknown.
        attempts: all its deliveries, those after a redrive included.
        exhausted: since when it has no attempt left, and `exhausted_source` who says so.
        dead: since when it is a dead letter, with `reason` and `deliveries`; None again after a redrive.
        deaths, redriven: every time that it became a dead letter, and was put back.
        escalated: every time that it moved on to a consumer with more patience.
        terminated: since when it is gone because a worker terminated it, without a copy.
        late: whether it was acked after the broker had given up on it.
        place: how many jobs were heard of before it.
        heard: how many events were about it: while that stays the same, so does all of this.
    """

    name: str
    published: float
    subject: str = ""
    sequence: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    exhausted: float | None = None
    exhausted_source: str = ""
    dead: float | None = None
    deaths: list[float] = field(default_factory=list)
    reason: str = ""
    deliveries: int = 0
    redriven: list[float] = field(default_factory=list)
    escalated: list[float] = field(default_factory=list)
    terminated: float | None = None
    done: float | None = None
    late: bool = False
    place: int = 0
    heard: int = 0

    @property
    def put_back(self) -> list[float]:
        """When it went into the queue again, with its attempts starting at 1."""
        return sorted([*self.redriven, *self.escalated])

    @property
    def state(self) -> JobState:
        """Where the job is: the states exclude each other, so their counts add up to the jobs published."""
        if self.done is not None:
            return "done"
        if self.dead is not None:
            return "dead"
        if self.terminated is not None:
            return "terminated"
        if self.exhausted is not None:
            return "stuck"
        if not self.attempts or max(self.put_back, default=-inf) > self.attempts[-1].start:
            return "waiting"
        return "in flight" if self.attempts[-1].open else "retrying"

    @property
    def story(self) -> JobStory:
        """What there is to tell of it: done at the first attempt, given to nobody yet, at its first one; or more."""
        if self.late or self.put_back or len(self.attempts) > 1:
            return "eventful"
        state = self.state
        if state == "done":
            return "smooth"
        if state == "waiting" and not self.attempts:
            return "fresh"
        return "flying" if state == "in flight" and self.attempts[0].end is None else "eventful"

    def attempt(self, number: int, worker: str) -> Attempt | None:
        """The latest attempt of this number by this worker, if it is known."""
        for attempt in reversed(self.attempts):
            if attempt.number == number and attempt.worker == worker:
                return attempt
        return None


class Progress(NamedTuple):
    """How far a work item is."""

    done: int
    steps: int

    def __str__(self) -> str:
        return f"{self.done} of {self.steps} steps"

    @property
    def percent(self) -> int:
        """Rounded down, so that 100 means done."""
        return min(100 * self.done // self.steps, 100)


@dataclass(slots=True)
class Ownership:
    """One stretch of time in which one worker held one lease.

    The lease's end and the owner's belief in it are two things: a frozen owner can't know that its lease is over, and
    one that was cut off gives up before it is.

    Attributes:
        worker: the owner.
        token: the revision of the claim, the fencing token; it grows from owner to owner.
        start: when it was claimed, seconds.
        until: the nominal expiry as of the last renewal that is known.
        renewals: when it was renewed.
        gone: when the owner was killed, frozen or cut off while it held the lease; None again if it is back in time.
        cause: which of the three it was: "killed", "frozen" or "cut".
        end: when the lease ended; None while it stands.
        how: "released", "finished" or "expired"; "superseded" where the next claim is all that is known, and "lost"
            where all that is known is that the owner found out.
        lost: when the owner itself found out that the lease is lost; None if it didn't.
        believed: until when the owner believed that the lease is its own; None while it does.
        reclaimed: whether this ownership took over from an owner whose lease had run out.
        progress_from, progress_to: how far the work was at the claim, and after this owner's last step.
    """

    worker: str
    token: int
    start: float
    until: float
    renewals: list[float] = field(default_factory=list)
    gone: float | None = None
    cause: Cause = ""
    end: float | None = None
    how: str = ""
    lost: float | None = None
    believed: float | None = None
    reclaimed: bool = False
    progress_from: Progress | None = None
    progress_to: Progress | None = None

    @property
    def is_zombie(self) -> bool:
        """Whether the lease is over and the owner doesn't know."""
        return self.end is not None and self.believed is None

    def believed_until(self, now: float) -> float:
        """Until when the owner believed in it, as far as is known at `now`."""
        return max(now if self.believed is None else self.believed, self.start)


@dataclass(slots=True)
class Write:
    """One write to the ledgers: the one without a fence takes every write.

    Attributes:
        at: when, seconds.
        worker, token, step: who wrote which step of the work, with which fencing token.
        stale: whether the ledger without a fence took it although a newer token had written: damage.
        refused: why the ledger with a fence refused it; "" if it didn't.
    """

    at: float
    worker: str
    token: int
    step: int
    stale: bool = False
    refused: str = ""


@dataclass(slots=True)
class ItemLine:
    """One work item's life: a row of the picture of lease ownership.

    Attributes:
        added, finished, cancelled: when; seconds.
        ownerships: all of them, by token.
        progress: how far it is; None if nobody has said.
        writes: what was written to the ledgers.
        place: how many items were heard of before it.
    """

    name: str
    added: float
    ownerships: list[Ownership] = field(default_factory=list)
    finished: float | None = None
    cancelled: float | None = None
    progress: Progress | None = None
    writes: list[Write] = field(default_factory=list)
    place: int = 0

    @property
    def owner(self) -> Ownership | None:
        """The ownership that stands, if one does."""
        return self.ownerships[-1] if self.ownerships and self.ownerships[-1].end is None else None

    @property
    def state(self) -> ItemState:
        if self.finished is not None:
            return "done"
        if self.cancelled is not None:
            return "cancelled"
        if self.owner is None:
            return "free"
        return "held" if self.owner.gone is None and self.owner.believed is None else "suspect"

    @property
    def ended(self) -> float | None:
        """When it was finished or cancelled."""
        return self.finished if self.finished is not None else self.cancelled


@dataclass(slots=True)
class Absence:
    """A stretch in which a worker was frozen, cut off or dead; `end` is None while it lasts."""

    start: float
    cause: Cause
    end: float | None = None


@dataclass(slots=True)
class WorkerLine:
    """What one worker does now.

    Attributes:
        role: "queue" or "leases", as whoever started it said; "" for an outsider.
        hired: all that was said about it then.
        state: what it does, `since` when.
        holds: the job or work item that it has, the latest one if it has several; `attempt` and `held_since` of it.
        leases: the ownerships in which it believes, by work item.
        stands_by: whether it has found nothing to claim and waits for the next lease to end.
        absences: when it was frozen, cut off or dead.
        process: whether it is an operating system process of its own.
        priority, heartbeats, prefetch: of a worker of the queue.
    """

    name: str
    role: str
    state: WorkerState
    since: float
    holds: str = ""
    attempt: int = 0
    held_since: float = 0.0
    priority: str = ""
    heartbeats: bool = True
    prefetch: int = 1
    hired: str = ""
    process: bool = False
    stands_by: bool = False
    leases: dict[str, Ownership] = field(default_factory=dict)
    absences: list[Absence] = field(default_factory=list)

    def absence(self, cause: Cause) -> Absence | None:
        """The one of this cause that lasts, if one does."""
        return next((a for a in reversed(self.absences) if a.cause == cause and a.end is None), None)


@dataclass(slots=True)
class Outage:
    """A stretch without a broker; `end` is None while it lasts."""

    start: float
    how: str
    end: float | None = None


class Timeline:
    """The fold of a history. `feed` it events in order; then read `jobs`, `items`, `workers`, `outages`.

    Attributes:
        by_state, by_story: the jobs again, by name; those that something was heard of last stand at the end, but
            those that wait stand in the order in which they came. Kept from event to event, so that a picture of ten
            jobs doesn't have to look at ten thousand.
        unended, ended: the work items again, by name: those that are finished or cancelled in the order in which they
            were.
        letters: whenever a job became a dead letter ("dead") or was put back ("redriven"), in the order of time.
    """

    def __init__(self, events: History | Iterable[Event] = ()) -> None:
        self.jobs: dict[str, JobLine] = {}
        self.by_state: dict[JobState, dict[str, JobLine]] = {state: {} for state in JOB_STATES}
        self.by_story: dict[JobStory, dict[str, JobLine]] = {story: {} for story in JOB_STORIES}
        self.letters: list[tuple[float, str, JobLine]] = []
        self.items: dict[str, ItemLine] = {}
        self.unended: dict[str, ItemLine] = {}
        self.ended: dict[str, ItemLine] = {}
        self.workers: dict[str, WorkerLine] = {}
        self.outages: list[Outage] = []
        self.last = 0.0
        self.seen = 0
        self._active: dict[str, None] = {}
        self._filed: dict[str, tuple[JobState, JobStory]] = {}
        self.feed(events_of(events))

    def feed(self, events: Iterable[Event]) -> None:
        """Take in the next events."""
        for event in events:
            self.seen += 1
            self.last = max(self.last, event.at)
            if fold := getattr(self, f"_on_{event.kind}", None):
                fold(event)
                if job := self.jobs.get(event.job):
                    self._file(job)
                if item := self.items.get(event.job):
                    here, there = (self.unended, self.ended) if item.ended is None else (self.ended, self.unended)
                    here[item.name] = item
                    there.pop(item.name, None)

    def _file(self, job: JobLine) -> None:
        """Something was heard of this job: bring `by_state` and `by_story` up to date."""
        job.heard += 1
        old, new = self._filed.get(job.name), (job.state, job.story)
        if old == new and new[0] == "waiting":
            return
        if old:
            del self.by_state[old[0]][job.name], self.by_story[old[1]][job.name]
        self.by_state[new[0]][job.name] = self.by_story[new[1]][job.name] = job
        self._filed[job.name] = new

    @property
    def counts(self) -> dict[JobState, int]:
        """How many jobs are in each state; the sum is the number of jobs that were published."""
        return {state: len(jobs) for state, jobs in self.by_state.items()}

    @property
    def moving(self) -> bool:
        """Whether the picture changes with time alone: an attempt or a lease is open, or a worker goes on in vain."""
        return (
            bool(self.by_state["in flight"])
            or any(item.owner is not None for item in self.unended.values())
            or any(item.owner is not None for item in islice(reversed(self.ended.values()), 20))
            or any(
                worker.leases or (worker.state == "working" and worker.holds in self.jobs)
                for worker in self.workers.values()
            )
        )

    def overdue(self, now: float) -> list[tuple[JobLine, Attempt]]:
        """The attempts for which the broker's patience has run out and nothing else was said yet."""
        late = []
        for name in self._active:
            job = self.jobs[name]
            late += [(job, attempt) for attempt in job.attempts[-1:] if attempt.open and attempt.until <= now]
        return late

    def holder(self, job: str) -> str:
        """The worker that had the job last; "" if none had it."""
        line = self.jobs.get(job)
        return line.attempts[-1].worker if line and line.attempts else ""

    def still_at_it(self, job: JobLine, attempt: Attempt) -> bool:
        """Whether the worker goes on with an attempt on which the broker has given up: it can't know."""
        worker = self.workers.get(attempt.worker)
        if worker is None or worker.state != "working" or attempt.how != "timed_out":
            return False
        return (worker.holds, worker.attempt) == (job.name, attempt.number)

    # --- the queue half ----------------------------------------------------------------------------

    def _job(self, event: Event) -> JobLine:
        if event.job not in self.jobs:
            self.jobs[event.job] = JobLine(event.job, event.at, place=len(self.jobs))
        return self.jobs[event.job]

    def _on_published(self, event: Event) -> None:
        # A fast worker can have the job before its publisher has the receipt.
        job = self._job(event)
        job.published = min(job.published, event.at)
        job.subject = event.detail
        job.sequence = max(job.sequence, event.revision)

    def _on_delivered(self, event: Event) -> None:
        job = self._job(event)
        if job.attempts and job.attempts[-1].open:
            # The broker gave it to somebody else: its patience with the last attempt is over, heard or not.
            self._close(job.attempts[-1], event.at)
        attempt = Attempt(event.attempt, event.worker, event.at, event.until)
        attempt.in_hand = self._is_busy(event.worker)
        if 0 < job.sequence < event.revision:
            # A message that we have not heard of: it was put back, and a fast worker has it before that is told.
            self._begin_anew(job)
            job.done = None
        job.attempts.append(attempt)
        job.sequence = max(job.sequence, event.revision)
        self._active[job.name] = None
        self._hold(event)

    def _on_begun(self, event: Event) -> None:
        if attempt := self._job(event).attempt(event.attempt, event.worker):
            attempt.begun = event.at
            self._hold(event)

    def _on_progressed(self, event: Event) -> None:
        if attempt := self._job(event).attempt(event.attempt, event.worker):
            attempt.beats.append(event.at)
            attempt.until = max(attempt.until, event.until)

    def _on_acked(self, event: Event) -> None:
        job = self._job(event)
        self._end(job, event, "acked")
        if self._is_past(job, event):
            return
        late = job.exhausted is not None or job.dead is not None or bool(job.attempts and job.attempts[-1].open)
        job.late = job.late or late
        if job.dead is None:
            job.done = job.done if job.done is not None else event.at
            self._active.pop(job.name, None)

    def _on_naked(self, event: Event) -> None:
        self._end(self._job(event), event, "naked", closes=True)

    def _on_terminated(self, event: Event) -> None:
        job = self._job(event)
        attempt = job.attempt(event.attempt, event.worker)
        if attempt and attempt.closed == job.dead:
            attempt.closed = None  # its worker wrote the dead letter itself: the broker waited until this moment
        self._end(job, event, "terminated", closes=True)
        if self._is_past(job, event) or (attempt and attempt.start < max(job.put_back, default=-inf)):
            return
        if job.dead is None and job.done is None:
            job.terminated = event.at
        self._active.pop(job.name, None)

    def _on_failed(self, event: Event) -> None:
        self._end(self._job(event), event, "failed", closes=False)

    def _on_timed_out(self, event: Event) -> None:
        job = self._job(event)
        attempt = job.attempt(event.attempt, event.worker)
        if attempt and attempt.open:
            self._close(attempt, event.at)

    def _on_exhausted(self, event: Event) -> None:
        job = self._job(event)
        if job.done is None and job.dead is None and not self._is_past(job, event):
            job.exhausted = job.exhausted if job.exhausted is not None else event.at
            # What the broker says counts more than what was inferred.
            job.exhausted_source = "broker" if "broker" in (event.source, job.exhausted_source) else event.source
            if job.attempts and job.attempts[-1].open:
                self._close(job.attempts[-1], event.at)
            self._active.pop(job.name, None)

    def _on_dead_lettered(self, event: Event) -> None:
        job = self._job(event)
        # The letter stands, so an ack that a worker thinks it got came too late for the broker.
        job.done = None
        job.dead, job.reason, job.deliveries = event.at, event.detail, event.attempt
        job.deaths.append(event.at)
        insort(self.letters, (event.at, "dead", job), key=itemgetter(0))
        job.exhausted = job.exhausted if job.exhausted is not None else event.at
        if job.attempts and job.attempts[-1].open:
            self._close(job.attempts[-1], event.at)
        self._active.pop(job.name, None)

    def _on_redriven(self, event: Event) -> None:
        job = self._job(event)
        job.redriven.append(event.at)
        insort(self.letters, (event.at, "redriven", job), key=itemgetter(0))
        self._start_again(event)

    def _on_escalated(self, event: Event) -> None:
        job = self._job(event)
        job.escalated.append(event.at)
        job.subject = event.detail
        job.sequence = max(job.sequence, event.revision)
        for attempt in job.attempts:
            if attempt.open and attempt.start < event.at:
                self._close(attempt, event.at)
        self._start_again(event)

    def _start_again(self, event: Event) -> None:
        job = self._job(event)
        self._begin_anew(job)
        if job.done is not None and job.done < event.at:  # a fast worker can be done before the redrive is written down
            job.done = None

    @staticmethod
    def _begin_anew(job: JobLine) -> None:
        """It is in the queue again: how its earlier message ended no longer counts."""
        job.dead = job.exhausted = job.terminated = None
        job.exhausted_source, job.late = "", False

    def _on_late_success(self, event: Event) -> None:
        job = self._job(event)
        job.late, job.dead = True, None  # of whichever message: its copies were taken back
        job.done = job.done if job.done is not None else event.at
        self._active.pop(job.name, None)

    @staticmethod
    def _is_past(job: JobLine, event: Event) -> bool:
        """Whether the event is about the message that the job was before it was put back."""
        return 0 < event.revision < job.sequence

    def _end(self, job: JobLine, event: Event, how: str, closes: bool = True) -> None:
        attempt = job.attempt(event.attempt, event.worker)
        if attempt:
            if attempt.end is None or attempt.how == "timed_out":
                attempt.end, attempt.how = event.at, how
            if closes and attempt.open:
                attempt.closed = event.at
        self._let_go(event.worker, event.job, event.at)

    @staticmethod
    def _close(attempt: Attempt, at: float) -> None:
        attempt.closed = min(at, attempt.until) if attempt.until > attempt.start else at
        if attempt.end is None:
            attempt.end, attempt.how = attempt.closed, "timed_out"

    # --- the lease half ----------------------------------------------------------------------------

    def _item(self, event: Event) -> ItemLine:
        if event.job not in self.items:
            self.items[event.job] = ItemLine(event.job, event.at, place=len(self.items))
        return self.items[event.job]

    def _owned(self, event: Event) -> Ownership | None:
        """The ownership that the event is about: by its token, or else the latest by its worker."""
        for ownership in reversed(self._item(event).ownerships):
            if event.revision == ownership.token or (not event.revision and event.worker == ownership.worker):
                return ownership
        return None

    def _on_added(self, event: Event) -> None:
        item = self._item(event)
        if item.ended is not None and item.ended < event.at:  # the same name once more
            item.finished = item.cancelled = item.progress = None

    def _on_claimed(self, event: Event, reclaimed: bool = False) -> None:
        item = self._item(event)
        own = Ownership(event.worker, event.revision, event.at, event.until, reclaimed=reclaimed)
        own.progress_from = own.progress_to = item.progress
        # By token: what a process says may come after what the next owner says.
        place = len(item.ownerships)
        while place and 0 < own.token < item.ownerships[place - 1].token:
            place -= 1
        item.ownerships.insert(place, own)
        worker = self._hold(event)
        if (former := worker.leases.get(event.job)) is not None:
            former.believed = event.at  # its own, from before
        worker.leases[event.job] = own
        for absence in worker.absences:
            if absence.end is None and own.gone is None:
                self._miss(own, absence.start, absence.cause)
        if own.believed is not None:  # told after its death
            del worker.leases[event.job]
        for earlier, later in pairwise(item.ownerships[max(place - 1, 0) : place + 2]):
            if earlier.end is None:
                # Somebody else has the key, so this ownership has ended; how is for a later event to say.
                self._end_lease(earlier, min(later.start, max(earlier.until, earlier.start)), "superseded")

    def _on_reclaimed(self, event: Event) -> None:
        self._on_claimed(event, reclaimed=True)

    def _on_renewed(self, event: Event) -> None:
        own = self._owned(event)
        if own and own.end is None:
            own.renewals.append(event.at)
            own.until = max(own.until, event.until)

    def _on_released(self, event: Event) -> None:
        self._give_back(event, "released")

    def _on_finished(self, event: Event) -> None:
        self._item(event).finished = event.at
        self._on_checkpointed(event)
        self._give_back(event, "finished")

    def _give_back(self, event: Event, how: str) -> None:
        own = self._owned(event)
        if own and (own.end is None or own.how == "superseded" or (own.how, how) == ("released", "finished")):
            self._end_lease(own, event.at, how)
        self._disbelieve(event, own)

    def _on_expired(self, event: Event) -> None:
        own = self._owned(event)
        if own and (own.end is None or own.how in ("superseded", "lost")):
            self._end_lease(own, event.at, "expired")

    def _on_lost(self, event: Event) -> None:
        own = self._owned(event)
        if own:
            own.lost = event.at
            # An owner that gives up in time leaves its lease behind: that ends at its own time.
            if own.end is None and event.at >= own.until:
                self._end_lease(own, own.until if own.until > own.start else event.at, "lost")
        self._disbelieve(event, own)

    def _on_cancelled(self, event: Event) -> None:
        item = self._item(event)
        item.cancelled = event.at if item.finished is None else None

    def _on_lobbied(self, event: Event) -> None:
        self._worker(event).stands_by = True

    def _on_checkpointed(self, event: Event) -> None:
        item, own = self._item(event), self._owned(event)
        told = re.match(r"(\d{1,9}) of ([1-9]\d{0,8})\b", event.detail)
        if not told:
            return
        progress = Progress(int(told[1]), int(told[2]))
        item.progress = max(item.progress or progress, progress)
        if own:
            own.progress_to = progress
        for later in item.ownerships[-1:]:
            if later is not own and event.at <= later.start:  # told late
                later.progress_from, later.progress_to = item.progress, max(later.progress_to or progress, progress)

    def _on_written(self, event: Event) -> None:
        write = self._write(event)
        write.at, write.stale = event.at, event.detail.startswith("stale")

    def _on_fenced(self, event: Event) -> None:
        self._write(event).refused = event.detail or "refused"

    def _write(self, event: Event) -> Write:
        """The write that both ledgers speak of; who writes believes that it may."""
        item, own = self._item(event), self._owned(event)
        if own and own.believed is not None:
            own.believed = max(own.believed, event.at)
        told = (event.worker, event.revision, event.attempt)
        for write in reversed(item.writes[-8:]):
            if (write.worker, write.token, write.step) == told:
                return write
        item.writes.append(Write(event.at, *told))
        return item.writes[-1]

    def _end_lease(self, own: Ownership, at: float, how: str) -> None:
        own.end, own.how = at if own.end is None else min(own.end, at), how
        worker = self.workers[own.worker]
        if own.believed is None and how in ("expired", "superseded") and not (own.cause or worker.role):
            own.believed = own.end  # of an outsider nobody tells us what it believes
            self._drop(worker, own, own.end)

    def _disbelieve(self, event: Event, own: Ownership | None) -> None:
        """The worker knows that it has the lease no more."""
        if own:
            own.believed = event.at if own.cause != "killed" or own.believed is None else own.believed
            self._drop(self.workers[own.worker], own, event.at)

    def _drop(self, worker: WorkerLine, own: Ownership, at: float) -> None:
        for item in [name for name, held in worker.leases.items() if held is own]:
            del worker.leases[item]
            self._let_go(worker.name, item, at)

    @staticmethod
    def _miss(own: Ownership, at: float, cause: Cause) -> None:
        own.gone, own.cause = max(at, own.start), cause
        if cause == "killed":
            own.believed = own.gone

    # --- workers and broker ------------------------------------------------------------------------

    def _worker(self, event: Event) -> WorkerLine:
        if event.worker not in self.workers:
            self.workers[event.worker] = WorkerLine(event.worker, "", "waiting", event.at)
        return self.workers[event.worker]

    def _is_busy(self, name: str) -> bool:
        """Whether a worker that pulls several jobs at once has one already."""
        worker = self.workers.get(name)
        if worker is None or worker.prefetch == 1 or worker.holds not in self.jobs:
            return False
        held = self.jobs[worker.holds].attempt(worker.attempt, name)
        return held is not None and held.end is None

    def _hold(self, event: Event) -> WorkerLine:
        worker = self._worker(event)
        if worker.state in ("waiting", "working"):
            worker.state, worker.since = "working", event.at
        worker.holds, worker.attempt, worker.held_since = event.job, event.attempt, event.at
        worker.stands_by = False
        return worker

    def _let_go(self, name: str, job: str, at: float) -> None:
        worker = self.workers.get(name)
        if worker and worker.holds == job:
            worker.holds = next(reversed(worker.leases), "")
            if worker.state == "working" and not worker.holds:
                worker.state, worker.since = "waiting", at

    def _become(self, event: Event, state: WorkerState) -> WorkerLine:
        worker = self._worker(event)
        worker.state, worker.since = state, event.at
        return worker

    def _on_started(self, event: Event) -> None:
        self._forget(event)
        worker = self._become(event, "waiting")
        worker.hired, worker.process = event.detail, event.detail.endswith(", process")
        if role := re.match(r"\w+", event.detail):
            worker.role = role[0]
        worker.attempt = 0
        self._on_tuned(event)

    def _on_tuned(self, event: Event) -> None:
        """The words are those of `hiring`: "queue high, heartbeats on, prefetch 1", and ", process" if it is one."""
        worker = self._worker(event)
        words = r"queue (\w+), heartbeats (on|off), prefetch (\d{1,3})(?:, process)?"
        if told := re.fullmatch(words, event.detail):
            worker.priority, worker.heartbeats, worker.prefetch = told[1], told[2] == "on", int(told[3])

    def _on_stopped(self, event: Event) -> None:
        self._forget(event)
        self._become(event, "stopped")

    def _forget(self, event: Event) -> None:
        """The worker ends, or is a new one of that name: it believes in nothing any more."""
        worker = self._worker(event)
        for own in worker.leases.values():
            own.believed = max(event.at, own.start)
        worker.leases.clear()
        worker.holds, worker.stands_by = "", False
        for absence in worker.absences:
            absence.end = max(event.at, absence.start) if absence.end is None else absence.end

    def _on_killed(self, event: Event) -> None:
        worker = self._worker(event)
        # What it holds may be settled already, by somebody else's late ack.
        for name in self._active | ({worker.holds: None} if worker.holds in self.jobs else {}):
            for attempt in self.jobs[name].attempts:
                if attempt.worker == event.worker and attempt.end is None:
                    attempt.end, attempt.how = event.at, "killed"
                    self._file(self.jobs[name])
        held, owned = worker.holds, list(worker.leases.values())
        self._forget(event)
        self._become(event, "killed").holds = held
        worker.absences.append(Absence(event.at, "killed"))
        for own in owned:
            if own.end is None and own.gone is None:
                self._miss(own, event.at, "killed")

    def _on_frozen(self, event: Event) -> None:
        self._go(event, "frozen")

    def _on_cut(self, event: Event) -> None:
        self._go(event, "cut")

    def _on_thawed(self, event: Event) -> None:
        self._back(event, "frozen")

    def _on_restored(self, event: Event) -> None:
        self._back(event, "cut")

    def _go(self, event: Event, cause: Cause) -> None:
        worker = self._become(event, _AWAY[cause])
        if worker.absence(cause) is None:
            worker.absences.append(Absence(event.at, cause))
        for own in worker.leases.values():
            if own.end is None and own.gone is None:
                self._miss(own, event.at, cause)

    def _back(self, event: Event, cause: Cause) -> None:
        worker = self._worker(event)
        if absence := worker.absence(cause):
            absence.end = max(event.at, absence.start)
        if worker.state in ("killed", "stopped"):
            return
        still = next((absence for absence in worker.absences if absence.end is None), None)
        for own in worker.leases.values():
            # Back in time: the lease has not run out yet.
            if own.end is None and (event.at < own.until or not own.until):
                own.gone, own.cause = (max(still.start, own.start), still.cause) if still else (None, "")
        self._become(event, _AWAY[still.cause] if still else "working" if worker.holds else "waiting")

    def _on_broker_started(self, event: Event) -> None:
        if self.outages and self.outages[-1].end is None:
            self.outages[-1].end = event.at

    def _on_broker_stopped(self, event: Event) -> None:
        self.outages.append(Outage(event.at, "stopped"))

    def _on_broker_killed(self, event: Event) -> None:
        self.outages.append(Outage(event.at, "killed"))
