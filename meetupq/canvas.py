"""What the pictures are made of: a sheet, and on it a picture with rows and a time axis.

Everything is laid out in CSS pixels from the top left corner (`pixel_ratio` and `scale` enlarge it at the very end), so
whether two things overlap is plain arithmetic. What stays from frame to frame is drawn once and kept as a bitmap; only
bars, marks and labels in the plot are drawn for each frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, nan
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Affine2D

from meetupq.errors import LookInvalid
from meetupq.history import Event, History, events_of
from meetupq.ink import FONT, Pixels, Shown, encode_small, fit, font, plain, shape, text_width, write
from meetupq.palette import MARKS, WHITE, Theme, text_on, theme_named, worker_colour
from meetupq.timeline import JobLine, Ownership, Timeline

Told = History | Iterable[Event] | Timeline
"""What pictures and twins are made from."""
_Spans = list[tuple[float, float]]
Place = tuple[float, float, str, float, _Spans]
"""Where words may stand: x, y, their colour, up to where, and what they must not cross."""

# --- strokes ------------------------------------------------------------------------------------------

# Kind of stroke: drawing order, width in pixels (0 = follows the layout), dashes.
_STROKES: Final[dict[str, tuple[float, float, tuple[float, ...]]]] = {
    "outage": (1.0, 0, ()), "plate": (1.1, 0, ()), "spotlit": (1.14, 0, ()), "spot": (1.15, 0, ()),
    "wait": (1.2, 1.5, ()), "fall": (1.3, 1.4, ()), "tail": (2.0, 0, ()), "faint": (2.0, 0, ()),
    "paper": (2.05, 0, ()), "hatch": (2.1, 1.2, ()), "wire": (2.1, 1.8, (4, 3)),
    "rim": (2.16, 1.2, ()), "ground": (2.15, 0, ()),
    "bar": (2.2, 0, ()), "strip": (2.2, 0, ()), "hand": (2.25, 1.5, (1.2, 1.8)), "late": (2.3, 3, ()),
    "swatch": (2.3, 12, ()), "rail": (2.3, 3, ()), "share": (2.4, 3, ()), "write": (2.4, 1.8, ()),
    "beat": (2.4, 1.8, ()), "patience": (2.5, 1.1, (3, 2.5)), "limit": (2.6, 1.6, ()),
    "now": (2.7, 1.3, ()),
}  # fmt: skip

EDGE, BADGE = 20.0, 18.0
"""The margin of a picture, and the white disc under a mark."""
_TOP, _BOTTOM, _LANE, _MOST_BAR, _MARK = 80.0, 48.0, 15.0, 32.0, 13.5


# --- what pictures and twins read alike from a timeline ----------------------------------------------


def told(events: Told, now: float | None) -> tuple[Timeline, float]:
    """A timeline and a moment. Of events only those up to the moment count: what came later isn't known yet."""
    if not isinstance(events, Timeline):
        events = Timeline(event for event in events_of(events) if now is None or event.at <= now)
    return events, events.last if now is None else now


def last_heard(job: JobLine) -> float:
    """When something last happened to a job."""
    moments = [job.published, job.done, job.dead, job.exhausted, job.terminated, *job.put_back]
    for attempt in job.attempts[-1:]:
        moments += [attempt.start, attempt.end, attempt.closed]
    return max(moment for moment in moments if moment is not None)


def delays(own: Ownership, after: Ownership, *, brief: bool = False) -> str:
    """How long after the loss of an owner, and after the end of its lease, the next one came."""
    since = [] if own.gone is None else [(own.gone, {"killed": "kill", "frozen": "freeze"}.get(own.cause, own.cause))]
    if own.end is not None and own.end < after.start:  # else the end isn't known, only that somebody else had the lease
        since.append((own.end, "expiry"))
    waits = [(short(after.start - at), what) for at, what in since]
    if brief:
        return ", ".join(f"{what} + {wait} s" for wait, what in waits)
    told = [f"{wait} s after {what if what == 'expiry' else f'the {what}'}" for wait, what in waits]
    return ", ".join(told) or f"at {after.start:.1f} s"


def short(seconds: float) -> str:
    """Seconds with as many places as matter: 4.1, 0.10, 0.002."""
    return f"{seconds:.{1 if seconds >= 0.95 else 2 if seconds >= 0.01 else 3}f}"


_SPANS: Final = (10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
_ROLLING: Final = 60.0
_TICKS: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400)
_AHEAD: Final = 0.15
"""The share of the time axis that is kept free for what is to come."""


def window(now: float, last: float | None = None) -> tuple[float, float]:
    """The seconds that the time axis shows: it grows and moves in steps, so that many frames share one background.

    Args:
        now: the moment of the picture, seconds.
        last: so many seconds, and the time to come; `inf`: the whole run; None: the whole run up to a minute, then
            the last minute.
    """
    most = _ROLLING if last is None else last
    for span in _SPANS if last in (None, inf) else ():
        if now <= (1 - _AHEAD) * span <= (1 - _AHEAD) * most:
            return 0.0, span
    if most == inf:
        return 0.0, ceil(now / (1 - _AHEAD) / 1800) * 1800.0
    start = max(ceil((now - (1 - _AHEAD) * most) / (most / 4)) * most / 4, 0.0)
    return start, start + most


def check_span(last: float | None) -> float | None:
    """
    Raises:
        LookInvalid: no picture shows so many seconds.
    """
    if last is None or (isinstance(last, (int, float)) and (1 <= last <= 86400 or last == inf)):
        return last
    raise LookInvalid(f"the picture can't show the last {last!r} s: give 1 to 86400, inf for the whole run, or None")


# --- the base picture --------------------------------------------------------------------------------


@dataclass
class Row:
    """Where a row is, up to where it is taken, and what no label may cross: in it, in bars, above, below; pixels."""

    y: float
    taken: float
    obstacles: _Spans
    inside: _Spans
    above: _Spans
    below: _Spans


class Label(NamedTuple):
    """Words on the sheet; x and y are those of their beginning and their baseline, in pixels of the sheet."""

    x: float
    y: float
    words: str
    colour: str
    size: float
    bold: bool


@dataclass
class Ink:
    """What is drawn for a frame: points by kind of stroke or mark and colour, and labels."""

    points: dict[tuple[str, str], tuple[list[float], list[float]]] = field(default_factory=dict)
    labels: list[Label] = field(default_factory=list)

    def add(self, other: Ink) -> None:
        for key, (xs, ys) in other.points.items():
            known = self.points.setdefault(key, ([], []))
            known[0].extend(xs)
            known[1].extend(ys)
        self.labels += other.labels


class Sheet:
    """A figure of fixed size, and what is drawn upon it: a bitmap for what stays, lines and labels for the rest.

    Args:
        width, height: in CSS pixels, as shown.
        pixel_ratio: device pixels per CSS pixel; the PNG is width * pixel_ratio wide.
        scale: how large type and marks are; everything is laid out as on a sheet that is so much smaller.
        theme: "light" or "dark".

    Raises:
        LookInvalid: there is no such theme.
    """

    def __init__(self, width: int, height: int, pixel_ratio: float, scale: float, theme: str) -> None:
        self.theme: Theme = theme_named(theme)
        self.width, self.height, self.ratio = width / scale, height / scale, pixel_ratio * scale
        # At 72 dots an inch a point is a CSS pixel: all font sizes and line widths are pixels.
        size = self.width / 72, self.height / 72
        self.figure = Shown(figsize=size, dpi=72 * self.ratio, facecolor=self.theme.paper)
        self.canvas: Any = FigureCanvasAgg(self.figure)
        # By inches, so that it holds for every dpi that somebody saves the figure with.
        flipped = Affine2D().scale(1 / 72, -1 / 72).translate(0, self.height / 72)
        self.pixels = flipped + self.figure.dpi_scale_trans
        self.full_draws = 0
        self.lines: dict[tuple[str, str, float], Line2D] = {}
        self.moving: list[tuple[Line2D, Sequence[float], Sequence[float]]] = []
        self.labels: list[Label] = []
        self.background: Any = None

    def line(self, kind: str, colour: str, width: float) -> Line2D:
        """The one line that draws all strokes or marks of a kind: kept, since to make one is dear."""
        if (known := self.lines.get((kind, colour, width))) is None:
            known = self.lines[kind, colour, width] = self.make_line(kind, colour, width)
            known.set_animated(True)
        return known

    def make_line(self, kind: str, colour: str, width: float) -> Line2D:
        line = Line2D([], [], transform=self.pixels, linestyle="none", markeredgewidth=0)
        if kind == "mark":
            line.set(marker=shape(colour), markersize=_MARK, markerfacecolor=self.theme.mark(colour))
            line.set(zorder=2.9 + list(MARKS).index(colour) / 1000)
        elif kind == "disc":
            line.set(marker="o", markersize=BADGE, markerfacecolor=colour, zorder=2.8)
        else:
            order, own, dashes = _STROKES[kind]
            line.set(linestyle=(0, dashes) if dashes else "-", color=colour, zorder=order)
            line.set(linewidth=own or width, dash_capstyle="butt")
            line.set(solid_capstyle="round" if kind == "spot" else "butt")
        self.figure.add_artist(line)
        return line

    def text(self, label: Label) -> Text:
        """The label as an artist of the figure."""
        x, y, words, colour, size, bold = label
        text = self.figure.text(x, y, words, transform=self.pixels, parse_math=False, usetex=False)
        text.set(color=colour, fontproperties=font(size, bold))
        return text

    def draw(self) -> Pixels:
        """Everything as pixels, RGBA: a view of what the next frame changes."""
        if self.background is None:
            self.canvas.draw()
            self.background = self.canvas.copy_from_bbox(self.figure.bbox)
            self.full_draws += 1
        else:
            self.canvas.restore_region(self.background)
        self.moving.sort(key=lambda moving: moving[0].get_zorder())
        for line, xs, ys in self.moving:
            line.set_data(xs, ys)
            self.figure.draw_artist(line)
        pixels: Pixels = np.asarray(self.canvas.buffer_rgba())
        for x, y, words, colour, size, bold in self.labels:
            write(pixels, x * self.ratio, y * self.ratio, words, colour, size, bold, self.ratio)
        return pixels

    def png(self) -> bytes:
        """Everything as PNG bytes."""
        return encode_small(self.draw(), self.theme.paper)

    def as_figure(self) -> Figure:
        """Let go of the figure: from here on it is an ordinary one that draws itself completely."""
        for line, xs, ys in self.moving:
            line.set_data(xs, ys)
            line.set_animated(False)
        for label in self.labels:
            self.text(label)
        return self.figure

    def clear(self) -> None:
        self.moving, self.labels = [], []


class Picture:
    """A picture of fixed size with rows, a time axis and a "now" line; subclasses say what is in the rows.

    Args:
        width, height: in CSS pixels.
        pixel_ratio: device pixels per CSS pixel; the PNG is width * pixel_ratio wide.
        theme: "light" or "dark".
        scale: of type and marks: 1 for a desk, 1.5 for the last row of a room.
        last: how many seconds are shown, see `window`.
        sheet, top: a sheet that it shares with others, and where it begins there; its height is still its own.

    Raises:
        LookInvalid: there is no such theme, or no picture of so many seconds.
    """

    title = subtitle = nothing = ""
    axis_label = "seconds since the stage opened"
    right_margin = EDGE
    least_pitch, lane_from_pitch, most_pitch = 24.0, 34.0, 58.0
    two_lanes = False
    """Whether there is a second, thinner lane below the bars of a row."""

    def __init__(
        self,
        *,
        width: int = 960,
        height: int = 380,
        pixel_ratio: float = 1.0,
        theme: str = "light",
        scale: float = 1.0,
        last: float | None = None,
        sheet: Sheet | None = None,
        top: float = 0.0,
    ) -> None:
        self.sheet = sheet or Sheet(width, height, pixel_ratio, scale, theme)
        self.last = check_span(last)
        self.theme = self.sheet.theme
        self.width, self.height, self.offset = width / scale, height / scale, top
        self.spot: tuple[str, float] | None = None
        """A row's name and a moment to point out, with light behind what is there."""
        self._top, self._bottom = _TOP, max(self.height - _BOTTOM, _TOP + 20)
        self._left, self._right = 96.0, self.width - min(self.right_margin, self.width * 0.55)
        self._most_rows = max(1, int((self._bottom - self._top) // self.least_pitch))
        self._fixed: list[Line2D | Text] = []
        self._ink = Ink()
        self._kept: dict[str, tuple[object, Ink]] = {}
        self._key: object = None
        self._axes = self.sheet.figure.add_axes((0, 0, 1, 1), facecolor="none")
        self._axes.spines[["top", "left", "right"]].set_visible(False)
        self._axes.spines["bottom"].set(color=self.theme.faint, linewidth=1, zorder=0.5)
        self._axes.yaxis.set_visible(False)
        self._axes.tick_params("x", length=0, pad=6, labelsize=13, labelcolor=self.theme.muted, labelfontfamily=FONT)
        self._axes.grid(True, axis="x", color=self.theme.grid, linewidth=1, linestyle="-")
        self._axes.set_axisbelow(True)

    @property
    def figure(self) -> Figure:
        return self.sheet.figure

    def update(self, timeline: Timeline, now: float) -> None:
        """Bring the picture up to date with the timeline at `now` (seconds); `png` then draws it."""
        self.sheet.clear()
        self.plan(timeline, now)
        self.compose(self.names_end)

    def png(self) -> bytes:
        """The picture as PNG bytes."""
        return self.sheet.png()

    def as_figure(self, timeline: Timeline, now: float) -> Figure:
        """Update, then let go of the figure: from here on it is an ordinary one that draws itself completely."""
        self.update(timeline, now)
        return self.sheet.as_figure()

    def plan(self, timeline: Timeline, now: float) -> None:
        """Choose the rows."""
        self._timeline, self._now = timeline, max(now, 0.0)
        self._start, self._stop = window(self._now, self.last)
        self._names, self._folded = self._choose_rows()

    @property
    def names_end(self) -> float:
        """Where the plot may begin, right of the names; it grows in steps, so that one more letter doesn't move all."""
        widest = max((text_width(plain(name), 14) for name in self._names), default=0.0)
        return min(max(ceil((widest + 26) / 32) * 32.0, 96.0), self.width * 0.24)

    def compose(self, left: float) -> None:
        """Lay out the rows right of `left`, and draw them onto the sheet."""
        self._left, names = left, self._names
        self._ink = Ink()
        self._lay_out(names)
        self._draw_outages()
        here = self._x(self._now)
        self._stroke("now", self.theme.ink, here, self._top - 4, here, self._bottom)
        # The strip between subtitle and plot is kept free for this label.
        self._text(here, self._top - 13, "now", self.theme.ink, align="center", bold=True)
        self._draw_rows()
        self._draw_spot(names)
        room = self.width - EDGE - self._left - text_width(self.axis_label) - 16
        self._text(self.width - EDGE, self.height - 12, fit(self._folded, room), self.theme.muted, align="right")
        if not names and not self._folded:
            middle = (self._left + self._right) / 2, (self._top + self._bottom) / 2
            self._text(*middle, self.nothing, self.theme.muted, size=16, align="center")
        self._kept = {name: kept for name, kept in self._kept.items() if name in names}
        kinds = [kind for kind in MARKS if ("mark", kind) in self._ink.points]
        key = (self._start, self._stop, names, self._left, self._pitch, kinds)
        if key != self._key:
            self._key, self.sheet.background = key, None
            self._dress(names, kinds)
        for (kind, colour), points in self._ink.points.items():
            line = self.sheet.line(kind, colour, self._widths.get(kind, 0.0))
            self.sheet.moving.append((line, *points))
        self.sheet.labels += self._ink.labels

    def _keep(self, name: str, state: object, draw: Callable[[], None]) -> None:
        """Draw a row, or what was drawn of it in an earlier frame, if nothing has changed: the same `state`."""
        state = (state, self._start, self._stop, self._left, self._pitch)
        if (kept := self._kept.get(name)) is None or kept[0] != state:
            all_ink, self._ink = self._ink, Ink()
            draw()
            kept = self._kept[name] = state, self._ink
            self._ink = all_ink
        self._ink.add(kept[1])

    def _choose_rows(self) -> tuple[list[str], str]:
        """The names of the rows, and a sentence on those that are not shown."""
        raise NotImplementedError

    def _draw_rows(self) -> None:
        """Collect what is in the rows, as strokes, marks and texts."""

    @staticmethod
    def _not_shown(counted: Mapping[str, int], noun: str) -> str:
        """A sentence on the rows that are folded away, by state; "" if there are none."""
        named = sorted(("finished" if state == "done" else state, number) for state, number in counted.items())
        parts = [f"{number} {state}" for state, number in named if number]
        plural = "" if sum(counted.values()) == 1 else "s"
        return f"+ {', '.join(parts)} {noun}{plural} not shown" if parts else ""

    def _lay_out(self, names: Sequence[str]) -> None:
        self._pitch = min((self._bottom - self._top) / max(len(names), 4), self.most_pitch)
        self._lane = _LANE if self._pitch >= self.lane_from_pitch else 0.0
        self._under = min(max(round(self._pitch * 0.26), 14), 18) if self.two_lanes and self._pitch >= 48 else 0
        room = self._pitch - self._lane - self._under
        self._bar = min(room * (0.84 if self._lane else 0.74), _MOST_BAR)
        self._strip = self._under - 3 if self._under else 4.0
        plate = min(30.0, self._pitch - 2)
        self._widths = dict.fromkeys(("bar", "tail", "paper"), self._bar)
        self._widths |= dict.fromkeys(("strip", "faint", "ground"), self._strip)
        self._widths |= {"plate": plate, "outage": self._bottom - self._top}
        self._widths |= {"spotlit": self._pitch - 2, "spot": self._pitch - 2}
        first = self._top + self._lane + room / 2
        self._ys = [first + index * self._pitch for index in range(len(names))]

    def _row(self, y: float) -> Row:
        now = self._x(self._now)
        return Row(y, self._left, [(now - 4, now + 4)], [], [(now - 4, now + 4)], [(now - 4, now + 4)])

    def _colour(self, worker: str) -> str:
        return worker_colour(self._timeline, worker)

    def _x(self, at: float) -> float:
        """The pixel of a moment, kept inside the plot."""
        share = (at - self._start) / (self._stop - self._start)
        return self._left + min(max(share, 0.0), 1.0) * (self._right - self._left)

    def _inside(self, at: float) -> bool:
        return self._start <= at <= self._stop

    def _dress(self, names: Sequence[str], kinds: Sequence[str]) -> None:
        """The background: drawn when the axis, the rows or the key change."""
        while self._fixed:
            self._fixed.pop().remove()
        width, height = self.sheet.width, self.sheet.height
        box = (self._left, height - self.offset - self._bottom, self._right - self._left, self._bottom - self._top)
        self._axes.set_position((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
        self._axes.set_xlim(self._start, self._stop)
        step = next(step for step in _TICKS if (self._stop - self._start) / step <= 10)
        self._axes.set_xticks(range(ceil(self._start / step) * step, int(self._stop) + 1, step))
        self._text(EDGE, 22, self.title, self.theme.ink, size=17, bold=True, fixed=True)
        self._text(EDGE, 44, fit(self.subtitle, self.width - 2 * EDGE), self.theme.muted, fixed=True)
        self._text(self._left, self.height - 12, self.axis_label, self.theme.muted, fixed=True)
        for name, y in zip(names, self._ys, strict=True):
            words = fit(plain(name), self._left - 22, 14)
            self._text(self._left - 14, y, words, self.theme.ink, size=14, align="right", fixed=True)
        # The key stands on the title's line. Its first kinds are the everyday ones: they go first if room is short.
        sizes = {kind: text_width(MARKS[kind][2]) + 36 for kind in kinds}
        while sum(sizes.values()) > self.width - 2 * EDGE - text_width(self.title, 17, True) - 8:
            del sizes[next(iter(sizes))]
        x = self.width - EDGE - sum(sizes.values()) + 16
        for kind, size in sizes.items():
            mark = self.sheet.make_line("mark", kind, 0)
            mark.set_data([x + 7], [22 + self.offset])
            self._fixed.append(mark)
            self._text(x + 20, 22, MARKS[kind][2], self.theme.muted, fixed=True)
            x += size

    def _stroke(self, kind: str, colour: str, x0: float, y0: float, x1: float, y1: float) -> None:
        """A line between two pixels. All of one kind and colour are one Line2D with breaks: by far the fastest."""
        xs, ys = self._ink.points.setdefault((kind, colour), ([], []))
        xs += (x0, x1, nan)
        ys += (y0 + self.offset, y1 + self.offset, nan)

    def _mark(self, kind: str, x: float, y: float) -> None:
        """A mark on a white disc, so that it is seen on bars and on the "now" line too."""
        for key in (("disc", self.theme.paper), ("mark", kind)):
            xs, ys = self._ink.points.setdefault(key, ([], []))
            xs.append(x)
            ys.append(y + self.offset)

    def _text(
        self, x: float, y: float, words: str, colour: str,
        *, size: float = 13, bold: bool = False, align: str = "left", fixed: bool = False,
    ) -> None:  # fmt: skip
        if words:
            x -= {"left": 0.0, "center": 0.5, "right": 1.0}[align] * text_width(words, size, bold)
            # On whole device pixels letters are sharp; the baseline follows from the size, so that it is one in a row.
            ratio = self.sheet.ratio
            x, y = (round(at * ratio) / ratio for at in (x, y + self.offset + size * 0.36))
            label = Label(x, y, words, colour, size, bold)
            if fixed:
                self._fixed.append(self.sheet.text(label))
            else:
                self._ink.labels.append(label)

    def _draw_outages(self) -> None:
        middle = (self._top + self._bottom) / 2
        for outage in self._timeline.outages:
            x0, x1 = self._x(outage.start), self._x(self._now if outage.end is None else outage.end)
            if x1 > x0:
                self._stroke("outage", self.theme.band, x0, middle, x1, middle)
                if (x0 + x1 + text_width("no broker")) / 2 < self._x(self._now) - 24:
                    self._text((x0 + x1) / 2, self._top - 13, "no broker", self.theme.muted, align="center")

    def _draw_spot(self, names: Sequence[str]) -> None:
        if self.spot and self.spot[0] in names:
            # Of two rows of this name the last one: a job may be called DLQ.
            y, x = dict(zip(names, self._ys, strict=True))[self.spot[0]], self._x(self.spot[1])
            self._stroke("spotlit", self.theme.light, self._left, y, self._right, y)
            self._stroke("spot", self.theme.glow, x - 6, y, x + 6, y)

    def _draw_wait(self, begin: float, end: float, kind: str, y: float) -> None:
        """A hollow mark where a job or item came, and a thin line for as long as it waits for a worker."""
        self._stroke("wait", self.theme.faint, self._x(begin), y, self._x(end), y)
        if kind:
            self._mark(kind, max(self._x(begin), self._left + 9), y)

    def _draw_bar(self, colour: str, x0: float, x1: float, y: float, ticks: Iterable[float]) -> None:
        """A bar with white notches in its lower edge; at least 3 pixels long, for zero seconds are to be seen too."""
        self._stroke("bar", colour, x0, y, max(x1, x0 + 3), y)
        base, height = y + self._bar / 2, max(min(4.0, self._bar / 2 - 5), 2.0)  # clear of the letters in the bar
        for x in (self._x(tick) for tick in ticks if self._inside(tick)):
            self._stroke("beat", WHITE, x, base, x, base - height)

    def _draw_tail(self, colour: str, x0: float, x1: float, y: float, white: float = 0.78) -> None:
        self._stroke("tail", self.theme.pale(colour, white), x0, y, x1, y)

    def _draw_hand(self, colour: str, x0: float, x1: float, y: float) -> None:
        """A dotted box in the worker's colour: the job is in its hands, but the work has not begun."""
        half = self._bar / 2 - 1
        self._stroke("paper", self.theme.pale(colour, 0.92), x0, y, x1, y)
        for xa, ya, xb, yb in ((x0, -half, x1, -half), (x0, half, x1, half), (x0 + 1, -half, x0 + 1, half)):
            self._stroke("hand", colour, xa, y + ya, xb, y + yb)

    def _draw_patience(self, begin: float, until: float, row: Row) -> None:
        """A dashed outline over the time that is still granted, and a tick where it ends."""
        x0, x1, half = self._x(begin), self._x(until), self._bar / 2 - 0.5
        if until > self._now and x1 - x0 >= 2:
            for edge in (row.y - half, row.y + half):
                self._stroke("patience", self.theme.muted, x0, edge, x1, edge)
            if self._inside(until):
                self._draw_limit(x1, row)

    def _draw_limit(self, x: float, row: Row) -> None:
        half = self._bar / 2 + 2
        self._stroke("limit", self.theme.muted, x, row.y - half, x, row.y + half)
        row.obstacles.append((x - 2, x + 2))

    def _end_mark(self, kind: str, x0: float, x1: float, following: float, y: float) -> float:
        """Set a mark behind the bar where there is room, else inside its end, else upon it; returns where."""
        half = BADGE / 2 + 1
        x = x1 + half if following - x1 >= 2 * half else x1 - half if x1 - x0 >= 4 * half else x1
        self._mark(kind, x, y)
        return x

    def _caption(
        self, row: Row, colour: str, choice: Sequence[str], inner: tuple[float, float], starts: Sequence[float],
        following: float, ground: str = "", least: int = 7,
    ) -> None:  # fmt: skip
        """Write the first of these words for which there is room: in the bar, beside it, above it.

        `inner` is the part of the bar that is free, `ground` its colour if it isn't the worker's, `starts` where words
        may begin beside it, `following` where the next bar begins.
        """
        (left, right), dark, above = inner, self.theme.strong(colour), row.y - self._bar / 2 - 7
        within = text_on(ground or colour)
        places: list[Place] = [(left + 5, row.y, within, right - 5, row.inside)]
        places += [(x, row.y, dark, following - 4, row.obstacles) for x in starts]
        places += [(left, above, dark, following - 4, row.above)] if self._lane else []
        self._place(choice, places, least=least)

    def _place(
        self, choice: Sequence[str], places: Sequence[Place], size: float = 13, bold: bool = True, least: int = 999
    ) -> tuple[float, float] | None:
        """Write the first of these words for which one of the places has room; returns from where to where.

        Words may be cut, if `least` letters are left of them.
        """
        for wanted in choice:
            for x, y, ink, limit, taken in places:
                room = min([limit] + [begin - 4 for begin, end in taken if end > x]) - x
                if shown := fit(wanted, room, size, bold, least=min(len(wanted), least)):
                    self._text(x, y, shown, ink, size=size, bold=bold)
                    taken.append((x, x + text_width(shown, size, bold) + 4))
                    return taken[-1]
        return None

    def _note(self, x: float, y: float, choice: Sequence[str], colour: str, taken: _Spans) -> None:
        """Write the first of these words for which there is room right or left of a mark, or behind "now" near it."""
        now = self._x(self._now)
        for words in choice:
            size = text_width(words)
            for left in (x + 12, x - 12 - size, now + 8 if 0 <= now - x < size + 16 else -size):
                inside = self._left <= left <= self._right - size
                if inside and all(left + size <= begin or end <= left for begin, end in taken):
                    self._text(left, y, words, colour)
                    taken.append((left - 6, left + size + 6))
                    return
