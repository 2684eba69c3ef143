"""The two pictures: who was given which job and how that ended, and who owned which work and for how long.

`DeliveryPicture` and `LeasePicture` are live: `update` them, then take a `png`. `delivery_attempts` and
`lease_ownership` draw the same pictures once.

In both a row is one job or work item. A bar is one worker's turn in the worker's colour. A tail is the time after it,
in which nothing happens because the broker still waits: faint for a job, hatched for a lease. A mark says how a turn
ended; the dashed outline right of "now" is the time that the broker still grants.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import Final

from matplotlib.figure import Figure

from meetupq.canvas import BADGE, EDGE, INK, MARKS, MUTED, Picture, Row, Told, delays, fit, last_heard, plain, told
from meetupq.timeline import Attempt, ItemLine, JobLine, JobState, Ownership

_FOLDED_FIRST: Final[tuple[JobState, ...]] = (
    "done", "terminated", "dead", "waiting", "retrying", "stuck", "in flight"
)  # fmt: skip


class DeliveryPicture(Picture):
    """The live picture of delivery attempts: a row per job, a bar per attempt, and the DLQ at the bottom."""

    title = "Delivery attempts"
    subtitle = (
        "a bar = one attempt in its worker's colour · faint = the broker still waits · dashed = until it gives up"
    )
    nothing = "nothing published yet"

    def _choose_rows(self) -> tuple[list[str], str]:
        jobs = list(self._timeline.jobs.values())
        self._dlq = any(job.deaths or job.redriven for job in jobs)
        room = max(1, self._most_rows - self._dlq)
        # A long queue must not push out all that happened: its end is folded away even before finished jobs.
        queue = {name: place for place, name in enumerate(job.name for job in jobs if job.state == "waiting")}

        def rank(job: JobLine) -> tuple[float, float]:
            if job.state in ("done", "dead", "terminated") and last_heard(job) < self._start:
                return -inf, 0
            if job.state == "waiting":
                place = queue[job.name]
                return -1 if place >= max(room // 4, 1) else _FOLDED_FIRST.index("waiting"), -place
            return _FOLDED_FIRST.index(job.state), last_heard(job)

        self._jobs, folded = self._fold(jobs, room, rank, "job")
        return [job.name for job in self._jobs] + ["DLQ"] * self._dlq, folded

    def _draw_rows(self) -> None:
        if self._dlq:
            # At the very bottom from the start, so that it stays where it is when more jobs come.
            self._ys[-1] = self._bottom - self._pitch / 2
        letters = [(at, "dead", job) for job in self._timeline.jobs.values() for at in job.deaths]
        letters += [(at, "redriven", job) for job in self._timeline.jobs.values() for at in job.redriven]
        letters = sorted((letter for letter in letters if self._inside(letter[0])), key=lambda letter: letter[0])
        row_of = {job.name: y for job, y in zip(self._jobs, self._ys, strict=False)}
        falls = [(self._x(at), row_of[job.name]) for at, _, job in letters if job.name in row_of]
        for x, y in falls:
            self._stroke("fall", "#BE6B7F", x, y + self._bar / 2, x, self._ys[-1])
        if self._dlq:
            self._draw_dlq(letters, self._row(self._ys[-1]))
        for job in self._jobs:
            row = self._row(row_of[job.name])
            crossing = [(x - 3, x + 3) for x, top in falls if top < row.y]
            row.obstacles += crossing
            row.above += crossing
            self._draw_job(job, row)

    def _draw_dlq(self, letters: Sequence[tuple[float, str, JobLine]], row: Row) -> None:
        self._stroke("plate", "#FBF0F2", self._left, row.y, self._right, row.y)
        row.obstacles += [(self._x(at) - 10, self._x(at) + 10) for at, _, _ in letters]
        # The newest letters get their words first; the rest as far as there is room, left or right of the mark.
        for at, kind, job in reversed(letters):
            x, name, what = self._x(at), fit(plain(job.name), 120), kind
            if kind == "dead" and at == job.deaths[-1]:
                what = f"after {job.deliveries} deliver{'y' if job.deliveries == 1 else 'ies'}"
            self._mark(kind, x, row.y)
            self._note(x, row.y, (f"{name} {what}", name), MARKS[kind][1], row.obstacles)

    def _draw_job(self, job: JobLine, row: Row) -> None:
        for begin in (job.published, *job.put_back):
            taken = next((a.start for a in job.attempts if a.start >= begin), None)
            if (taken is None and job.state == "waiting") or (taken and self._x(taken) - self._x(begin) > 18):
                self._draw_wait(begin, self._now if taken is None else taken, "waiting", row.y)
        attempts = [a for a in job.attempts if max(a.end or 0, self._now if a.open else a.closed or 0) >= self._start]
        for attempt, after in zip(attempts, [*attempts[1:], None], strict=False):
            self._draw_attempt(attempt, self._right if after is None else self._x(after.start), row)
        if job.state == "stuck" and job.exhausted is not None:
            x = max(self._x(job.exhausted), row.taken) + 11
            self._mark("stuck", x, row.y)
            self._note(x + 1, row.y, ("exhausted, still in the queue", "stuck"), MARKS["stuck"][1], row.obstacles)

    def _draw_attempt(self, a: Attempt, following: float, row: Row) -> None:
        """A bar while the worker is at it and the broker hears it, a tail while the broker waits for no one."""
        colour = self._colour(a.worker)
        end = max(self._now if a.end is None else a.end, a.start)
        heard = end if a.closed is None else max(min(end, a.closed), a.start)
        waited = max(min(self._now, a.until) if a.closed is None else a.closed, end)
        x0, x1, x_tail = self._x(a.start), self._x(heard), self._x(waited)
        self._draw_bar(colour, x0, x1, row.y, a.beats)
        how, mark = a.how, None
        if end > heard:
            # It went on after the broker had given up on it: a thin strip below, for the row may be taken again.
            strip = row.y + self._bar / 2 + 2
            self._stroke("late", colour, x1, strip, self._x(end), strip)
            if self._inside(end):
                self._mark(a.how, self._x(end) + 10, strip - 7)
            how = "timed_out"
        elif x_tail > x1:
            self._draw_tail(colour, x1, x_tail, row.y)
            if a.closed is not None:
                self._draw_limit(x_tail, row)
        if a.open:
            self._draw_patience(max(self._now, end), a.until, row)
        worker = self._timeline.workers[a.worker]
        if how and self._inside(heard):
            mark = self._end_mark(how, x0, x1, following, row.y)
        elif worker.state in ("frozen", "cut off") and self._inside(worker.since):
            mark = max(self._x(worker.since), x0)
            self._mark(worker.state.removesuffix(" off"), mark, row.y)
        inner = max(x0, row.taken), x1 if mark is None else min(x1, mark - BADGE / 2)
        row.taken = max(row.taken, x1, x0 + 3, 0 if mark is None else mark + BADGE / 2)
        # Of an attempt under way also the time to come is free, before or behind its end.
        ahead = [self._x(self._now) + 6, self._x(a.until) + 6] if a.open else []
        starts = [x for x in (row.taken + 4, *ahead) if x >= row.taken]
        self._caption(row, colour, str(a.number), f"{a.number}  {plain(a.worker)}", inner, starts, following)


ENDED_BY_TTL: Final = ("expired", "superseded")


class LeasePicture(Picture):
    """The live picture of lease ownership: a row per work item, a bar per ownership, the roster at the right edge."""

    title = "Lease ownership"
    subtitle = "ticks = renewals · hatched = owner gone, lease still stands · r = revision, the fencing token"
    nothing = "no work items yet"
    right_margin, least_pitch = 200.0, 34.0

    def _choose_rows(self) -> tuple[list[str], str]:
        def rank(item: ItemLine) -> tuple[float, float]:
            if item.finished is not None:
                return 0 if item.finished >= self._start else -inf, item.finished
            return ("free", "held", "suspect").index(item.state) + 1, -item.added

        self._items, folded = self._fold(list(self._timeline.items.values()), self._most_rows, rank, "item")
        return [item.name for item in self._items], folded

    def _draw_rows(self) -> None:
        if self._items:
            self._text(self._right + 34, self._top - 13, "owner", MUTED)
            self._text(self.width - EDGE, self._top - 13, "expires in", MUTED, align="right")
        for item, y in zip(self._items, self._ys, strict=True):
            row = self._row(y)
            if not item.ownerships:
                self._draw_wait(item.added, self._now, "free", y)
            # No words across a mark that comes later in the row.
            ends = [self._x(own.end) for own in item.ownerships if own.end is not None and own.how in ENDED_BY_TTL]
            row.above += [(x - 10, x + 10) for x in ends]
            for own, after in zip(item.ownerships, [*item.ownerships[1:], None], strict=False):
                if (self._now if own.end is None else own.end) >= self._start:
                    self._draw_ownership(own, after, row)
            self._draw_roster(item, y)

    def _draw_ownership(self, own: Ownership, after: Ownership | None, row: Row) -> None:
        """A bar while the owner lives and holds the lease, a hatched tail while the lease outlives it."""
        colour = self._colour(own.worker)
        end = max(self._now if own.end is None else own.end, own.start)
        alive = end if own.gone is None else min(max(own.gone, own.start), end)
        stands = max(min(self._now, own.until), alive) if own.end is None else end
        x0, x1, x_end = self._x(own.start), self._x(alive), self._x(end)
        following = self._right if after is None else self._x(after.start)
        self._draw_bar(colour, x0, x1, row.y, own.renewals)
        if own.gone is not None:
            self._draw_hatch(colour, x1, self._x(stands), row.y)
            if self._inside(alive):
                self._mark(own.cause, x1, row.y)
        if own.end is None:
            self._draw_patience(max(self._now, alive), own.until, row)
        ahead = [self._x(self._now) + 6, self._x(own.until) + 6] if own.end is None and own.gone is None else []
        inner = x0, x1 - (BADGE / 2 if own.gone is not None else 0)
        full = f"{fit(plain(own.worker), 120, bold=True)} · r{own.token}"
        self._caption(row, colour, f"r{own.token}", full, inner, [x for x in ahead if x > x1], following)
        if own.how in ENDED_BY_TTL and self._inside(end):
            self._draw_expiry(own, after, x_end, row)
        elif own.how and self._inside(end):
            mark = self._end_mark(own.how, x0, x_end, following, row.y)
            taken = [*row.obstacles, (self._left, mark), (following - 4, self._right)]
            self._note(mark - 1, row.y, (own.how,), MARKS[own.how][1], taken)

    def _draw_hatch(self, colour: str, x0: float, x1: float, y: float) -> None:
        """A faint box with diagonal lines, cut off at its edges."""
        self._draw_tail(colour, x0, x1, y, white=0.82)
        foot = y + self._bar / 2
        for step in range(ceil((x1 - x0 + self._bar) / 7)):
            base = x0 - self._bar + 7 * step
            left, right = max(base, x0), min(base + self._bar, x1)
            self._stroke("hatch", colour, left, foot - (left - base), right, foot - (right - base))

    def _draw_expiry(self, own: Ownership, after: Ownership | None, x: float, row: Row) -> None:
        """The expiry mark in the lane above the bars, and beside it how long the item had no living owner."""
        lane = row.y - self._bar / 2 - 8
        self._mark("expired", x, lane)
        late = "" if after is None else delays(own, after)
        choice = (
            ("expired",) if after is None else (f"reclaimed {late}", late, delays(own, after, brief=True), "reclaimed")
        )
        self._note(x, lane, choice, INK, row.above)

    def _draw_roster(self, item: ItemLine, y: float) -> None:
        left, right, owner = self._right + 34, self.width - EDGE, item.owner
        if owner is None:
            words = "finished" if item.state == "done" else "free"
            self._mark(words, left - 13, y)
            self._text(left, y, words, MARKS[words][1], bold=True)
            return
        remaining = owner.until - self._now
        if owner.gone is not None:
            self._mark(owner.cause, left - 13, y)
        else:
            self._stroke("swatch", self._colour(owner.worker), left - 19, y, left - 7, y)
        self._text(left, y, fit(plain(owner.worker), right - left - 62, bold=True), INK, bold=True)
        colour = INK if owner.gone is None and remaining > 0 else MARKS["killed"][1]
        self._text(right, y, f"{remaining:.1f} s" if remaining > 0 else "due", colour, align="right", bold=True)


def delivery_attempts(
    events: Told, *, now: float | None = None, width: int = 960, height: int | None = None, pixel_ratio: float = 1.0
) -> Figure:
    """The picture of delivery attempts as a figure, drawn once.

    Args:
        events: a history, events in their order, or a timeline.
        now: the moment to draw, seconds; None means that of the last event.
        width, height: in CSS pixels; without a height it follows from the number of rows.
        pixel_ratio: device pixels per CSS pixel.
    """
    timeline, moment = told(events, now)
    height = height or _height(len(timeline.jobs) + 1)
    return DeliveryPicture(width=width, height=height, pixel_ratio=pixel_ratio).as_figure(timeline, moment)


def lease_ownership(
    events: Told, *, now: float | None = None, width: int = 960, height: int | None = None, pixel_ratio: float = 1.0
) -> Figure:
    """The picture of lease ownership as a figure, drawn once; the arguments are those of `delivery_attempts`."""
    timeline, moment = told(events, now)
    height = height or _height(len(timeline.items))
    return LeasePicture(width=width, height=height, pixel_ratio=pixel_ratio).as_figure(timeline, moment)


def _height(rows: int) -> int:
    return min(max(128 + rows * 44, 300), 820)
