"""The two pictures and their text twins, all drawn and told from one `Timeline`.

`DeliveryPicture` and `LeasePicture` are live: `update` them, then take a `png`. `delivery_attempts` and
`lease_ownership` draw the same pictures once. `describe_deliveries` and `describe_leases` say in words what they show.

Everything is laid out in CSS pixels from the top left corner (`pixel_ratio` scales it at the very end), so whether two
things overlap is plain arithmetic. What stays from frame to frame is drawn once and kept as a bitmap; only bars, marks
and labels in the plot are drawn for each frame.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, inf, nan
from typing import Any, Final, TypeVar, cast

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D
from PIL import Image

from meetupq.history import Event, History, events_of
from meetupq.timeline import Attempt, ItemLine, JobLine, JobState, Ownership, Timeline, WorkerState

Told = History | Iterable[Event] | Timeline
"""What pictures and twins are made from."""
_Line = TypeVar("_Line", JobLine, ItemLine)

# --- colours and marks -------------------------------------------------------------------------------

OKABE_ITO: Final[tuple[str, ...]] = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7F7F7F")
"""The Okabe-Ito colours that colour-blind people can tell apart and that show on white and on dark (so no yellow)."""
WORKER_MARKS: Final[dict[WorkerState, str]] = {
    "waiting": "○", "working": "●", "frozen": "❄", "cut off": "✂", "killed": "✗", "stopped": "■",
}  # fmt: skip
JOB_STATE_COLOURS: Final[dict[JobState, str]] = {
    "waiting": "#57606A", "in flight": "#0072B2", "retrying": "#8A5A00", "stuck": "#5B3E8C", "dead": "#9B1C3A",
    "done": "#1A7F37",
}  # fmt: skip
JOB_STATE_MARKS: Final[dict[JobState, str]] = {
    "waiting": "○", "in flight": "▶", "retrying": "↺", "stuck": "⊠", "dead": "◆", "done": "✓",
}  # fmt: skip

INK, MUTED, FAINT, GRID = "#1F2328", "#57606A", "#C9D1D9", "#E7EAEE"
MARKS: Final[dict[str, tuple[str, str, str]]] = {
    "waiting": ("○", MUTED, "waiting"),
    "acked": ("✓", "#1A7F37", "acked"),
    "naked": ("↺", "#8A5A00", "nak"),
    "failed": ("∅", "#7D4E57", "silent"),
    "killed": ("✗", "#D1242F", "killed"),
    "timed_out": ("hourglass", "#0F6E84", "timed out"),
    "terminated": ("■", "#24292F", "terminated"),
    "stuck": ("⊠", JOB_STATE_COLOURS["stuck"], "stuck"),
    "dead": ("◆", JOB_STATE_COLOURS["dead"], "dead"),
    "redriven": ("◇", JOB_STATE_COLOURS["dead"], "redriven"),
    "free": ("○", MUTED, "free"),
    "gone": ("✗", "#D1242F", "owner gone"),
    "frozen": ("❄", "#0072B2", "frozen"),
    "cut off": ("✂", "#7D4E57", "cut off"),
    "expired": ("▼", "#8A5A00", "expired"),
    "released": ("↩", "#0F6E84", "released"),
    "lost": ("⊘", "#9B1C3A", "lost"),
    "finished": ("✓", "#1A7F37", "finished"),
}
"""Kind of mark: glyph, colour, the word in the key. The order is that of drawing and of the key."""

# Kind of stroke: drawing order, width in pixels (0 = follows the layout), dashes.
_STROKES: Final[dict[str, tuple[float, float, tuple[float, ...]]]] = {
    "outage": (1.0, 0, ()), "plate": (1.1, 0, ()), "wait": (1.2, 1.5, ()), "fall": (1.3, 1.4, ()), "tail": (2.0, 0, ()),
    "hatch": (2.1, 1.2, ()), "bar": (2.2, 0, ()), "late": (2.3, 4, ()), "swatch": (2.3, 12, ()), "beat": (2.4, 1.8, ()),
    "patience": (2.5, 1.1, (3, 2.5)), "limit": (2.6, 1.6, ()), "now": (2.7, 1.3, ()),
}  # fmt: skip

_FONT: Final = "DejaVu Sans"  # ships with matplotlib, so the pictures look alike everywhere
_SPANS: Final = (10.0, 15.0, 20.0, 30.0, 45.0, 60.0)
_SHIFT, _FULL = 15.0, 0.85
_EDGE, _TOP, _BOTTOM = 20.0, 80.0, 48.0
_LANE, _LANE_FROM_PITCH, _MOST_PITCH, _MOST_BAR = 15.0, 34.0, 58.0, 32.0
_MARK, _BADGE = 13.5, 18.0


def worker_colour(timeline: Timeline, name: str) -> str:
    """The colour of a worker, by order of first appearance, so it never changes; after seven darker, then lighter."""
    return _colours(timeline).get(name, OKABE_ITO[-1])


def _colours(timeline: Timeline) -> dict[str, str]:
    shades, number = (("#FFFFFF", 0.0), ("#000000", 0.4), ("#FFFFFF", 0.5)), len(OKABE_ITO)
    return {
        name: _mix(OKABE_ITO[index % number], *shades[index // number % len(shades)])
        for index, name in enumerate(timeline.workers)
    }


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


@lru_cache(maxsize=512)
def _mix(colour: str, other: str, share: float) -> str:
    """The colour with a share of another one; opaque tints, because see-through ones add up where they overlap."""
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in zip(_rgb(colour), _rgb(other), strict=True))


@lru_cache(maxsize=512)
def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in _rgb(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _on(colour: str) -> str:
    """White or ink, whichever is easier to read on the colour (by WCAG contrast)."""
    white, ink, here = (_luminance(c) + 0.05 for c in ("#FFFFFF", INK, colour))
    return "#FFFFFF" if white / here >= here / ink else INK


@lru_cache(maxsize=64)
def _shape(kind: str) -> Path:
    """A mark as an outline around (0, 0), so that one Line2D draws all marks of a kind."""
    glyph = MARKS[kind][0]
    if glyph == "hourglass":  # the one shape that DejaVu Sans lacks
        return Path([(-0.75, 1), (0.75, 1), (-0.75, -1), (0.75, -1), (-0.75, 1)], closed=True)
    path = TextPath((0, 0), glyph, size=100, prop=FontProperties(family=_FONT))
    box = path.get_extents()
    return path.transformed(Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2))


# --- text ------------------------------------------------------------------------------------------

_RULER: Final = cast(Any, RendererAgg)(1, 1, 72)


@lru_cache(maxsize=64)
def _font(size: float, bold: bool) -> FontProperties:
    return FontProperties(family=_FONT, size=size, weight="bold" if bold else "normal")


@lru_cache(maxsize=8192)
def _width(text: str, size: float = 13, bold: bool = False) -> float:
    """The width of a text in CSS pixels, with one to spare for other pixel ratios."""
    return float(_RULER.get_text_width_height_descent(text, _font(size, bold), False)[0]) + 1


@lru_cache(maxsize=8192)
def _fit(text: str, room: float, size: float = 13, bold: bool = False, least: int = 3) -> str:
    """The text, cut with an ellipsis so that it fits; "" where fewer than `least` letters would be left."""
    if _width(text, size, bold) <= room:
        return text
    cuts = (text[:length] + "…" for length in range(len(text) - 1, least - 1, -1))
    return next((cut for cut in cuts if _width(cut, size, bold) <= room), "")


@lru_cache(maxsize=8192)
def _plain(text: str) -> str:
    """One line of text of which the font has every letter: a missing one would warn in the middle of a lesson."""
    known = get_font(findfont(_font(13, True))).get_charmap()
    return "".join(letter if ord(letter) in known else "\ufffd" for letter in " ".join(text.split()))


# --- what both pictures share ----------------------------------------------------------------------------


def window(now: float) -> tuple[float, float]:
    """The seconds that the time axis shows: it grows and moves in steps, so that many frames share one background."""
    for span in _SPANS:
        if now <= _FULL * span:
            return 0.0, span
    start = ceil((now - _FULL * _SPANS[-1]) / _SHIFT) * _SHIFT
    return start, start + _SPANS[-1]


@dataclass
class _Row:
    """Where a row is, up to where it and the lane above its bars are taken, and what no label may cross (pixels)."""

    y: float
    taken: float
    lane: float
    obstacles: list[tuple[float, float]] = field(default_factory=list)

    def space(self, x: float, limit: float) -> float:
        """How many pixels are free for a label that begins at `x`."""
        return min([limit] + [left for left, right in self.obstacles if right > x]) - x


class _Picture:
    """A figure of fixed size with rows, a time axis and a "now" line; subclasses say what is in the rows."""

    title = subtitle = nothing = ""
    axis_label = "seconds since the stage opened"
    right_margin, least_pitch = _EDGE, 24.0

    def __init__(self, *, width: int = 960, height: int = 380, pixel_ratio: float = 1.0) -> None:
        self.width, self.height, self.pixel_ratio = width, height, pixel_ratio
        # At 72 dots an inch a point is a CSS pixel: all font sizes and line widths are pixels.
        self.figure = Figure(figsize=(width / 72, height / 72), dpi=72 * pixel_ratio, facecolor="white")
        self.full_draws = 0
        self._canvas: Any = FigureCanvasAgg(self.figure)
        self._pixels = Affine2D().scale(pixel_ratio, -pixel_ratio).translate(0, height * pixel_ratio)
        self._top, self._bottom = _TOP, max(height - _BOTTOM, _TOP + 20)
        self._left, self._right = 96.0, width - self.right_margin
        self._fixed: list[Line2D | Text] = []
        self._lines: dict[tuple[str, str], Line2D] = {}
        self._points: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
        self._texts: list[Text] = []
        self._texts_used = 0
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
        self._colours = _colours(timeline)
        self._start, self._stop = window(self._now)
        self._points, self._texts_used = {}, 0
        names, folded = self._choose_rows()
        self._lay_out(names)
        self._draw_outages()
        self._draw_now()
        self._draw_rows()
        if folded:
            room = self.width - _EDGE - self._left - _width(self.axis_label) - 16
            words = next((words for words in folded if _width(words) <= room), "")
            self._text(self.width - _EDGE, self.height - 12, words, MUTED, align="right")
        elif not names:
            middle, half = (self._left + self._right) / 2, _width(self.nothing, 16) / 2
            y = (self._top + self._bottom) / 2
            self._stroke("plate", "#FFFFFF", middle - half - 12, y, middle + half + 12, y)
            self._text(middle - half, y, self.nothing, MUTED, size=16)
        self._flush()
        kinds = [kind for kind in MARKS if ("mark", kind) in self._points]
        key = (self._start, self._stop, names, self._left, self._pitch, kinds)
        if key != self._key:
            self._key, self._background = key, None
            self._dress(names, kinds)

    def png(self) -> bytes:
        """The picture as PNG bytes."""
        self._draw()
        return _png(self._canvas)

    def _draw(self) -> None:
        if self._background is None:
            self._canvas.draw()
            self._background = self._canvas.copy_from_bbox(self.figure.bbox)
            self.full_draws += 1
        else:
            self._canvas.restore_region(self._background)
        for artist in self._moving():
            self.figure.draw_artist(artist)

    def _moving(self) -> list[Line2D | Text]:
        lines = [line for key, line in self._lines.items() if key in self._points]
        return [*sorted(lines, key=lambda line: line.get_zorder()), *self._texts[: self._texts_used]]

    def _drawn_once(self) -> Figure:
        """Draw, then let go of the figure: from here on it is an ordinary one that can draw itself completely."""
        self._draw()
        for artist in self._moving():
            artist.set_animated(False)
        return self.figure

    # --- layout: each picture says which rows there are and what is in them

    def _choose_rows(self) -> tuple[list[str], list[str]]:
        raise NotImplementedError

    def _draw_rows(self) -> None:
        raise NotImplementedError

    def _rows_that_fit(self) -> int:
        return max(1, int((self._bottom - self._top) // self.least_pitch))

    @staticmethod
    def _fold(
        lines: Iterable[_Line], room: int, past: Callable[[_Line], bool], order: Callable[[_Line], tuple[int, float]]
    ) -> tuple[list[_Line], list[_Line]]:
        """Split lines into shown and folded away: what lies left of the window, then by `order` until the rest fits."""
        every = list(lines)
        hidden = {line.name for line in every if past(line)}
        shown = [line for line in every if line.name not in hidden]
        hidden |= {line.name for line in sorted(shown, key=order)[: max(len(shown) - room, 0)]}
        return [line for line in every if line.name not in hidden], [line for line in every if line.name in hidden]

    @staticmethod
    def _folded(hidden: Sequence[JobLine] | Sequence[ItemLine], noun: str) -> list[str]:
        """What is folded away, in full and in short."""
        counted = Counter("finished" if line.state == "done" else line.state for line in hidden)
        nouns = noun if len(hidden) == 1 else noun + "s"
        parts = ", ".join(f"{number} {state}" for state, number in sorted(counted.items()))
        return [f"+ {parts} {nouns} not shown", f"+ {len(hidden)} {nouns} not shown"] if hidden else []

    def _lay_out(self, names: Sequence[str]) -> None:
        # The column of names grows in steps, so that one more letter doesn't move the whole picture.
        widest = max((_width(_plain(name), 14) for name in names), default=0.0)
        self._left = min(max(ceil((widest + 26) / 32) * 32.0, 96.0), self.width * 0.24)
        self._pitch = min((self._bottom - self._top) / max(len(names), 4), _MOST_PITCH)
        self._lane = _LANE if self._pitch >= _LANE_FROM_PITCH else 0.0
        self._bar = min((self._pitch - self._lane) * (0.84 if self._lane else 0.74), _MOST_BAR)
        first = self._top + self._lane + (self._pitch - self._lane) / 2
        self._ys = [first + index * self._pitch for index in range(len(names))]

    def _row(self, y: float) -> _Row:
        now = self._x(self._now)
        return _Row(y, self._left, self._left, [(now - 4, now + 4)])

    def _x(self, at: float) -> float:
        """The pixel of a moment, kept inside the plot."""
        share = (at - self._start) / (self._stop - self._start)
        return self._left + min(max(share, 0.0), 1.0) * (self._right - self._left)

    def _inside(self, at: float) -> bool:
        return self._start <= at <= self._stop

    # --- the background: drawn when the axis, the rows or the key change

    def _dress(self, names: Sequence[str], kinds: Sequence[str]) -> None:
        for artist in self._fixed:
            artist.remove()
        self._fixed = []
        width, height = self.width, self.height
        box = (self._left, height - self._bottom, self._right - self._left, self._bottom - self._top)
        self._axes.set_position((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
        self._axes.set_xlim(self._start, self._stop)
        step = next(step for step in (1, 2, 5, 10) if (self._stop - self._start) / step <= 10)
        self._axes.set_xticks(range(ceil(self._start / step) * step, int(self._stop) + 1, step))
        self._label(_EDGE, 22, self.title, INK, size=17, bold=True)
        self._label(_EDGE, 44, _fit(self.subtitle, width - 2 * _EDGE), MUTED)
        self._label(self._left, height - 12, self.axis_label, MUTED)
        for name, y in zip(names, self._ys, strict=True):
            self._label(self._left - 14, y, _fit(_plain(name), self._left - 22, 14), INK, size=14, align="right")
        # The key stands on the title's line. Its first kinds are the everyday ones: they go first if room is short.
        sizes = {kind: _width(MARKS[kind][2]) + 36 for kind in kinds}
        while sum(sizes.values()) > width - 2 * _EDGE - _width(self.title, 17, True) - 8:
            del sizes[next(iter(sizes))]
        x = width - _EDGE - sum(sizes.values()) + 16
        for kind, size in sizes.items():
            self._fixed.append(self._new_line("mark", kind))
            self._fixed[-1].set(data=([x + 7], [22]))
            self._label(x + 20, 22, MARKS[kind][2], MUTED)
            x += size

    def _label(self, x: float, y: float, words: str, colour: str, **how: Any) -> None:
        self._fixed.append(self._new_text())
        self._put(cast(Text, self._fixed[-1]), x, y, words, colour, **how)

    # --- the moving part: strokes, marks and texts are collected, then handed to the artists

    def _stroke(self, kind: str, colour: str, x0: float, y0: float, x1: float, y1: float) -> None:
        """A line between two pixels. All of one kind and colour are one Line2D with breaks: by far the fastest."""
        xs, ys = self._points.setdefault((kind, colour), ([], []))
        xs += (x0, x1, nan)
        ys += (y0, y1, nan)

    def _mark(self, kind: str, x: float, y: float) -> None:
        """A mark on a white disc, so that it is seen on bars and on the "now" line too."""
        for key in (("disc", ""), ("mark", kind)):
            xs, ys = self._points.setdefault(key, ([], []))
            xs.append(x)
            ys.append(y)

    def _text(self, x: float, y: float, words: str, colour: str, **how: Any) -> None:
        if not words:
            return
        if self._texts_used == len(self._texts):
            self._texts.append(self._new_text(animated=True))
        self._put(self._texts[self._texts_used], x, y, words, colour, **how)
        self._texts_used += 1

    def _put(
        self, text: Text, x: float, y: float, words: str, colour: str,
        *, size: float = 13, bold: bool = False, align: str = "left",
    ) -> None:  # fmt: skip
        x -= {"left": 0.0, "center": 0.5, "right": 1.0}[align] * _width(words, size, bold)
        # On whole device pixels the letters are sharp; the baseline follows from the size, so that it is one in a row.
        x, y = (round(at * self.pixel_ratio) / self.pixel_ratio for at in (x, y + size * 0.36))
        text.set(x=x, y=y, text=words, color=colour, fontproperties=_font(size, bold), visible=True)

    def _new_text(self, **how: Any) -> Text:
        return self.figure.text(0, 0, "", transform=self._pixels, parse_math=False, usetex=False, **how)

    def _new_line(self, kind: str, colour: str) -> Line2D:
        line = Line2D([], [], transform=self._pixels, linestyle="none", markeredgewidth=0)
        if kind == "mark":
            line.set(marker=_shape(colour), markersize=_MARK, markerfacecolor=MARKS[colour][1])
            line.set(zorder=2.9 + list(MARKS).index(colour) / 1000)
        elif kind == "disc":
            line.set(marker="o", markersize=_BADGE, markerfacecolor="white", zorder=2.8)
        else:
            order, width, dashes = _STROKES[kind]
            line.set(linestyle=(0, dashes) if dashes else "-", marker="None", color=colour, zorder=order)
            line.set(linewidth=width, solid_capstyle="butt", dash_capstyle="butt")
        self.figure.add_artist(line)
        return line

    def _flush(self) -> None:
        plate = min(30.0, self._pitch - 2)
        widths = {"bar": self._bar, "tail": self._bar, "outage": self._bottom - self._top, "plate": plate}
        for key, points in self._points.items():
            if key not in self._lines:
                self._lines[key] = self._new_line(*key)
                self._lines[key].set_animated(True)
            self._lines[key].set_data(*points)
            if key[0] in widths:
                self._lines[key].set_linewidth(widths[key[0]])

    # --- pieces of rows

    def _draw_now(self) -> None:
        x = self._x(self._now)
        self._stroke("now", INK, x, self._top - 4, x, self._bottom)
        # The strip between subtitle and plot is kept free for this label.
        self._text(x, self._top - 13, "now", INK, align="center", bold=True)

    def _draw_outages(self) -> None:
        middle = (self._top + self._bottom) / 2
        for outage in self._timeline.outages:
            x0, x1 = self._x(outage.start), self._x(self._now if outage.end is None else outage.end)
            if x1 > x0:
                self._stroke("outage", "#E4E7EB", x0, middle, x1, middle)
                half = _width("no broker") / 2
                if (x0 + x1) / 2 + half < self._x(self._now) - 24:
                    self._text((x0 + x1) / 2, self._top - 13, "no broker", MUTED, align="center")

    def _draw_bar(self, colour: str, x0: float, x1: float, y: float, ticks: Iterable[float]) -> None:
        """A bar with white notches in its lower edge; at least 3 pixels long, for zero seconds are to be seen too."""
        self._stroke("bar", colour, x0, y, max(x1, x0 + 3), y)
        base, height = y + self._bar / 2, max(self._bar * 0.2, 4.0)
        for x in (self._x(tick) for tick in ticks if self._inside(tick)):
            self._stroke("beat", "#FFFFFF", x, base, x, base - height)

    def _draw_patience(self, begin: float, until: float, row: _Row) -> None:
        """A dashed outline over the time that is still granted, and a tick where it ends."""
        x0, x1, half = self._x(begin), self._x(until), self._bar / 2 - 0.5
        if until > self._now and x1 - x0 >= 2:
            for edge in (row.y - half, row.y + half):
                self._stroke("patience", MUTED, x0, edge, x1, edge)
            if self._inside(until):
                self._draw_limit(x1, row)

    def _draw_limit(self, x: float, row: _Row) -> None:
        half = self._bar / 2 + 2
        self._stroke("limit", MUTED, x, row.y - half, x, row.y + half)
        row.obstacles.append((x - 2, x + 2))

    def _end_mark(self, kind: str, x0: float, x1: float, following: float, y: float) -> float:
        """Set a mark behind the bar where there is room, else inside its end, else upon it; returns where."""
        half = _BADGE / 2 + 1
        x = x1 + half if following - x1 >= 2 * half else x1 - half if x1 - x0 >= 4 * half else x1
        self._mark(kind, x, y)
        return x

    def _caption(
        self, row: _Row, colour: str, words: tuple[str, str, str], inner: tuple[float, float], starts: Sequence[float],
        following: float,
    ) -> None:  # fmt: skip
        """Write number and worker into a bar, else beside it, else above it: the first place that has room.

        Args:
            words: the number, the number with the worker, the worker.
            inner: the part of the bar that is free, pixels.
            starts: where the words may begin beside it.
            following: where the next bar begins.
        """
        number, full, name = words
        room, dark = inner[1] - inner[0] - 10, _mix(colour, "#000000", 0.45)
        inside = _fit(full, room, bold=True, least=len(number) + 6)
        if not inside and _width(number, 13, True) <= room:
            inside = number
        self._text(inner[0] + 5, row.y, inside, _on(colour), bold=True)
        if len(inside) > len(number):
            return
        wanted = name if inside else full
        for start in starts:
            if beside := _fit(wanted, row.space(start, following) - 4, bold=True, least=7):
                self._text(start, row.y, beside, dark, bold=True)
                row.taken = max(row.taken, start + _width(beside, 13, True))
                return
        start = max(inner[0], row.lane)
        space = row.space(start, following) - 4
        above = _fit(wanted, space, bold=True, least=5) or ("" if inside else _fit(number, space + 8, bold=True))
        if above and self._lane and start - inner[0] < 12:
            self._text(start, row.y - self._bar / 2 - 7, above, dark, bold=True)
            row.lane = start + _width(above, 13, True) + 4
        elif not inside and row.taken + _width(number, 13, True) + 6 < inner[0]:
            self._text(inner[0] - 4, row.y, number, dark, bold=True, align="right")


# --- delivery attempts ------------------------------------------------------------------------------

_FOLDED_FIRST: Final[tuple[JobState, ...]] = ("done", "dead", "waiting", "retrying", "stuck", "in flight")


class DeliveryPicture(_Picture):
    """The live picture of delivery attempts: a row per job, a bar per attempt, and the DLQ at the bottom.

    Args:
        width, height: in CSS pixels.
        pixel_ratio: device pixels per CSS pixel; the PNG is width * pixel_ratio wide.
    """

    title = "Delivery attempts"
    subtitle = (
        "a bar = one attempt in its worker's colour · faint = the broker still waits · dashed = until it gives up"
    )
    nothing = "nothing published yet"

    def _choose_rows(self) -> tuple[list[str], list[str]]:
        jobs = self._timeline.jobs.values()
        self._dlq = any(job.dead is not None or job.redriven for job in jobs)
        room = max(1, self._rows_that_fit() - self._dlq)
        # A long queue must not push out all that happened: its end is folded away even before finished jobs.
        waiting = [job.name for job in jobs if job.state == "waiting"]
        end_of_queue = {name: place for place, name in enumerate(waiting) if place >= max(room // 4, 1)}

        def past(job: JobLine) -> bool:
            return job.state in ("done", "dead") and _last_moment(job) < self._start

        def order(job: JobLine) -> tuple[int, float]:
            if job.name in end_of_queue:
                return -1, -end_of_queue[job.name]
            return _FOLDED_FIRST.index(job.state), -job.published if job.state == "waiting" else _last_moment(job)

        self._jobs, hidden = self._fold(jobs, room, past, order)
        return [job.name for job in self._jobs] + ["DLQ"] * self._dlq, self._folded(hidden, "job")

    def _draw_rows(self) -> None:
        if self._dlq:
            # At the very bottom from the start, so that it stays where it is when more jobs come.
            self._ys[-1] = self._bottom - self._pitch / 2
        row_of = {job.name: y for job, y in zip(self._jobs, self._ys, strict=False)}
        letters = [(at, "redriven", job) for job in self._timeline.jobs.values() for at in job.redriven]
        letters += [(job.dead, "dead", job) for job in self._timeline.jobs.values() if job.dead is not None]
        letters = sorted((letter for letter in letters if self._inside(letter[0])), key=lambda letter: letter[0])
        falls = [(self._x(at), row_of[job.name]) for at, _, job in letters if job.name in row_of]
        for x, y in falls:
            self._stroke("fall", _mix(MARKS["dead"][1], "#FFFFFF", 0.35), x, y + self._bar / 2, x, self._ys[-1])
        if self._dlq:
            self._draw_dlq(letters, self._row(self._ys[-1]))
        for job in self._jobs:
            row = self._row(row_of[job.name])
            row.obstacles += [(x - 3, x + 3) for x, top in falls if top < row.y]
            self._draw_job(job, row)

    def _draw_dlq(self, letters: Sequence[tuple[float, str, JobLine]], row: _Row) -> None:
        self._stroke("plate", "#FBF0F2", self._left, row.y, self._right, row.y)
        row.obstacles += [(self._x(at) - 10, self._x(at) + 10) for at, _, _ in letters]
        for at, kind, job in reversed(letters):
            x, name = self._x(at), _plain(job.name)
            self._mark(kind, x, row.y)
            what = "redriven" if kind == "redriven" else f"after {_deliveries(job)}"
            # The newest letters get their words first; the rest as far as there is room, left or right of the mark.
            for words in (f"{name} {what}", f"{_fit(name, 120)} {what}", _fit(name, 120)):
                size = _width(words)
                sides = [left for left in (x + 12, x - 12 - size) if self._left <= left <= self._right - size]
                free = [s for s in sides if all(s + size <= begin or end <= s for begin, end in row.obstacles)]
                if free:
                    self._text(free[0], row.y, words, MARKS[kind][1])
                    row.obstacles.append((free[0] - 6, free[0] + size + 6))
                    break

    def _draw_job(self, job: JobLine, row: _Row) -> None:
        self._draw_wait(job, row)
        attempts = [a for a in job.attempts if max(a.end or 0, self._now if a.open else a.closed or 0) >= self._start]
        attempts = [a for a in attempts if a.start <= self._stop]
        for attempt, after in zip(attempts, [*attempts[1:], None], strict=False):
            self._draw_attempt(attempt, self._right if after is None else self._x(after.start), row)
        if job.state == "stuck" and job.exhausted is not None:
            x = max(self._x(job.exhausted), row.taken) + 11
            self._mark("stuck", x, row.y)
            space = row.space(x + 13, self._right) - 4
            choice = ("exhausted, still in the queue", "still in the queue", "stuck", "")
            words = next(words for words in choice if not words or _width(words) <= space)
            self._text(x + 13, row.y, words, MARKS["stuck"][1])
        elif job.done is not None and not any(a.how == "acked" for a in job.attempts) and self._inside(job.done):
            self._mark("acked", self._x(job.done), row.y)

    def _draw_wait(self, job: JobLine, row: _Row) -> None:
        """A hollow mark where a job entered the queue, and a thin line for as long as it waits for a worker."""
        begins = [job.published, *job.redriven]
        for index, (begin, before) in enumerate(zip(begins, [*begins[1:], inf], strict=False)):
            end = next((a.start for a in job.attempts if (begin <= a.start or not index) and a.start < before), None)
            if begin > self._stop or (end is None and (before < inf or job.state != "waiting")):
                continue
            x0, x1 = self._x(begin), self._x(self._now if end is None else end)
            if end is None or x1 - x0 > 18:
                self._stroke("wait", FAINT, x0, row.y, x1, row.y)
                self._mark("waiting", max(x0, self._left + 9), row.y)
                row.taken = row.taken if index else x1

    def _draw_attempt(self, a: Attempt, following: float, row: _Row) -> None:
        colour = self._colours.get(a.worker, OKABE_ITO[-1])
        end = max(self._now if a.end is None else a.end, a.start)
        heard = end if a.closed is None else max(min(end, a.closed), a.start)
        waited = max(min(self._now, a.until) if a.closed is None else a.closed, end)
        x0, x1, x_tail = self._x(a.start), self._x(heard), self._x(waited)
        self._draw_bar(colour, x0, x1, row.y, a.beats)
        if x_tail > x1 and end == heard:
            self._stroke("tail", _mix(colour, "#FFFFFF", 0.78), x1, row.y, x_tail, row.y)
            if a.closed is not None:
                self._draw_limit(x_tail, row)
        if a.open:
            self._draw_patience(max(self._now, end), a.until, row)
        mark = None
        if end > heard:
            # It went on after the broker had given up on it: a thin strip below, for the row may be taken again.
            strip = row.y + self._bar / 2 + 2
            self._stroke("late", colour, x1, strip, self._x(end), strip)
            if self._inside(end) and a.how in MARKS:
                self._mark(a.how, self._x(end) + 10, strip - 7)
        how = "timed_out" if end > heard else a.how
        if a.end is not None and how in MARKS and self._inside(heard):
            mark = self._end_mark(how, x0, x1, following, row.y)
        worker = self._timeline.workers.get(a.worker)
        if a.end is None and worker and worker.state in ("frozen", "cut off") and self._inside(worker.since):
            mark = max(self._x(worker.since), x0)
            self._mark(worker.state, mark, row.y)
        inner = max(x0, row.taken), x1 if mark is None else min(x1, mark - _BADGE / 2)
        taken = max(x1, x0 + 3, 0 if mark is None else mark + _BADGE / 2)
        # Of an attempt under way also the time to come is free, before or behind its end.
        ahead = [self._x(self._now) + 6, self._x(a.until) + 6] if a.open else []
        starts = [x for x in (taken + 4, *ahead) if x >= taken]
        words = str(a.number), f"{a.number}  {_plain(a.worker)}", _plain(a.worker)
        self._caption(row, colour, words, inner, starts, following)
        row.taken = max(row.taken, taken)


# --- lease ownership ---------------------------------------------------------------------------------


class LeasePicture(_Picture):
    """The live picture of lease ownership: a row per work item, a bar per ownership, the roster at the right edge.

    Args:
        width, height: in CSS pixels.
        pixel_ratio: device pixels per CSS pixel; the PNG is width * pixel_ratio wide.
    """

    title = "Lease ownership"
    subtitle = "ticks = renewals · hatched = owner gone, lease still stands · r = revision, the fencing token"
    nothing = "no work items yet"
    right_margin, least_pitch = 200.0, _LANE_FROM_PITCH

    def _choose_rows(self) -> tuple[list[str], list[str]]:
        def past(item: ItemLine) -> bool:
            return item.finished is not None and item.finished < self._start

        def order(item: ItemLine) -> tuple[int, float]:
            age = -item.added if item.finished is None else item.finished
            return ("done", "free", "held", "suspect").index(item.state), age

        self._items, hidden = self._fold(self._timeline.items.values(), self._rows_that_fit(), past, order)
        return [item.name for item in self._items], self._folded(hidden, "item")

    def _draw_rows(self) -> None:
        if self._items:
            self._text(self._right + 34, self._top - 13, "owner", MUTED)
            self._text(self.width - _EDGE, self._top - 13, "expires in", MUTED, align="right")
        for item, y in zip(self._items, self._ys, strict=True):
            row = self._row(y)
            if not item.ownerships:
                self._stroke("wait", FAINT, self._x(item.added), y, self._x(self._now), y)
                self._mark("free", max(self._x(item.added), self._left + 9), y)
            for own, after in zip(item.ownerships, [*item.ownerships[1:], None], strict=False):
                if (self._now if own.end is None else own.end) >= self._start:
                    self._draw_ownership(own, after, row)
            self._draw_roster(item, y)

    def _draw_ownership(self, own: Ownership, after: Ownership | None, row: _Row) -> None:
        colour = self._colours.get(own.worker, OKABE_ITO[-1])
        end = max(self._now if own.end is None else own.end, own.start)
        alive = end if own.gone is None else min(max(own.gone, own.start), end)
        stands = max(min(self._now, own.until), alive) if own.end is None else end
        x0, x1, x_end = self._x(own.start), self._x(alive), self._x(end)
        following = self._right if after is None else self._x(after.start)
        self._draw_bar(colour, x0, x1, row.y, own.renewals)
        if own.gone is not None:
            self._draw_hatch(colour, x1, self._x(stands), row.y)
            if self._inside(alive):
                self._mark(_cause(self._timeline, own)[0], x1, row.y)
        if own.end is None:
            self._draw_patience(max(self._now, alive), own.until, row)
        name = _fit(_plain(own.worker), 120, bold=True)
        words = f"r{own.token}", f"{name} · r{own.token}", name
        ahead = [self._x(self._now) + 6, self._x(own.until) + 6] if own.end is None and own.gone is None else []
        inner = x0, x1 - (_BADGE / 2 if own.gone is not None else 0)
        self._caption(row, colour, words, inner, [x for x in ahead if x > x1], following)
        if own.end is not None and own.how in MARKS and self._inside(end):
            if own.how == "expired":
                self._draw_expiry(own, after, x_end, row)
            else:
                mark = self._end_mark(own.how, x0, x_end, following, row.y)
                if mark > x_end and _width(own.how) <= row.space(mark + 11, following) - 4:
                    self._text(mark + 11, row.y, own.how, MARKS[own.how][1])

    def _draw_hatch(self, colour: str, x0: float, x1: float, y: float) -> None:
        """A faint box with diagonal lines, cut off at its edges."""
        if x1 - x0 >= 1:
            self._stroke("tail", _mix(colour, "#FFFFFF", 0.82), x0, y, x1, y)
        base, foot = x0 - self._bar, y + self._bar / 2
        while base < x1:
            left, right = max(base, x0), min(base + self._bar, x1)
            if right > left:
                self._stroke("hatch", colour, left, foot - (left - base), right, foot - (right - base))
            base += 7.0

    def _draw_expiry(self, own: Ownership, after: Ownership | None, x: float, row: _Row) -> None:
        """The expiry mark in the lane above the bars, and beside it how long the item had no living owner."""
        lane = row.y - self._bar / 2 - 8
        self._mark("expired", x, lane)
        choice = ["expired"]
        if after is not None and own.end is not None:
            expiry = _short(max(after.start - own.end, 0.0))
            choice = [f"reclaimed {expiry} s after expiry", "reclaimed"]
            if own.gone is not None:
                kill, cause = _short(after.start - own.gone), _cause(self._timeline, own)[1]
                choice[:0] = [
                    f"reclaimed {kill} s after {cause}, {expiry} s after expiry",
                    f"{kill} s after {cause}, {expiry} s after expiry",
                    f"{cause.split()[-1]} + {kill} s, expiry + {expiry} s",
                ]
        for words in choice:
            size = _width(words)
            for start in (x + 12, x - 12 - size):
                if start >= row.lane and size <= row.space(start, self._right) - 2:
                    self._text(start, lane, words, INK)
                    row.lane = max(start + size, x + 12) + 8
                    return
        row.lane = x + 20

    def _draw_roster(self, item: ItemLine, y: float) -> None:
        left, right, owner = self._right + 34, self.width - _EDGE, item.owner
        if owner is None:
            words = "finished" if item.state == "done" else "free"
            self._mark(words, left - 13, y)
            self._text(left, y, words, MARKS[words][1], bold=True)
            return
        remaining = owner.until - self._now
        if owner.gone is not None:
            self._mark(_cause(self._timeline, owner)[0], left - 13, y)
        else:
            self._stroke("swatch", self._colours.get(owner.worker, OKABE_ITO[-1]), left - 19, y, left - 7, y)
        self._text(left, y, _fit(_plain(owner.worker), right - left - 62, bold=True), INK, bold=True)
        colour = INK if owner.gone is None and remaining > 0 else MARKS["gone"][1]
        self._text(right, y, f"{remaining:.1f} s" if remaining > 0 else "due", colour, align="right", bold=True)


# --- the pictures as functions --------------------------------------------------------------------------


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
    timeline, moment = _told(events, now)
    picture = DeliveryPicture(width=width, height=height or _height(len(timeline.jobs) + 1), pixel_ratio=pixel_ratio)
    picture.update(timeline, moment)
    return picture._drawn_once()


def lease_ownership(
    events: Told, *, now: float | None = None, width: int = 960, height: int | None = None, pixel_ratio: float = 1.0
) -> Figure:
    """The picture of lease ownership as a figure, drawn once; the arguments are those of `delivery_attempts`."""
    timeline, moment = _told(events, now)
    picture = LeasePicture(width=width, height=height or _height(len(timeline.items)), pixel_ratio=pixel_ratio)
    picture.update(timeline, moment)
    return picture._drawn_once()


def encode(picture: Figure | DeliveryPicture | LeasePicture) -> bytes:
    """PNG bytes of a picture or figure, straight from the drawn pixels."""
    if not isinstance(picture, Figure):
        return picture.png()
    canvas: Any = picture.canvas
    if not isinstance(canvas, FigureCanvasAgg):
        canvas = FigureCanvasAgg(picture)
    if picture.stale:
        cast(Any, canvas).draw()
    return _png(canvas)


def _png(canvas: Any) -> bytes:
    # Never print_png or savefig: they would draw everything again, and without the moving artists.
    file = io.BytesIO()
    Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]).save(file, "png", compress_level=1)
    return file.getvalue()


def _height(rows: int) -> int:
    return int(min(max(_TOP + _BOTTOM + rows * 44, 300), 820))


def _told(events: Told, now: float | None) -> tuple[Timeline, float]:
    """A timeline and a moment. Of events only those up to the moment count: what came later isn't known yet."""
    if not isinstance(events, Timeline):
        events = Timeline(event for event in events_of(events) if now is None or event.at <= now)
    return events, events.last if now is None else now


# --- the text twins -------------------------------------------------------------------------------------

_MOST_STORIES: Final = 4
_ENDS: Final[dict[str, tuple[str, str]]] = {
    "acked": ("acked at {end} s", "who acked it at {end} s"),
    "naked": ("handed back at {end} s", "who handed it back after {took} s"),
    "failed": ("failed without a word at {end} s", "who failed without a word after {took} s"),
    "killed": ("killed after {took} s", "who was killed after {took} s"),
    "terminated": ("terminated at {end} s", "who terminated it after {took} s"),
    "timed_out": ("timed out at {end} s", "who said nothing until the broker gave up at {end} s"),
    "": ("at work since {start} s", "who is at work since {start} s"),
}
"""How an attempt ended, for any attempt and for the first one."""


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _deliveries(job: JobLine) -> str:
    return _count(job.deliveries or len(job.attempts), "delivery", "deliveries")


def _short(seconds: float) -> str:
    """Seconds with as many places as matter: 4.1, 0.10, 0.002."""
    return f"{seconds:.{1 if seconds >= 0.95 else 2 if seconds >= 0.01 else 3}f}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def describe_deliveries(events: Told, *, now: float | None = None) -> str:
    """What the picture of delivery attempts says, as one paragraph; `now` as there.

    Ordinary jobs are counted. What was killed, retried, dead, stuck or late is told, the newest first, at most four.
    """
    timeline, moment = _told(events, now)
    jobs = list(timeline.jobs.values())
    if not jobs:
        return " ".join(["Nothing was published yet.", *_outages(timeline)])
    plain = [j for j in jobs if j.state == "done" and len(j.attempts) <= 1 and not j.late and not j.redriven]
    fresh = [j for j in jobs if j.state == "waiting" and not j.attempts]
    flying = [j for j in jobs if j.state == "in flight" and len(j.attempts) == 1 and j.attempts[0].end is None]
    ordinary = {job.name for job in (*plain, *fresh, *flying)}
    eventful = sorted((j for j in jobs if j.name not in ordinary), key=_last_moment, reverse=True)
    text = []
    if plain:
        who = plain[0].name if len(jobs) == 1 else f"{len(plain)} of {_count(len(jobs), 'job')}"
        text.append(f"{who} {'was' if len(plain) == 1 else 'were'} done at the first attempt.")
    text += [_job_story(timeline, job, moment) for job in eventful[:_MOST_STORIES]]
    if rest := Counter(job.state for job in eventful[_MOST_STORIES:]):
        states = _listed([f"{number} {state}" for state, number in sorted(rest.items())])
        text.append(f"{rest.total()} more had trouble: {states}.")
    if flying:
        some = [f"{job.name} with {job.attempts[0].worker}" for job in flying[:3]]
        more = [f"{len(flying) - 3} more"] if len(flying) > 3 else []
        text.append(f"In flight at {moment:.1f} s: {_listed(some + more)}.")
    if fresh:
        text.append(f"{fresh[0].name} waits" if len(fresh) == 1 else f"{len(fresh)} jobs wait")
        text[-1] += " for a worker."
    return " ".join(text + _outages(timeline))


def _last_moment(job: JobLine) -> float:
    last = job.attempts[-1] if job.attempts else None
    moments = [job.published, job.done, job.dead, job.exhausted, *job.redriven[-1:]]
    moments += [last.start, last.end, last.closed] if last else []
    return max(moment for moment in moments if moment is not None)


def _job_story(timeline: Timeline, job: JobLine, now: float) -> str:
    """One job, attempt by attempt; of more than four only the first and the last are told one by one."""
    told = job.attempts if len(job.attempts) <= 4 else [job.attempts[0], job.attempts[-1]]
    text: list[str] = []
    redriven, before = list(job.redriven), None
    for attempt in told:
        if len(told) < len(job.attempts) and attempt is told[-1]:
            text.append(f"{len(job.attempts) - 2} more attempts came to nothing.")
            before = None
        while redriven and redriven[0] <= attempt.start:
            text.append(f"It was redriven at {redriven.pop(0):.1f} s and starts again.")
            before = None
        text.append(_attempt_story(timeline, job, attempt, before, now))
        before = attempt
    text += [f"It was redriven at {at:.1f} s and waits for a worker." for at in redriven[-1:]]
    if job.dead is not None:
        reason = f" ({job.reason[:80]})" if job.reason else ""
        text.append(f"After {_deliveries(job)} it is in the DLQ since {job.dead:.1f} s{reason}.")
    elif job.state == "stuck" and job.exhausted is not None:
        text.append(f"Since {job.exhausted:.1f} s its deliveries are used up, but it stays in the queue: it is stuck.")
    elif job.late:
        text.append("It was done after the broker had given up on it.")
    return " ".join(text)


def _attempt_story(timeline: Timeline, job: JobLine, a: Attempt, before: Attempt | None, now: float) -> str:
    end = max(now if a.end is None else a.end, a.start)
    later, first = (
        form.format(start=f"{a.start:.1f}", end=f"{end:.1f}", took=_short(end - a.start))
        for form in _ENDS.get(a.how, _ENDS[""])
    )
    worker = timeline.workers.get(a.worker)
    if a.end is None and worker and worker.state in ("frozen", "cut off"):
        later, first = f"{worker.state} since {worker.since:.1f} s", f"who is {worker.state} since {worker.since:.1f} s"
    if a.closed is not None and end > a.closed:
        later = f"given up by the broker at {a.closed:.1f} s, but {later}"
        first = f"whom the broker gave up at {a.closed:.1f} s, {first}".replace(", who ", " but who ")
    if a is job.attempts[0]:
        text = f"{job.name} was delivered to {a.worker}, {first}."
    elif before and before.end is not None and before.closed is not None and before.closed > before.end:
        waited = f"The broker waited until {before.closed:.1f} s, then gave it to {a.worker}"
        text = f"{waited}: attempt {a.number}, {later}."
    else:
        text = f"{a.worker} got it at {a.start:.1f} s: attempt {a.number}, {later}."
    if a.open and a.end is not None and a.until > 0:
        waits = f"waits until {a.until:.1f} s" if a.until > now else f"gave up at {a.until:.1f} s; nobody has it yet"
        text += f" The broker {waits}."
    return text


def _outages(timeline: Timeline) -> list[str]:
    return [
        f"The broker was {outage.how} at {outage.start:.1f} s and "
        + ("is still down." if outage.end is None else f"came back at {outage.end:.1f} s.")
        for outage in timeline.outages[-2:]
    ]


def describe_leases(events: Told, *, now: float | None = None) -> str:
    """What the picture of lease ownership says, as one paragraph; `now` as there."""
    timeline, moment = _told(events, now)
    items = list(timeline.items.values())
    if not items:
        return " ".join(["There are no work items yet.", *_outages(timeline)])
    counted: Counter[str] = Counter(item.state for item in items)
    words = {"held": "held", "suspect": "held by an owner that is gone", "free": "free", "done": "finished"}
    parts = [f"{counted[state]} {word}" for state, word in words.items() if counted[state]]
    text = [f"{_count(len(items), 'work item')}: {_listed(parts)}."]
    stories = sorted((story for item in items for story in _item_stories(timeline, item, moment)), reverse=True)
    text += [story for _, story in stories[:_MOST_STORIES]]
    if len(stories) > _MOST_STORIES:
        text.append(f"{_count(len(stories) - _MOST_STORIES, 'earlier ownership')} ended too.")
    held = [(item, item.owner) for item in items if item.owner is not None and item.owner.gone is None]
    for item, own in held[:3]:
        left = own.until - moment
        expires = f"expires in {left:.1f} s" if left > 0 else "is due to expire"
        renewals = _count(len(own.renewals), "renewal")
        text.append(f"{own.worker} holds {item.name} (r{own.token}, {renewals}); the lease {expires}.")
    if len(held) > 3:
        text.append(f"{len(held) - 3} more are held.")
    return " ".join(text + _outages(timeline))


def _item_stories(timeline: Timeline, item: ItemLine, now: float) -> list[tuple[float, str]]:
    """How ownerships of an item ended, or are about to: when, and a sentence or two."""
    stories = []
    for own, after in zip(item.ownerships, [*item.ownerships[1:], None], strict=False):
        story, at = f"{own.worker} held {item.name} (r{own.token})", own.gone or own.start
        if own.end is not None:
            at = own.end
            if own.how != "expired":
                story += f" and {own.how} it at {own.end:.1f} s."
            elif own.gone is None:
                story += f", but the lease ran out at {own.end:.1f} s."
        if own.gone is not None and (own.end is None or own.how == "expired"):
            story += f" and {_cause(timeline, own)[2]} at {own.gone:.1f} s; the lease "
            stands = f"still stands until {own.until:.1f} s." if own.until > now else "is due to expire."
            story += stands if own.end is None else f"stood until {own.end:.1f} s."
        if own.end is not None and own.how == "expired" and after is not None:
            at, expiry = after.start, f"{_short(max(after.start - own.end, 0.0))} s after expiry"
            story += f" {after.worker} reclaimed it (r{after.token}) "
            if own.gone is not None:
                story += f"{_short(after.start - own.gone)} s after {_cause(timeline, own)[1]}, "
            story += f"{expiry}."
        if own.end is not None or own.gone is not None:
            stories.append((at, story))
    return stories


def _cause(timeline: Timeline, own: Ownership) -> tuple[str, str, str]:
    """Why an owner is gone, as mark, noun and verb: only its present state tells, so later the cause is lost."""
    worker = timeline.workers.get(own.worker)
    return {
        "killed": ("killed", "the kill", "was killed"),
        "frozen": ("frozen", "the freeze", "was frozen"),
        "cut off": ("cut off", "the cut", "was cut off"),
    }.get(worker.state if worker and worker.since == own.gone else "", ("gone", "the loss", "was gone"))
