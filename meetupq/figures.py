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
from functools import partial
from itertools import chain, islice, takewhile
from math import ceil, inf
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from matplotlib.figure import Figure

from meetupq.canvas import BADGE, EDGE, Picture, Place, Row, Told, delays, last_heard, told
from meetupq.ink import fit, plain, text_width
from meetupq.palette import mix, text_on
from meetupq.timeline import Attempt, Cause, ItemLine, JobLine, Ownership, Write

_TOLD_LETTERS: Final = 30
"""Of so many letters the words are tried; there is never room for more."""
_READABLE: Final = 24
"""A row with more attempts than this can't have words and marks for all of them."""
_SETTLED: Final = 320.0
"""Pixels right of what happened last in a row up to where "now" can change what stands there: no words are longer."""


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
            self._stroke("fall", self.theme.fall, x, y + self._bar / 2, x, self._ys[-1])
        if self._dlq:
            self._draw_dlq(letters, self._row(self._ys[-1]))
        for job in self._jobs:
            row = self._row(row_of[job.name])
            crossing = [(x - 3, x + 3) for x, top in falls if top < row.y]
            row.obstacles += crossing
            row.above += crossing
            now = None if self._is_settled(job) else self._now
            self._keep(job.name, (job.heard, row.y, now, crossing), partial(self._draw_job, job, row))

    def _is_settled(self, job: JobLine) -> bool:
        """Whether time alone changes nothing in its row any more."""
        if job.state in ("waiting", "in flight") or self._x(self._now) - self._x(last_heard(job)) < _SETTLED:
            return False
        return not any(self._timeline.still_at_it(job, attempt) for attempt in job.attempts)

    def _draw_dlq(self, letters: Sequence[tuple[float, str, JobLine]], row: Row) -> None:
        self._stroke("plate", self.theme.plate, self._left, row.y, self._right, row.y)
        row.obstacles += [(self._x(at) - 10, self._x(at) + 10) for at, _, _ in letters]
        # The newest letters get their words first; the rest as far as there is room, left or right of the mark.
        for number, (at, kind, job) in enumerate(reversed(letters)):
            x, what = self._x(at), kind
            self._mark(kind, x, row.y)
            if kind == "dead" and at == job.deaths[-1]:
                what = f"after {job.deliveries} deliver{'y' if job.deliveries == 1 else 'ies'}"
            if number < _TOLD_LETTERS:
                name = fit(plain(job.name), 120)
                self._note(x, row.y, (f"{name} {what}", name), self.theme.mark(kind), row.obstacles)

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
        crowded = len(attempts) > _READABLE
        drawn_to = -inf
        for attempt, after in zip(attempts, [*attempts[1:], None], strict=False):
            if crowded and after is not None and (x := self._x(after.start)) - self._x(attempt.start) < BADGE:
                # No room for words or marks: its bar, if it ends at another pixel than the one before.
                if x - drawn_to >= 1:
                    drawn_to = self._draw_plainly(job, attempt, x, row)
                continue
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
            self._note(x + 1, row.y, words, self.theme.mark("stuck"), [*row.obstacles, (self._left, x)])

    def _draw_plainly(self, job: JobLine, a: Attempt, following: float, row: Row) -> float:
        """An attempt among very many: a bar and a tail; returns up to where."""
        colour, x0, bar = self._colour(a.worker), self._x(a.start), self._x(self._end(job, a))
        bar = min(max(bar, x0 + 1), following)
        self._stroke("bar", colour, x0, row.y, bar, row.y)
        if following > bar:
            self._draw_tail(colour, bar, following, row.y)
        row.taken = max(row.taken, bar)
        return following

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
                self._note(
                    x, y, (f"{name}'s late ack counts", f"{name}, late", "late"), self.theme.mark("acked"), taken
                )

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
                right, ground = min(right, x_bar), self.theme.paper
                whole = f"{label}, in hand"
                choice[:0] = [whole] if text_width(whole, bold=True) <= right - left - 10 else []
            else:
                self._text(left + 5, row.y, fit("in hand", x_bar - left - 8, least=7), self.theme.muted)
                left = x_bar
        self._caption(row, colour, choice, (left, right), starts, following, ground)


ENDED_BY_TTL: Final = ("expired", "superseded", "lost")
_BACK: Final = {"frozen": "thawed", "cut": "restored"}


class _Turn(NamedTuple):
    """One ownership as it was drawn: until when its lease stood, its stretches there, its mark at the end."""

    own: Ownership
    after: Ownership | None
    stands: float
    stretches: list[tuple[Cause, float, float]]
    ending: tuple[str, float] | None


class LeasePicture(Picture):
    """The live picture of lease ownership: a row per work item, a bar per ownership, the roster at the right edge.

    Below the bars is a lane for those who believe in a lease that is over, and for what they write to the ledgers.
    """

    title = "Lease ownership"
    subtitle = (
        "notches: white = renewed, dark = written · hatched = owner gone, lease stands · "
        "thin = still believes · r = token"
    )
    nothing = "no work items yet"
    right_margin = 260.0
    least_pitch, lane_from_pitch, most_pitch = 31.0, 31.0, 72.0
    two_lanes = True

    def _choose_rows(self) -> tuple[list[str], str]:
        def rank(item: ItemLine) -> tuple[int, float]:
            return ("free", "held", "suspect").index(item.state), -item.added

        unended, ended = self._timeline.unended.values(), self._timeline.ended.values()
        first = sorted(unended, key=rank, reverse=True)
        recent = takewhile(lambda item: (item.ended or 0.0) >= self._start, reversed(ended))
        self._items = sorted(islice(chain(first, recent), self._most_rows), key=lambda item: item.place)
        counted = Counter[str](item.state for item in chain(unended, ended))
        counted.subtract(item.state for item in self._items)
        folded = self._not_shown(counted, "item")
        return [item.name for item in self._items], folded

    def _draw_rows(self) -> None:
        if self._items:
            heads = [("owner", self._right + 34, "left"), ("expires in", self.width - EDGE, "right")]
            heads += [("done", self.width - EDGE - 84, "right")] if self._is_wide else []
            for words, x, align in heads:
                self._text(x, self._top - 13, words, self.theme.muted, align=align)
        from_above: list[tuple[float, float]] = []
        for item, y in zip(self._items, self._ys, strict=True):
            row = self._row(y)
            row.above += from_above
            if not item.ownerships:
                ended = self._now if item.ended is None else item.ended
                self._draw_wait(item.added, ended, "free", y)
                if item.cancelled is not None:
                    self._end_mark("cancelled", self._x(item.added), self._x(ended), self._right, y)
            # All shapes first: no words across a mark that comes later in the row.
            turns = [
                self._draw_turn(item, own, after, row)
                for own, after in zip(item.ownerships, [*item.ownerships[1:], None], strict=False)
                if max(self._now if own.end is None else own.end, own.believed_until(self._now)) >= self._start
            ]
            self._draw_below(item, turns, row)
            for turn in turns:
                self._label_turn(turn, row)
            self._draw_roster(item, y)
            from_above = [] if self._under else row.below

    @property
    def _small(self) -> float:
        """The size of the words in the lane below the bars."""
        return 11.0 if self._strip < 14 else 12.0

    def _stretches(self, own: Ownership, begin: float, end: float) -> list[tuple[Cause, float, float]]:
        """What became of the owner between two moments: at work (""), frozen, cut off, or no owner any more."""
        known, at = own.believed_until(self._now), own.start
        found: list[tuple[Cause, float, float]] = []
        for absence in self._timeline.workers[own.worker].absences:
            start, stop = max(absence.start, at), min(self._now if absence.end is None else absence.end, known)
            if absence.cause != "killed" and start < stop:
                found += [("", at, start), (absence.cause, start, stop)]
                at = stop
        found += [("", at, known), ("killed", known, end)]
        cut = [(cause, max(since, begin), min(until, end)) for cause, since, until in found]
        return [(cause, since, until) for cause, since, until in cut if since < until]

    def _draw_turn(self, item: ItemLine, own: Ownership, after: Ownership | None, row: Row) -> _Turn:
        """A bar while the owner lives and holds the lease, a hatched tail while the lease outlives it; all marks."""
        colour = self._colour(own.worker)
        stands = max(self._now if own.end is None else own.end, own.start)
        if own.end is None and (own.gone is not None or own.believed is not None):
            away = own.believed_until(self._now) if own.gone is None else own.gone
            stands = max(min(self._now, own.until), away)
        x0, x_end = self._x(own.start), self._x(stands)
        following = self._right if after is None else self._x(after.start)
        stretches = self._stretches(own, own.start, stands)
        if not stretches or stretches[0][0]:
            self._draw_bar(colour, x0, x0, row.y, ())  # at least a trace of it
        for cause, since, until in stretches:
            if cause:
                self._draw_gone(cause, colour, self._x(since), self._x(until), row.y)
            else:
                renewals = own.renewals[bisect_left(own.renewals, since) : bisect_right(own.renewals, until)]
                self._draw_bar(colour, self._x(since), self._x(until), row.y, renewals)
        self._draw_writes(item, own, stands, row)
        marks = self._draw_train(self._what_befell(own, own.start, stands), row.y)
        if own.end is None:
            self._draw_patience(max(self._now, stands), own.until, row)
        ending = None
        if own.how in ENDED_BY_TTL and self._inside(stands):
            ending = ("expired", x_end)
            self._mark("expired", x_end, self._lane_of(row))
            row.above.append((x_end - 10, x_end + 10))
        elif own.how and self._inside(stands):
            how = "cancelled" if own.how == "released" and stands >= (item.cancelled or inf) else own.how
            ending = (how, self._end_mark(how, x0, x_end, following, row.y))
            marks.append(ending[1])
        spans = [(x - BADGE / 2, x + BADGE / 2) for x in marks]
        row.inside += spans
        row.obstacles += spans
        return _Turn(own, after, stands, stretches, ending)

    def _label_turn(self, turn: _Turn, row: Row) -> None:
        """Who held it, with which token, and how that ended, as far as there is room."""
        own, after, x_end = turn.own, turn.after, self._x(turn.stands)
        following = self._right if after is None else self._x(after.start)
        if turn.ending:
            how, x = turn.ending
            if how == "expired":
                late = "" if after is None else delays(own, after)
                told = (f"reclaimed {late}", late, delays(own, after, brief=True), "reclaimed") if after else (how,)
                self._note(x, self._lane_of(row), told, self.theme.ink, row.above)
            else:
                taken = [*row.obstacles, (self._left, x), (following - 4, self._right)]
                self._note(x - 1, row.y, (how,), self.theme.mark(how), taken)
        # The words go into the longest stretch of work.
        work = [(self._x(since), self._x(until)) for cause, since, until in turn.stretches if not cause]
        left, right = max(work, key=lambda span: span[1] - span[0], default=(self._x(own.start),) * 2)
        at_it = [span for span in row.inside if left < span[1] and span[0] < right]
        left = max([left] + [end for begin, end in at_it if begin <= left])
        ahead = [self._x(self._now) + 6, self._x(own.until) + 6] if own.end is None and own.gone is None else []
        name = fit(plain(own.worker), 120, bold=True)
        choice = [f"{name} · r{own.token}", name, f"r{own.token}"]
        if own.progress_from and (own.reclaimed or own.progress_from.done):
            longer = [f"{choice[0]} · {word}{own.progress_from.percent} %" for word in ("from ", "")]
            choice[:0] = [words for words in longer if text_width(words, bold=True) <= right - left - 10]
        colour = self._colour(own.worker)
        self._caption(row, colour, choice, (left, right), [x for x in ahead if x > x_end], following, least=99)

    def _lane_of(self, row: Row) -> float:
        """The middle of the lane above the bars."""
        return row.y - self._bar / 2 - 8

    def _what_befell(self, own: Ownership, after: float, end: float) -> list[tuple[float, str]]:
        """When the owner was frozen, thawed and so on, or found out that the lease is lost."""
        known = own.believed_until(self._now)
        found: list[tuple[float, str]] = []
        for absence in self._timeline.workers[own.worker].absences:
            if absence.end is not None and absence.end <= own.start:
                continue  # in an earlier life, before it had this lease
            found.append((max(absence.start, own.start), absence.cause))
            if absence.end is not None and absence.cause in _BACK:
                found.append((absence.end, _BACK[absence.cause]))
        found = [(at, kind) for at, kind in found if after <= at <= min(end, known)]
        if own.lost is not None and after < own.lost <= end:
            found.append((own.lost, "lost"))
        return sorted((at, kind) for at, kind in found if self._inside(at))

    def _draw_gone(self, cause: Cause, colour: str, x0: float, x1: float, y: float, *, thin: bool = False) -> None:
        """A faint box: with diagonals where nobody is any more, upright bars where somebody is frozen, and dashes along
        it where somebody works on, unheard."""
        height = self._strip if thin else self._bar
        self._stroke("faint" if thin else "tail", self.theme.pale(colour, 0.82), x0, y, x1, y)
        half = height / 2
        for edge in (y - half + 0.5, y + half - 0.5) if thin else ():
            self._stroke("rim", colour, x0, edge, x1, edge)
        if cause == "cut":
            for at in (y - half * 0.45, y + half * 0.45) if not thin else (y,):
                self._stroke("wire", colour, x0, at, x1, at)
        elif cause == "frozen":
            for step in range(ceil((x1 - x0) / 6)):
                x = x0 + 3 + 6 * step
                if x < x1:
                    self._stroke("hatch", colour, x, y - half, x, y + half)
        else:
            for step in range(1, ceil((x1 - x0 + height) / 7)):
                base = x0 - height + 7 * step
                left, right = max(base, x0), min(base + height, x1)
                self._stroke("hatch", colour, left, y + half - (left - base), right, y + half - (right - base))

    def _draw_writes(self, item: ItemLine, own: Ownership, stands: float, row: Row) -> None:
        """A dark notch in the upper edge for each write that did no harm."""
        top, dark = row.y - self._bar / 2, mix(self._colour(own.worker), "#000000", 0.6)
        for write in self._recent_writes(item):
            good = write.token == own.token and not write.stale and not write.refused
            if good and self._inside(write.at) and write.at <= stands:
                x = self._x(write.at)
                self._stroke("write", dark, x, top - 2, x, top + 4)

    def _recent_writes(self, item: ItemLine) -> Sequence[Write]:
        """Those in the window; what a process tells late stands a little later in the list."""
        return item.writes[max(bisect_left(item.writes, self._start, key=attrgetter("at")) - 20, 0) :]

    def _draw_below(self, item: ItemLine, turns: Sequence[_Turn], row: Row) -> None:
        """The lane of those who believe in a lease that is over, with what they do there."""
        y = row.y + self._bar / 2 + (2 if self._under else 3.5) + self._strip / 2
        found: list[tuple[float, str]] = []
        zombies = []
        for own in (turn.own for turn in turns):
            known = own.believed_until(self._now)
            if own.end is None or known <= own.end or own.how in ("finished", "released"):
                continue  # it ended its lease itself, and said so some milliseconds later
            colour, stretches = self._colour(own.worker), self._stretches(own, own.end, known)
            for cause, since, until in stretches:
                if cause:
                    self._draw_gone(cause, colour, self._x(since), self._x(until), y, thin=True)
                else:
                    self._stroke("strip", colour, self._x(since), y, max(self._x(until), self._x(since) + 2), y)
            found += self._what_befell(own, max(own.end, own.start) + 1e-9, known)
            if stretches:
                zombies.append((own, stretches[0]))
        for write in self._recent_writes(item):
            if self._inside(write.at):
                found += [(write.at, "stale")] * write.stale + [(write.at, "refused")] * bool(write.refused)
        if (
            item.cancelled is not None
            and item.ownerships
            and not any(turn.ending and turn.ending[0] == "cancelled" for turn in turns[-1:])
        ):
            found.append((item.cancelled, "cancelled"))
        marks = self._draw_train(sorted(found, key=lambda event: event[0]), y)
        row.below += [(x - 8, x + 8) for x in marks]
        last = max(marks, default=self._left) + 8
        if not self._under:
            return
        harm = [write for write in item.writes if write.stale or write.refused]
        for own, (cause, since, until) in zombies:
            x0, x1, name = self._x(since), self._x(until), fit(plain(own.worker), 90, self._small, bold=True)
            colour = self._colour(own.worker)
            pale, dark = self.theme.pale(colour, 0.82), self.theme.strong(colour)
            believes = ("still believes", "believes") if own.is_zombie else ("believed on", "believed")
            choice = (f"{name} {believes[0]}", *believes)
            places: list[Place] = [(x0 + 4, y, dark if cause else text_on(colour), x1 - 3, row.below)]
            if not harm:  # its words need the room behind the marks
                places += self._behind(max(last, self._x(own.believed_until(self._now))), y, dark, row)
            span = self._place(choice, places, self._small)
            if span and cause and span[0] < x1:
                self._stroke("ground", pale, span[0] - 2, y, span[1] - 2, y)
        if harm:
            self._place(_harm(harm), self._behind(last, y, self.theme.mark("stale"), row), self._small, bold=False)

    def _behind(self, x: float, y: float, ink: str, row: Row) -> list[Place]:
        return [(at, y, ink, self._right, row.below) for at in (x + 4, self._x(self._now) + 8) if at >= x]

    def _draw_train(self, events: Sequence[tuple[float, str]], y: float) -> list[float]:
        """Marks beside each other, even if they are close in time: who comes too soon moves on. Returns where they are.

        What would stand too far from its moment is left out, as is a mark whose like stands there already.
        """
        marks: list[float] = []
        drawn: dict[str, float] = {}
        step = BADGE - 3
        for at, kind in events:
            here = self._x(at)
            x = max(here, marks[-1] + step) if marks else here
            if x - here <= 3 * step and drawn.get(kind, here) <= here:
                self._mark(kind, x, y)
                marks.append(x)
                drawn[kind] = x
        return marks

    @property
    def _is_wide(self) -> bool:
        return self.width - self._right >= self.right_margin

    def _draw_roster(self, item: ItemLine, y: float) -> None:
        left, right, owner = self._right + 34, self.width - EDGE, item.owner
        if self._is_wide and item.progress:
            self._draw_share(item.progress.percent, right - 84, y)
        if owner is None or item.ended is not None:
            words = "finished" if item.state == "done" else item.state
            self._mark(words, left - 13, y)
            self._text(left, y, words, self.theme.mark(words), bold=True)
            return
        remaining, alive = owner.until - self._now, owner.gone is None and owner.believed is None
        if alive:
            self._stroke("swatch", self._colour(owner.worker), left - 19, y, left - 7, y)
        else:
            self._mark(owner.cause or "lost", left - 13, y)
        room = right - left - 62 - 62 * self._is_wide
        self._text(left, y, fit(plain(owner.worker), room, bold=True), self.theme.ink, bold=True)
        colour = self.theme.ink if alive and remaining > 0 else self.theme.mark("killed")
        self._text(right, y, f"{remaining:.1f} s" if remaining > 0 else "due", colour, align="right", bold=True)

    def _draw_share(self, percent: int, x: float, y: float) -> None:
        """How far the work is, as a number and as a line below it."""
        self._text(x, y - 1, f"{percent} %", self.theme.ink, align="right")
        self._stroke("rail", self.theme.faint, x - 38, y + 9, x, y + 9)
        if percent:
            self._stroke("share", self.theme.muted, x - 38, y + 9, x - 38 + 0.38 * percent, y + 9)


def _harm(writes: Sequence[Write]) -> tuple[str, ...]:
    """In words, what was done to the ledgers by those who were not the owner any more."""
    stale, refused = sum(write.stale for write in writes), sum(bool(write.refused) for write in writes)
    told = "stale write" if stale == 1 else f"{stale} stale writes" if stale else "write refused"
    if not (stale and refused):
        return (told,)
    return (f"{told}: damage; the fence refused {'it' if refused == 1 else refused}", f"{told}, refused", told)


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
