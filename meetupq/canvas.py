"""What both pictures are made of: colours and marks, measured text, and a base picture with rows and a time axis.

Everything is laid out in CSS pixels from the top left corner (`pixel_ratio` scales it at the very end), so whether two
things overlap is plain arithmetic. What stays from frame to frame is drawn once and kept as a bitmap; only bars, marks
and labels in the plot are drawn for each frame.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, nan
from typing import Any, Final, cast

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D
from PIL import Image

from meetupq.history import Event, History, events_of
from meetupq.timeline import JobLine, JobState, Ownership, Timeline, WorkerState

Told = History | Iterable[Event] | Timeline
"""What pictures and twins are made from."""
_Spans = list[tuple[float, float]]
Place = tuple[float, float, str, float, _Spans]
"""Where words may stand: x, y, their colour, up to where, and what they must not cross."""

# --- colours and marks -------------------------------------------------------------------------------

OKABE_ITO: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7F7F7F")
"""The Okabe-Ito colours that colour-blind people can tell apart and that show on white and on dark (so no yellow)."""
WORKER_MARKS: Final[dict[WorkerState, str]] = {
    "waiting": "○", "working": "●", "frozen": "❄", "cut off": "✂", "killed": "✗", "stopped": "■",
}  # fmt: skip
JOB_STATE_COLOURS: Final[dict[JobState, str]] = {
    "waiting": "#57606A", "in flight": "#0072B2", "retrying": "#8A5A00", "stuck": "#5B3E8C", "dead": "#9B1C3A",
    "terminated": "#24292F", "done": "#1A7F37",
}  # fmt: skip
JOB_STATE_MARKS: Final[dict[JobState, str]] = {
    "waiting": "○", "in flight": "▶", "retrying": "↺", "stuck": "⊠", "dead": "◆", "terminated": "■", "done": "✓",
}  # fmt: skip

WHITE, INK, MUTED, FAINT, GRID = "#FFFFFF", "#1F2328", "#57606A", "#C9D1D9", "#E7EAEE"
MARKS: Final = {
    "waiting": ("○", MUTED, "waiting"), "acked": ("✓", "#1A7F37", "acked"), "naked": ("↺", "#8A5A00", "nak"),
    "failed": ("∅", "#7D4E57", "silent"), "killed": ("✗", "#D1242F", "killed"),
    "timed_out": ("hourglass", "#0F6E84", "timed out"), "terminated": ("■", "#24292F", "terminated"),
    "stuck": ("⊠", JOB_STATE_COLOURS["stuck"], "stuck"), "dead": ("◆", JOB_STATE_COLOURS["dead"], "dead"),
    "redriven": ("◇", JOB_STATE_COLOURS["dead"], "redriven"), "escalated": ("➘", "#8E3A9D", "escalated"),
    "free": ("○", MUTED, "free"), "finished": ("✓", "#1A7F37", "finished"),
    "released": ("↩", "#0F6E84", "released"), "cancelled": ("⊖", MUTED, "cancelled"),
    "restored": ("⇄", "#7D4E57", "restored"), "thawed": ("☀", "#A86400", "thawed"),
    "expired": ("▼", "#8A5A00", "expired"), "lost": ("⊘", "#9B1C3A", "found out"),
    "cut": ("✂", "#7D4E57", "cut off"), "frozen": ("❄", "#0072B2", "frozen"),
    "stale": ("burst", "#C8102E", "stale write"), "refused": ("shield", "#0B6B4F", "refused"),
}  # fmt: skip
"""Kind of mark: glyph, colour, the word in the key. The order is that of drawing and of the key."""

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


def worker_colour(timeline: Timeline, name: str) -> str:
    """The colour of a worker, by order of first appearance, so it never changes; after seven darker, then lighter."""
    index = [*timeline.workers, name].index(name)
    other, share = ((WHITE, 0.0), ("#000000", 0.4), (WHITE, 0.5))[index // len(OKABE_ITO) % 3]
    return mix(OKABE_ITO[index % len(OKABE_ITO)], other, share)


@lru_cache(maxsize=512)
def mix(colour: str, other: str, share: float) -> str:
    """The colour with a share of another one; opaque tints, because see-through ones add up where they overlap."""
    red, green, blue = (a + (b - a) * share for a, b in zip(to_rgb(colour), to_rgb(other), strict=True))
    return to_hex((red, green, blue)).upper()


def text_on(colour: str) -> str:
    """White or ink, whichever is easier to read on the colour."""
    red, green, blue = (part**2.2 for part in to_rgb(colour))
    return INK if 0.21 * red + 0.72 * green + 0.07 * blue > 0.22 else WHITE


SHAPES: Final = {
    "hourglass": Path([(-0.75, 1), (0.75, 1), (-0.75, -1), (0.75, -1), (-0.75, 1)], closed=True),
    "burst": Path.unit_regular_star(8, 0.42),
    # A shield with a bar across it, which is drawn the other way round and so is a hole.
    "shield": Path(
        [(-0.85, 0.85), (0, 1), (0.85, 0.85), (0.8, -0.1), (0, -1), (-0.8, -0.1), (-0.85, 0.85),
         (-0.5, 0.1), (0.5, 0.1), (0.5, 0.38), (-0.5, 0.38), (-0.5, 0.1)],
        [1, 2, 2, 2, 2, 2, 79, 1, 2, 2, 2, 79],
    ),
}  # fmt: skip
"""The shapes that the font lacks."""


@lru_cache(maxsize=64)
def _shape(kind: str) -> Path:
    """A mark as an outline around (0, 0), so that one Line2D draws all marks of a kind."""
    glyph = MARKS[kind][0]
    if glyph in SHAPES:
        return SHAPES[glyph]
    path = TextPath((0, 0), glyph, size=100, prop=_font(13, False))
    box = path.get_extents()
    return path.transformed(Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2))


# --- text ------------------------------------------------------------------------------------------

_RULER: Final = cast(Any, RendererAgg)(1, 1, 72)
_FONT: Final = "DejaVu Sans"  # ships with matplotlib, so the pictures look alike everywhere


@lru_cache(maxsize=64)
def _font(size: float, bold: bool) -> FontProperties:
    return FontProperties(family=_FONT, size=size, weight="bold" if bold else "normal")


@lru_cache(maxsize=8192)
def text_width(text: str, size: float = 13, bold: bool = False) -> float:
    """The width of a text in CSS pixels, with one to spare for other pixel ratios."""
    return float(_RULER.get_text_width_height_descent(text, _font(size, bold), False)[0]) + 1


@lru_cache(maxsize=8192)
def fit(text: str, room: float, size: float = 13, bold: bool = False, least: int = 3) -> str:
    """The text, cut with an ellipsis so that it fits; "" where fewer than `least` letters would be left."""
    if len(text) <= 120 and text_width(text, size, bold) <= room:
        return text
    # Nothing longer fits anywhere, and to measure thousands of letters takes seconds.
    cuts = (text[:length] + "…" for length in range(min(len(text) - 1, 120), least - 1, -1))
    return next((cut for cut in cuts if text_width(cut, size, bold) <= room), "")


@lru_cache(maxsize=8192)
def plain(text: str) -> str:
    """One line of text of which the font has every letter: a missing one would warn in the middle of a lesson."""
    known = get_font(findfont(_font(13, True))).get_charmap()
    return "".join(letter if ord(letter) in known else "\ufffd" for letter in " ".join(text.split()))


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


def window(now: float) -> tuple[float, float]:
    """The seconds that the time axis shows: it grows and moves in steps, so that many frames share one background."""
    for span in (10.0, 15.0, 20.0, 30.0, 45.0, 60.0):
        if now <= 0.85 * span:
            return 0.0, span
    start = ceil((now - 0.85 * 60) / 15) * 15.0
    return start, start + 60


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


class Picture:
    """A figure of fixed size with rows, a time axis and a "now" line; subclasses say what is in the rows.

    Args:
        width, height: in CSS pixels.
        pixel_ratio: device pixels per CSS pixel; the PNG is width * pixel_ratio wide.
    """

    title = subtitle = nothing = ""
    axis_label = "seconds since the stage opened"
    right_margin = EDGE
    least_pitch, lane_from_pitch, most_pitch = 24.0, 34.0, 58.0
    two_lanes = False
    """Whether there is a second, thinner lane below the bars of a row."""

    def __init__(self, *, width: int = 960, height: int = 380, pixel_ratio: float = 1.0) -> None:
        self.width, self.height, self.pixel_ratio = width, height, pixel_ratio
        # At 72 dots an inch a point is a CSS pixel: all font sizes and line widths are pixels.
        self.figure = Shown(figsize=(width / 72, height / 72), dpi=72 * pixel_ratio, facecolor="white")
        self.full_draws = 0
        self.spot: tuple[str, float] | None = None
        """A row's name and a moment to point out, with light behind what is there."""
        self._canvas: Any = FigureCanvasAgg(self.figure)
        self._pixels = Affine2D().scale(pixel_ratio, -pixel_ratio).translate(0, height * pixel_ratio)
        self._top, self._bottom = _TOP, max(height - _BOTTOM, _TOP + 20)
        self._left, self._right = 96.0, width - min(self.right_margin, width * 0.55)
        self._most_rows = max(1, int((self._bottom - self._top) // self.least_pitch))
        self._fixed: list[Line2D | Text] = []
        self._moving: list[Line2D | Text] = []
        self._points: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
        self._key: object = None
        self._background: Any = None
        self._axes = self.figure.add_axes((0, 0, 1, 1), facecolor="none")
        self._axes.spines[["top", "left", "right"]].set_visible(False)
        self._axes.spines["bottom"].set(color=FAINT, linewidth=1, zorder=0.5)
        self._axes.yaxis.set_visible(False)
        self._axes.tick_params("x", length=0, pad=6, labelsize=13, labelcolor=MUTED, labelfontfamily=_FONT)
        self._axes.grid(True, axis="x", color=GRID, linewidth=1, linestyle="-")
        self._axes.set_axisbelow(True)

    def update(self, timeline: Timeline, now: float) -> None:
        """Bring the picture up to date with the timeline at `now` (seconds); `png` then draws it."""
        self._timeline, self._now = timeline, max(now, 0.0)
        self._start, self._stop = window(self._now)
        self._points = {}
        while self._moving:
            self._moving.pop().remove()
        names, folded = self._choose_rows()
        self._lay_out(names)
        self._draw_outages()
        here = self._x(self._now)
        self._stroke("now", INK, here, self._top - 4, here, self._bottom)
        # The strip between subtitle and plot is kept free for this label.
        self._text(here, self._top - 13, "now", INK, align="center", bold=True)
        self._draw_rows()
        self._draw_spot(names)
        room = self.width - EDGE - self._left - text_width(self.axis_label) - 16
        self._text(self.width - EDGE, self.height - 12, fit(folded, room), MUTED, align="right")
        if not names and not folded:
            middle = (self._left + self._right) / 2, (self._top + self._bottom) / 2
            self._text(*middle, self.nothing, MUTED, size=16, align="center")
        for (kind, colour), points in self._points.items():
            self._moving.append(self._line(kind, colour, *points, animated=True))
        self._moving.sort(key=lambda artist: artist.get_zorder())
        kinds = [kind for kind in MARKS if ("mark", kind) in self._points]
        key = (self._start, self._stop, names, self._left, self._pitch, kinds)
        if key != self._key:
            self._key, self._background = key, None
            self._dress(names, kinds)

    def png(self) -> bytes:
        """The picture as PNG bytes."""
        if self._background is None:
            self._canvas.draw()
            self._background = self._canvas.copy_from_bbox(self.figure.bbox)
            self.full_draws += 1
        else:
            self._canvas.restore_region(self._background)
        for artist in self._moving:
            self.figure.draw_artist(artist)
        return encode(self.figure, drawn=True)

    def as_figure(self, timeline: Timeline, now: float) -> Figure:
        """Update, then let go of the figure: from here on it is an ordinary one that draws itself completely."""
        self.update(timeline, now)
        for artist in self._moving:
            artist.set_animated(False)
        return self.figure

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
        # The column of names grows in steps, so that one more letter doesn't move the whole picture.
        widest = max((text_width(plain(name), 14) for name in names), default=0.0)
        self._left = min(max(ceil((widest + 26) / 32) * 32.0, 96.0), self.width * 0.24)
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
        width, height = self.width, self.height
        box = (self._left, height - self._bottom, self._right - self._left, self._bottom - self._top)
        self._axes.set_position((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
        self._axes.set_xlim(self._start, self._stop)
        step = next(step for step in (1, 2, 5, 10) if (self._stop - self._start) / step <= 10)
        self._axes.set_xticks(range(ceil(self._start / step) * step, int(self._stop) + 1, step))
        self._text(EDGE, 22, self.title, INK, size=17, bold=True, fixed=True)
        self._text(EDGE, 44, fit(self.subtitle, width - 2 * EDGE), MUTED, fixed=True)
        self._text(self._left, height - 12, self.axis_label, MUTED, fixed=True)
        for name, y in zip(names, self._ys, strict=True):
            words = fit(plain(name), self._left - 22, 14)
            self._text(self._left - 14, y, words, INK, size=14, align="right", fixed=True)
        # The key stands on the title's line. Its first kinds are the everyday ones: they go first if room is short.
        sizes = {kind: text_width(MARKS[kind][2]) + 36 for kind in kinds}
        while sum(sizes.values()) > width - 2 * EDGE - text_width(self.title, 17, True) - 8:
            del sizes[next(iter(sizes))]
        x = width - EDGE - sum(sizes.values()) + 16
        for kind, size in sizes.items():
            self._fixed.append(self._line("mark", kind, [x + 7], [22]))
            self._text(x + 20, 22, MARKS[kind][2], MUTED, fixed=True)
            x += size

    def _stroke(self, kind: str, colour: str, x0: float, y0: float, x1: float, y1: float) -> None:
        """A line between two pixels. All of one kind and colour are one Line2D with breaks: by far the fastest."""
        xs, ys = self._points.setdefault((kind, colour), ([], []))
        xs += (x0, x1, nan)
        ys += (y0, y1, nan)

    def _mark(self, kind: str, x: float, y: float) -> None:
        """A mark on a white disc, so that it is seen on bars and on the "now" line too."""
        for key in (("disc", WHITE), ("mark", kind)):
            xs, ys = self._points.setdefault(key, ([], []))
            xs.append(x)
            ys.append(y)

    def _text(
        self, x: float, y: float, words: str, colour: str,
        *, size: float = 13, bold: bool = False, align: str = "left", fixed: bool = False,
    ) -> None:  # fmt: skip
        if words:
            x -= {"left": 0.0, "center": 0.5, "right": 1.0}[align] * text_width(words, size, bold)
            # On whole device pixels letters are sharp; the baseline follows from the size, so that it is one in a row.
            x, y = (round(at * self.pixel_ratio) / self.pixel_ratio for at in (x, y + size * 0.36))
            text = self.figure.text(x, y, words, transform=self._pixels, parse_math=False, usetex=False)
            text.set(color=colour, fontproperties=_font(size, bold), animated=not fixed)
            (self._fixed if fixed else self._moving).append(text)

    def _line(self, kind: str, colour: str, xs: Sequence[float], ys: Sequence[float], animated: bool = False) -> Line2D:
        line = Line2D(xs, ys, transform=self._pixels, linestyle="none", markeredgewidth=0, animated=animated)
        if kind == "mark":
            line.set(marker=_shape(colour), markersize=_MARK, markerfacecolor=MARKS[colour][1])
            line.set(zorder=2.9 + list(MARKS).index(colour) / 1000)
        elif kind == "disc":
            line.set(marker="o", markersize=BADGE, markerfacecolor=colour, zorder=2.8)
        else:
            order, width, dashes = _STROKES[kind]
            line.set(linestyle=(0, dashes) if dashes else "-", color=colour, zorder=order)
            line.set(linewidth=width or self._widths[kind], dash_capstyle="butt")
            line.set(solid_capstyle="round" if kind == "spot" else "butt")
        self.figure.add_artist(line)
        return line

    def _draw_outages(self) -> None:
        middle = (self._top + self._bottom) / 2
        for outage in self._timeline.outages:
            x0, x1 = self._x(outage.start), self._x(self._now if outage.end is None else outage.end)
            if x1 > x0:
                self._stroke("outage", "#E4E7EB", x0, middle, x1, middle)
                if (x0 + x1 + text_width("no broker")) / 2 < self._x(self._now) - 24:
                    self._text((x0 + x1) / 2, self._top - 13, "no broker", MUTED, align="center")

    def _draw_spot(self, names: Sequence[str]) -> None:
        if self.spot and self.spot[0] in names:
            # Of two rows of this name the last one: a job may be called DLQ.
            y, x = dict(zip(names, self._ys, strict=True))[self.spot[0]], self._x(self.spot[1])
            self._stroke("spotlit", "#FFF9E3", self._left, y, self._right, y)
            self._stroke("spot", "#FFE184", x - 6, y, x + 6, y)

    def _draw_wait(self, begin: float, end: float, kind: str, y: float) -> None:
        """A hollow mark where a job or item came, and a thin line for as long as it waits for a worker."""
        self._stroke("wait", FAINT, self._x(begin), y, self._x(end), y)
        if kind:
            self._mark(kind, max(self._x(begin), self._left + 9), y)

    def _draw_bar(self, colour: str, x0: float, x1: float, y: float, ticks: Iterable[float]) -> None:
        """A bar with white notches in its lower edge; at least 3 pixels long, for zero seconds are to be seen too."""
        self._stroke("bar", colour, x0, y, max(x1, x0 + 3), y)
        base, height = y + self._bar / 2, max(min(4.0, self._bar / 2 - 5), 2.0)  # clear of the letters in the bar
        for x in (self._x(tick) for tick in ticks if self._inside(tick)):
            self._stroke("beat", WHITE, x, base, x, base - height)

    def _draw_tail(self, colour: str, x0: float, x1: float, y: float, white: float = 0.78) -> None:
        self._stroke("tail", mix(colour, WHITE, white), x0, y, x1, y)

    def _draw_hand(self, colour: str, x0: float, x1: float, y: float) -> None:
        """A dotted box in the worker's colour: the job is in its hands, but the work has not begun."""
        half = self._bar / 2 - 1
        self._stroke("paper", mix(colour, WHITE, 0.92), x0, y, x1, y)
        for xa, ya, xb, yb in ((x0, -half, x1, -half), (x0, half, x1, half), (x0 + 1, -half, x0 + 1, half)):
            self._stroke("hand", colour, xa, y + ya, xb, y + yb)

    def _draw_patience(self, begin: float, until: float, row: Row) -> None:
        """A dashed outline over the time that is still granted, and a tick where it ends."""
        x0, x1, half = self._x(begin), self._x(until), self._bar / 2 - 0.5
        if until > self._now and x1 - x0 >= 2:
            for edge in (row.y - half, row.y + half):
                self._stroke("patience", MUTED, x0, edge, x1, edge)
            if self._inside(until):
                self._draw_limit(x1, row)

    def _draw_limit(self, x: float, row: Row) -> None:
        half = self._bar / 2 + 2
        self._stroke("limit", MUTED, x, row.y - half, x, row.y + half)
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
        (left, right), dark, above = inner, mix(colour, "#000000", 0.45), row.y - self._bar / 2 - 7
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


class Shown(Figure):
    """A figure that a notebook shows by itself: without pyplot nobody else has told it how."""

    def _repr_png_(self) -> bytes:
        FigureCanvasAgg(self)
        return encode(self)


def encode(figure: Figure, *, drawn: bool = False) -> bytes:
    """A figure as PNG bytes; `drawn` says that its pixels are up to date."""
    canvas: Any = figure.canvas
    if not drawn:
        canvas.draw()
    # Never savefig: it would draw a live picture again, and without the moving artists.
    file = io.BytesIO()
    Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]).save(file, "png", compress_level=1)
    return file.getvalue()
