"""The two pictures: who was given which job and how that ended, and who owned which work and for how long.

`DeliveryPicture` and `LeasePicture` are live: `update` them, then take a `png`. `delivery_attempts` and
`lease_ownership` draw the same pictures once.

In both a row is one job or work item. A bar is one worker's turn in the worker's colour. A tail is the time after it,
in which nothing happens because the broker still waits: faint for a job, hatched for a lease. A mark says how a turn
ended; the dashed outline right of "now" is the time that the broker still grants.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice, takewhile
from math import ceil
from operator import itemgetter
from typing import Final

from matplotlib.figure import Figure

from meetupq.canvas import (
    BADGE,
    EDGE,
    INK,
    MARKS,
    MUTED,
    WHITE,
    Picture,
    Row,
    Told,
    delays,
    fit,
    last_heard,
    plain,
    text_width,
    told,
)
from meetupq.timeline import Attempt, ItemLine, JobLine, Ownership

_TOLD_LETTERS: Final = 30
"""Of so many letters the words are tried; there is never room for more."""


class DeliveryPicture(Picture):
    """The live picture of delivery attempts: a row per job, a bar per attempt, and the DLQ at the bottom."""

    title = "Delivery attempts"
    subtitle = (
        "a bar = one attempt in its worker's colour · faint = the broker still waits · dashed = until it gives up"
    )
    nothing = "nothing published yet"

    def _choose_rows(self) -> tuple[list[str], str]:
        self._dlq = bool(self._timeline.letters)
        room = max(1, self._most_rows - self._dlq)
        of = {state: jobs.values() for state, jobs in self._timeline.by_state.items()}
        # A long queue must not push out all that happened: its end comes after even the finished jobs.
        queue = max(room // 4, 1)
        first: list[Iterable[JobLine]] = [reversed(of[state]) for state in ("in flight", "stuck", "retrying")]
        first += [islice(of["waiting"], queue)]
        first += [takewhile(self._recent, reversed(of[state])) for state in ("dead", "terminated", "done")]
        shown = islice(chain(*first, islice(of["waiting"], queue, None)), room)
        self._jobs = sorted(shown, key=lambda job: job.place)
        counted = Counter[str](self._timeline.counts)
        counted.subtract(job.state for job in self._jobs)
        return [job.name for job in self._jobs] + ["DLQ"] * self._dlq, self._not_shown(counted, "job")

    def _recent(self, job: JobLine) -> bool:
        return last_heard(job) >= self._start

    def _draw_rows(self) -> None:
        if self._dlq:
            # At the very bottom from the start, so that it stays where it is when more jobs come.
            self._ys[-1] = self._bottom - self._pitch / 2
        known = self._timeline.letters
        seen = (bisect_left(known, self._start, key=itemgetter(0)), bisect_right(known, self._stop, key=itemgetter(0)))
        letters = known[slice(*seen)]
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
        for number, (at, kind, job) in enumerate(reversed(letters)):
            x, what = self._x(at), kind
            self._mark(kind, x, row.y)
            if kind == "dead" and at == job.deaths[-1]:
                what = f"after {job.deliveries} deliver{'y' if job.deliveries == 1 else 'ies'}"
            if number < _TOLD_LETTERS:
                name = fit(plain(job.name), 120)
                self._note(x, row.y, (f"{name} {what}", name), MARKS[kind][1], row.obstacles)

    def _draw_job(self, job: JobLine, row: Row) -> None:
        for begin in (job.published, *job.put_back):
            taken = next((a.start for a in job.attempts if a.start >= begin), None)
            if (taken is None and job.state == "waiting") or (taken and self._x(taken) - self._x(begin) > 18):
                kind = "" if begin in job.escalated else "waiting"
                self._draw_wait(begin, self._now if taken is None else taken, kind, row.y)
        for at in filter(self._inside, job.escalated):
            self._mark("escalated", self._x(at) - BADGE / 2, row.y)
        attempts = [a for a in job.attempts if max(self._end(job, a), a.closed or a.until) >= self._start]
        late = [a for a in attempts if a.closed is not None and self._end(job, a) > a.closed]
        marks = [self._x(self._end(job, a)) + 10 for a in late if a.how != "timed_out"]
        row.inside += [(x - 8, x + 8) for x in marks]
        row.obstacles += row.inside
        for attempt, after in zip(attempts, [*attempts[1:], None], strict=False):
            # Words and marks of an attempt end where the next one begins, or before the mark of an escalation.
            ends = [self._x(at) - BADGE for at in job.escalated if at > attempt.start]
            ends += [] if after is None else [self._x(after.start)]
            self._draw_attempt(job, attempt, min(ends, default=self._right), row)
        for lane, attempt in enumerate(late):
            self._draw_late(job, attempt, lane, row)
        if job.state == "stuck" and job.exhausted is not None:
            x = max(self._x(job.exhausted), row.taken) + 11
            self._mark("stuck", x, row.y)
            words = ("exhausted, still in the queue", "stuck")
            self._note(x + 1, row.y, words, MARKS["stuck"][1], [*row.obstacles, (self._left, x)])

    def _end(self, job: JobLine, a: Attempt) -> float:
        """When the worker's part ended, the broker knowing or not."""
        return max(self._now if a.end is None or self._timeline.still_at_it(job, a) else a.end, a.start)

    def _draw_late(self, job: JobLine, a: Attempt, lane: int, row: Row) -> None:
        """What a worker did after the broker had given up on it: a strip below the row, which may be taken again."""
        end, colour = self._end(job, a), self._colour(a.worker)
        # A strip for each, as far as there is room above the words of the next row.
        lanes = max(1, int((self._pitch - self._bar - (self._lane - 2 if self._lane else 2)) // 4))
        y = row.y + self._bar / 2 + 2 + 4 * min(lane, lanes - 1)
        self._stroke("late", colour, self._x(max(a.closed or 0, a.in_hand_until(end))), y, self._x(end), y)
        if a.how != "timed_out" and self._inside(end):
            x, y = self._x(end) + 10, row.y + self._bar / 2 - 5
            self._mark(a.how, x, y)
            if job.done == a.end:
                taken = [*row.obstacles, (self._left, max(row.taken, x))]
                name = fit(plain(a.worker), 90)
                self._note(x, y, (f"{name}'s late ack counts", f"{name}, late", "late"), MARKS["acked"][1], taken)

    def _draw_attempt(self, job: JobLine, a: Attempt, following: float, row: Row) -> None:
        """A bar while the worker is at it and the broker hears it, a tail while the broker waits for no one."""
        colour, end = self._colour(a.worker), self._end(job, a)
        heard = end if a.closed is None else max(min(end, a.closed), a.start)
        waited = max(min(self._now, a.until) if a.closed is None else a.closed, end)
        x0, x1, x_tail = self._x(a.start), self._x(heard), self._x(waited)
        x_bar = min(self._x(min(a.in_hand_until(self._now), end)), x1)
        x_bar = x_bar if x_bar - x0 > 3 else x0
        if x_bar > x0:
            self._draw_hand(colour, x0, x_bar, row.y)
        if x_bar == x0 or x_bar < x1:
            self._draw_bar(colour, x_bar, x1, row.y, a.beats)
        how, mark = a.how, None
        if end > heard:
            how = "timed_out"
        elif x_tail > x1:
            self._draw_tail(colour, x1, x_tail, row.y)
            if a.closed is not None:
                self._draw_limit(x_tail, row)
        if a.open:
            self._draw_patience(max(self._now, end), a.until, row)
        worker = self._timeline.workers[a.worker]
        if how and self._inside(heard):
            # An escalation right at its end has its mark there.
            mark = self._end_mark(how, x0, x1 if x1 <= following else max(following - 8, x0), following, row.y)
        elif worker.state in ("frozen", "cut off") and self._inside(worker.since):
            mark = max(self._x(worker.since), x0)
            self._mark(worker.state.removesuffix(" off"), mark, row.y)
        left, right = max(x0, row.taken), x1 if mark is None else min(x1, mark - BADGE / 2)
        row.taken = max(row.taken, x1, x0 + 3, 0 if mark is None else mark + BADGE / 2)
        # Of an attempt under way also the time to come is free, before or behind its end.
        ahead = [self._x(self._now) + 6, self._x(a.until) + 6] if a.open else []
        starts = [x for x in (row.taken + 4, *ahead) if x >= row.taken]
        label, ground = f"{a.number}  {plain(a.worker)}", ""
        choice = [label, str(a.number)]
        if x_bar > x0:
            # The words go where there is more room: into the box before the work, or into the bar.
            if x_bar - left >= right - x_bar:
                right, ground = min(right, x_bar), WHITE
                whole = f"{label}, in hand"
                choice[:0] = [whole] if text_width(whole, bold=True) <= right - left - 10 else []
            else:
                self._text(left + 5, row.y, fit("in hand", x_bar - left - 8, least=7), MUTED)
                left = x_bar
        self._caption(row, colour, choice, (left, right), starts, following, ground)


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
                return 0, item.finished
            return ("free", "held", "suspect").index(item.state) + 1, -item.added

        items = self._timeline.items.values()
        recent = [item for item in items if item.finished is None or item.finished >= self._start]
        shown = {item.name for item in sorted(recent, key=rank, reverse=True)[: self._most_rows]}
        self._items = [item for item in recent if item.name in shown]
        counted = Counter[str](item.state for item in items)
        counted.subtract(item.state for item in self._items)
        folded = self._not_shown(counted, "item")
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
        self._caption(row, colour, (full, f"r{own.token}"), inner, [x for x in ahead if x > x1], following)
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
