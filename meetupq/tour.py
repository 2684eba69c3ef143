"""The guided tour of the picture: a recorded run, drawn bit by bit, one new mark at a time, each with one sentence.

`Tour.shipped()` shows the recording that comes with the package; `Tour(history)` finds the steps of any other run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Self

import ipywidgets as widgets

from meetupq.figures import DeliveryPicture
from meetupq.history import Event, History, events_of
from meetupq.palette import INK, MARKS, MUTED, worker_colour
from meetupq.timeline import Attempt, JobLine, Timeline
from meetupq.twins import describe_deliveries

SHIPPED: Final = Path(__file__).parent / "recordings" / "tour.jsonl"
LINGER: Final = 0.4
"""A thing is shown so many seconds after it began, so that there is something to be seen; never after the next one."""
# What has no mark of its own in the picture's key. The hourglass is drawn there, for its font lacks one.
_GLYPHS: Final = {
    "bar": "▬", "patience": "┅", "beat": "╷", "tail": "░", "again": "▬", "restarted": "▬", "hand": "▭", "late": "▁",
    "outage": "▒", "timed_out": "⧗",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of the tour: the first time that something appears.

    Attributes:
        at: the moment at which the picture is drawn, seconds.
        mark: the glyph of what is new.
        sentence: what it means, with the names of this run.
        kind: what is new, in one word: "waiting", "bar", "patience", "beat", "acked", "killed", "tail", "again",
            "failed", "stuck", "dead", "redriven", "restarted", ...
        colour: that of the mark, or of the worker.
        row, moment: where in the picture it is; the row is "" if it is in none.
    """

    at: float
    mark: str
    sentence: str
    kind: str
    colour: str = INK
    row: str = ""
    moment: float = 0.0


@dataclass(frozen=True)
class _First:
    """Something that appears: since when, when it is drawn best, how it is told, and where it is."""

    kind: str
    begin: float
    best: float
    sentence: str
    row: str = ""
    worker: str = ""


def find_steps(events: Iterable[Event]) -> tuple[Step, ...]:
    """The first time of everything that appears in the picture of delivery attempts, in the order in which it does."""
    events = tuple(events)
    whole = Timeline(events)
    firsts: dict[str, _First] = {}
    for first in _appearances(whole, events):
        if first.kind not in firsts or first.begin < firsts[first.kind].begin:
            firsts[first.kind] = first
    found = sorted(firsts.values(), key=lambda first: first.begin)
    steps = []
    for first, after in zip_longest(found, found[1:]):
        # Of what comes in the next step nothing may be seen yet.
        at = first.best if after is None else max(min(first.best, after.begin - 0.001), first.begin)
        glyph, colour, _ = MARKS.get(first.kind, ("", INK, ""))
        if first.kind in _GLYPHS:
            glyph, colour = _GLYPHS[first.kind], worker_colour(whole, first.worker) if first.worker else colour
        steps.append(Step(at, glyph, first.sentence, first.kind, colour, first.row, first.begin))
    return tuple(steps)


def _appearances(whole: Timeline, events: Iterable[Event]) -> Iterator[_First]:
    """Everything that is to be seen, again and again; only the first of a kind is shown."""
    for job in whole.jobs.values():
        told = f"{job.name} was published at {job.published:.1f} s. The circle says: it waits for a worker."
        yield _First("waiting", job.published, job.published, told, job.name)
        for before, attempt in zip([None, *job.attempts], job.attempts, strict=False):
            yield from _of_attempt(job, before, attempt)
    for event in events:
        yield from _of_event(event)


def _of_attempt(job: JobLine, before: Attempt | None, a: Attempt) -> Iterator[_First]:
    """What an attempt shows in its life. (The timeline is the whole run's: it knows already how the attempt ends.)"""
    name, worker, end = job.name, a.worker, a.start + LINGER if a.end is None else a.end
    first = partial(_First, row=name, worker=worker)
    early, later = (a.start + min(LINGER, end - a.start) * share for share in (0.5, 0.9))
    grown = a.start + min(2 * LINGER, (end - a.start) * 0.9)
    fresh = before is None or any(before.start < at <= a.start for at in job.put_back)
    if before is None:
        told = f"{worker} got {name}. The bar in {worker}'s colour is attempt 1: it grows while {worker} is at it."
        yield first("bar", a.start, early, told)
    elif fresh:
        told = f"{worker} got {name} now. Its attempts start at {a.number} again, in the same row."
        yield first("restarted", a.start, grown, told)
    else:
        other = "the same worker" if before.worker == worker else "another worker"
        why = f"{before.worker} handed it back" if before.how == "naked" else "The patience is over"
        told = f"{why}: at {a.start:.1f} s {worker} got {name}. This is attempt {a.number}, with {other}."
        yield first("again", a.start, grown, told)
    if a.begun is not None and a.begun > a.start:
        told = f"{worker} has pulled several jobs at once: {name} is in {worker}'s hands, but nobody works on it yet."
        yield first("hand", a.start, a.start + min(LINGER, (a.begun - a.start) / 2), told)
    if end > a.start and a.until > later:
        told = f"The dashed outline is the broker's patience: so long it still waits for a word from {worker}."
        yield first("patience", later, later, told)
    if a.beats:
        told = (
            f"A notch in the bar is a heartbeat: {worker} says “still at it”, and the broker's patience begins again."
        )
        yield first("beat", a.beats[0], a.beats[0] + LINGER / 2, told)
    if a.end is None:
        return
    if a.closed is not None and a.end > a.closed:
        told = f"{worker} went on after the broker had given up on attempt {a.number}: the strip below the bars."
        told += " Its ack came late, but it counts." if a.how == "acked" else ""
        yield first("late", a.end, a.end, told)
    else:
        yield first(a.how, a.end, a.end, _ENDED[a.how].format(worker=worker, job=name, at=a.end))
    waited = a.until if a.closed is None else a.closed
    if a.how in ("killed", "failed") and waited - a.end > 0.1:
        shown = a.end + min(1.5 * LINGER, (waited - a.end) / 2)
        told = f"The faint tail: the broker still waits for {worker}, until {waited:.1f} s."
        told += f" Nobody else gets {name} before."
        yield first("tail", shown, shown, told)


_ENDED: Final = {
    "acked": "{worker} acked {job} at {at:.1f} s: it is done, and the broker deletes it.",
    "naked": "{worker} handed {job} back at {at:.1f} s, with a nak: the broker may deliver it again at once.",
    "terminated": "{worker} terminated {job} at {at:.1f} s: it is gone, and will never be delivered again.",
    "failed": "{worker} failed at {job} and said nothing: a silent failure. The broker has not noticed.",
    "killed": "{worker} was killed at {at:.1f} s, in the middle of {job}. Nobody tells the broker.",
    "timed_out": "The broker's patience with {worker} ran out at {at:.1f} s: it has heard nothing about {job}.",
}


def _of_event(event: Event) -> Iterator[_First]:
    if event.kind == "exhausted":
        told = f"{event.job} is exhausted: no attempt is left. It stays in the queue, and nobody gets it any more."
        yield _First("stuck", event.at, event.at, told, event.job)
    elif event.kind == "dead_lettered":
        told = f"{event.job} fell down into the DLQ at {event.at:.1f} s: it is a dead letter now, kept with its reason."
        yield _First("dead", event.at, event.at + LINGER / 2, told, "DLQ")
    elif event.kind == "redriven":
        told = f"{event.job} was redriven: put back from the DLQ into the queue, where it waits for a worker."
        yield _First("redriven", event.at, event.at, told, "DLQ")
    elif event.kind == "escalated":
        told = f"{event.job} moved on to a slower consumer, with more patience. Its attempts start at 1 again."
        yield _First("escalated", event.at, event.at, told, event.job)
    elif event.kind in ("broker_killed", "broker_stopped"):
        told = f"The grey band: since {event.at:.1f} s there is no broker. Workers can't get jobs, or ack them."
        yield _First("outage", event.at, event.at + LINGER, told)


class Tour(widgets.VBox):  # type: ignore[misc]  # ipywidgets has no type hints
    """The tour as a widget: picture, sentence, Back and Next; `next()`, `back()` and `show(number)` do the same.

    Args:
        history: a recording, or events in their order. What is appended later is not shown.
        steps: how many of its steps to show, from the first; None: all.
        width, height: of the picture, in CSS pixels.
        pixel_ratio: device pixels per CSS pixel.

    Attributes:
        steps: all steps; each has `at`, `mark`, `sentence` and `kind`.
        number: which one is shown, from 1; 0 if there is none.
    """

    def __init__(
        self,
        history: History | Iterable[Event],
        *,
        steps: int | None = None,
        width: int = 860,
        height: int = 320,
        pixel_ratio: float = 1.0,
    ) -> None:
        self._events = events_of(history)
        self.steps = find_steps(self._events)[:steps]
        self.number = min(1, len(self.steps))
        # Which thread a click arrives on depends on the version of ipykernel.
        self._one_at_a_time = threading.RLock()
        self._picture: DeliveryPicture | None = DeliveryPicture(width=width, height=height, pixel_ratio=pixel_ratio)
        self._title, self._sentence, self._twin = widgets.HTML(), widgets.HTML(), widgets.HTML()
        size = {"width": f"{width}px", "height": f"{height}px"}
        self._image = widgets.Image(format="png", width=width, height=height, layout=widgets.Layout(**size))
        # Heights are fixed: nothing may jump from step to step.
        self._sentence.layout = widgets.Layout(height="64px", flex="1 1 auto", overflow="hidden")
        self._twin.layout = widgets.Layout(height="76px", overflow="auto")
        self._back = _button("◀ Back", "One step back: tour.back()", self.back)
        self._next = _button("Next ▶", "One step on: tour.next()", self.next)
        self._draw()
        super().__init__(
            [self._title, widgets.HBox([self._back, self._next, self._sentence]), self._image, self._twin],
            layout=widgets.Layout(
                width=f"{width + 32}px",
                padding="12px",
                overflow="hidden",
                border="1px solid var(--jp-border-color2, #d0d7de)",
            ),
        )
        self.add_class("meetupq-tour")

    @classmethod
    def shipped(cls, **how: Any) -> Self:
        """The tour of the recording that comes with the package: a real run, see `tests/notebooks/record_tour.py`.

        Args:
            how: `steps`, `width`, `height`, `pixel_ratio` as for `Tour`.
        """
        return cls(History.load(SHIPPED), **how)

    def __repr__(self) -> str:
        # Stable, so that a cell which ends in a tour prints the same in every run.
        return f"<Tour: step {self.number} of {len(self.steps)}>"

    @property
    def step(self) -> Step | None:
        """The step that is shown; None if there is none."""
        return self.steps[self.number - 1] if self.number else None

    def next(self) -> None:
        """Show the next step; after the last one nothing changes."""
        self._go(self.number + 1)

    def back(self) -> None:
        """Show the step before; before the first one nothing changes."""
        self._go(self.number - 1)

    def show(self, number: int) -> None:
        """Show a step, counted from 1.

        Raises:
            ValueError: there is no such step.
        """
        if number not in range(1, len(self.steps) + 1):
            raise ValueError(f"there is no step {number!r}: this tour has the steps 1 to {len(self.steps)}")
        self._go(number)

    def close(self) -> None:
        """Take the tour away and let go of its picture. Twice does no harm."""
        self._picture = None  # its bitmaps are megabytes, and ipywidgets keeps every widget
        super().close()

    def _go(self, number: int) -> None:
        with self._one_at_a_time:
            if 1 <= number <= len(self.steps):
                self.number = number
                self._draw()

    def _draw(self) -> None:
        step, count = self.step, len(self.steps)
        self._back.disabled, self._next.disabled = self.number <= 1, self.number >= count
        self._title.value = _HEAD.format(number=self.number, count=count, at=f" · {step.at:.1f} s" if step else "")
        mark, colour, sentence = (step.mark, step.colour, step.sentence) if step else ("", MUTED, "Nothing happened.")
        self._sentence.value = _SAID.format(mark=mark, colour=colour, sentence=escape(sentence))
        now = step.at if step else 0.0
        timeline = Timeline(event for event in self._events if event.at <= now)
        self._twin.value = f'<div class="meetupq-twin">{escape(describe_deliveries(timeline, now=now))}</div>'
        if self._picture is not None:
            self._picture.spot = (step.row, step.moment) if step else None
            self._picture.update(timeline, now)
            self._image.value = self._picture.png()


def _button(description: str, tooltip: str, action: Any) -> widgets.Button:
    layout = widgets.Layout(width="92px", height="32px", margin="16px 8px 0 0", flex="0 0 auto")
    button = widgets.Button(description=description, tooltip=tooltip, layout=layout)
    button.on_click(lambda _: action())
    return button


_HEAD: Final = """<style>
.meetupq-tour .widget-html-content {{ line-height: 1.35; }}
.meetupq-tour-head {{ display: flex; align-items: baseline; color: var(--jp-ui-font-color1, #1f2328); }}
.meetupq-tour-head b {{ font-size: 18px; }}
.meetupq-tour-head span {{ margin-left: auto; font-size: 13px; color: var(--jp-ui-font-color2, #57606a); }}
.meetupq-tour-said {{ display: flex; gap: 12px; align-items: center; height: 64px; font-size: 18px;
  color: var(--jp-ui-font-color1, #1f2328); }}
.meetupq-tour-said i {{ flex: 0 0 40px; height: 40px; border-radius: 20px; background: #fff; font-style: normal;
  font-size: 24px; line-height: 40px; text-align: center; border: 1px solid var(--jp-border-color2, #d0d7de); }}
.meetupq-tour .meetupq-twin {{ font-size: 13px; padding: 8px; background: var(--jp-layout-color2, #f6f8fa);
  border-radius: 4px; color: var(--jp-ui-font-color1, #1f2328); }}
</style><div class="meetupq-tour-head"><b>How to read the picture</b><span>step {number} of {count}{at}</span></div>"""
_SAID: Final = """<div class="meetupq-tour-said"><i style="color:{colour}">{mark}</i>
<span aria-live="polite">{sentence}</span></div>"""
