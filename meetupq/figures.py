"""The two pictures and their text twins, all drawn and told from one `Timeline`.

`DeliveryPicture` and `LeasePicture` are live: `update` them, then take a `png`. `delivery_attempts` and
`lease_ownership` draw the same pictures once. `describe_deliveries` and `describe_leases` say in words what they show.

Everything is laid out in CSS pixels from the top left corner (`pixel_ratio` scales it at the very end), so that whether
two things overlap is plain arithmetic. What stays the same from frame to frame is drawn once and kept as a bitmap: only
bars, marks and moving labels are drawn anew, which is what makes ten frames a second cheap.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import ceil
from typing import Any, Final, Literal

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

from meetupq.history import Event, History
from meetupq.timeline import Attempt, ItemLine, JobLine, JobState, Ownership, Timeline, WorkerState

Told = History | Iterable[Event] | Timeline
"""What the pictures and twins can be made from."""

# --- colours and marks -------------------------------------------------------------------------------

OKABE_ITO: Final[tuple[str, ...]] = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7F7F7F")
"""The Okabe-Ito colours that can be told apart by colour-blind people and seen on white and on dark (no yellow)."""

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

INK, MUTED, GRID = "#1F2328", "#57606A", "#E7EAEE"
# kind: (glyph, colour, the word in the key). The order is the order of drawing and of the key.
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

_FONT: Final = "DejaVu Sans"  # ships with matplotlib, so the pictures look alike everywhere
_SPANS: Final = (10.0, 15.0, 20.0, 30.0, 45.0, 60.0)
_SHIFT: Final = 15.0
_TOP, _BOTTOM = 80.0, 48.0
_LANE: Final = 15.0
_BADGE: Final = 18.0


def worker_colour(timeline: Timeline, name: str) -> str:
    """The colour of a worker: by order of first appearance, so it never changes; darker, then lighter, after seven."""
    return _colours(timeline).get(name, OKABE_ITO[-1])


def _colours(timeline: Timeline) -> dict[str, str]:
    shades = [(0.0, "#FFFFFF"), (0.4, "#000000"), (0.5, "#FFFFFF")]
    colours = {}
    for index, name in enumerate(timeline.workers):
        strength, towards = shades[index // len(OKABE_ITO) % len(shades)]
        colours[name] = _mix(OKABE_ITO[index % len(OKABE_ITO)], towards, strength)
    return colours


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


@lru_cache(maxsize=512)
def _mix(colour: str, towards: str, strength: float) -> str:
    mixed = (round(a + (b - a) * strength) for a, b in zip(_rgb(colour), _rgb(towards), strict=True))
    return "#" + "".join(f"{part:02X}" for part in mixed)


@lru_cache(maxsize=512)
def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in _rgb(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _on(colour: str) -> str:
    """White or ink, whichever is easier to read on the colour (WCAG contrast)."""
    light, dark, here = (_luminance(c) + 0.05 for c in ("#FFFFFF", INK, colour))
    return "#FFFFFF" if light / here >= here / dark else INK


@lru_cache(maxsize=64)
def _shape(kind: str) -> Path:
    """The mark as an outline around (0, 0), so that one Line2D draws all marks of a kind."""
    glyph = MARKS[kind][0]
    if glyph == "hourglass":  # DejaVu Sans has none
        return Path([(-0.75, 1), (0.75, 1), (-0.75, -1), (0.75, -1), (-0.75, 1)], closed=True)
    path = TextPath((0, 0), glyph, size=100, prop=FontProperties(family=_FONT))
    box = path.get_extents()
    return path.transformed(Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2))


# --- text ------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _font(size: float, bold: bool) -> FontProperties:
    return FontProperties(family=_FONT, size=size, weight="bold" if bold else "normal")


@lru_cache(maxsize=8192)
def _width(text: str, size: float, bold: bool = False) -> float:
    """The width of a text in CSS pixels, with a pixel to spare for other pixel ratios."""
    width, _, _ = RendererAgg(1, 1, 72).get_text_width_height_descent(text, _font(size, bold), False)
    return float(width) + 1


@lru_cache(maxsize=8192)
def _fit(text: str, room: float, size: float, bold: bool = False, least: int = 3) -> str:
    """The text, cut with an ellipsis so that it fits; "" where fewer than `least` letters would be left."""
    if _width(text, size, bold) <= room:
        return text
    for length in range(len(text) - 1, least - 1, -1):
        if _width(text[:length] + "…", size, bold) <= room:
            return text[:length] + "…"
    return ""


def _whole(text: str, room: float, size: float) -> str:
    """The text in bold if it fits as it is, else ""."""
    return text if _width(text, size, True) <= room else ""


@lru_cache(maxsize=8192)
def _plain(text: str) -> str:
    """One line of text of which the font has every letter: a missing one would warn in the middle of a lesson."""
    known = get_font(findfont(_font(13, True))).get_charmap()
    one_line = " ".join(text.split())
    return "".join(letter if ord(letter) in known else "\ufffd" for letter in one_line)


# --- the canvas that both pictures share ---------------------------------------------------------------


def window(now: float) -> tuple[float, float]:
    """The seconds that the time axis shows: it grows and moves in steps, so most frames share one background."""
    for span in _SPANS:
        if now <= 0.85 * span:
            return 0.0, span
    longest = _SPANS[-1]
    start = ceil((now - 0.85 * longest) / _SHIFT) * _SHIFT
    return start, start + longest


# kind of stroke: (drawing order, width in pixels; None = as high as a bar, style)
_STROKES: Final[dict[str, tuple[float, float | None, dict[str, Any]]]] = {
    "outage": (1.0, 0.0, {}),
    "plate": (1.0, 30.0, {}),
    "wait": (1.1, 1.5, {}),
    "fall": (1.2, 1.4, {}),
    "tail": (2.0, None, {}),
    "hatch": (2.1, 1.2, {}),
    "bar": (2.2, None, {}),
    "late": (2.3, 4.0, {}),
    "swatch": (2.2, 12.0, {}),
    "beat": (2.4, 1.8, {}),
    "patience": (2.5, 1.1, {"dashes": (3, 2.5)}),
    "limit": (2.6, 1.6, {}),
    "now": (2.7, 1.3, {}),
}


class _Picture:
    """A figure of fixed size with rows, a time axis and a "now" line; subclasses say what is in the rows."""

    title = ""
    subtitle = ""
    nothing = ""
    noun = ""
    right_margin = 20.0
    least_pitch = 24.0

    def __init__(self, *, width: int = 960, height: int = 380, pixel_ratio: float = 1.0) -> None:
        self.width, self.height, self.pixel_ratio = width, height, pixel_ratio
        # With 72 dots an inch a point is a CSS pixel: font sizes and line widths below are pixels.
        self.figure = Figure(figsize=(width / 72, height / 72), dpi=72 * pixel_ratio, facecolor="white")
        self.canvas = FigureCanvasAgg(self.figure)
        self._pixels = Affine2D().scale(pixel_ratio, -pixel_ratio).translate(0, height * pixel_ratio)
        self.axes = self.figure.add_axes((0, 0, 1, 1), facecolor="none")
        self.top, self.bottom = _TOP, max(height - _BOTTOM, _TOP + 20)
        self.left, self.right = 100.0, width - self.right_margin
        self.full_draws = 0
        """How often the static background was drawn anew."""
        self._fixed: list[Any] = []
        self._lines: dict[tuple[str, str], Line2D] = {}
        self._texts: list[Text] = []
        self._texts_used = 0
        self._points: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
        self._key: object = None
        self._background: Any = None
        self._axis_style()

    # --- what a frame does

    def update(self, timeline: Timeline, now: float) -> None:
        """Bring the picture up to date with the timeline at `now` (seconds); `png` then draws it."""
        self.timeline, self.now = timeline, max(now, 0.0)
        self.colours = _colours(timeline)
        self.start, self.stop = window(self.now)
        self._points, self._texts_used = {}, 0
        names, folded = self._choose_rows()
        self._lay_out(names)
        self._outages()
        self._now_line()
        self._rows()
        if not names and not folded:
            middle = (self.left + self.right) / 2
            half = _width(self.nothing, 16) / 2 + 12
            y = (self.top + self.bottom) / 2
            self._stroke("plate", "#FFFFFF", middle - half, y, middle + half, y)
            self._text(middle, y, self.nothing, 16, MUTED, align="center")
        if folded:
            self._text(self.right, self.height - 12, folded, 13, MUTED, align="right")
        self._flush()
        shown = tuple(kind for kind in MARKS if ("mark", kind) in self._points)
        key = (self.start, self.stop, tuple(names), self.left, self.pitch, shown)
        if key != self._key:
            self._key, self._background = key, None
            self._dress(names, shown)

    def png(self) -> bytes:
        """The picture as PNG bytes."""
        self._draw()
        return _png(self.canvas)

    def _draw(self) -> None:
        if self._background is None:
            self.canvas.draw()
            self._background = self.canvas.copy_from_bbox(self.figure.bbox)
            self.full_draws += 1
        else:
            self.canvas.restore_region(self._background)
        for artist in self._moving():
            self.figure.draw_artist(artist)

    def _moving(self) -> list[Line2D | Text]:
        lines = sorted(self._lines.values(), key=lambda line: line.get_zorder())
        return [line for line in lines if line.get_visible()] + [*self._texts[: self._texts_used]]

    def _drawn_once(self) -> Figure:
        """Draw, then let go of the figure: from here on it is an ordinary one that draws itself completely."""
        self._draw()
        for artist in self._moving():
            artist.set_animated(False)
        return self.figure

    # --- layout

    def _choose_rows(self) -> tuple[list[str], str]:
        raise NotImplementedError

    def _rows(self) -> None:
        raise NotImplementedError

    @property
    def _room(self) -> int:
        return max(1, int((self.bottom - self.top) // self.least_pitch))

    def _lay_out(self, names: Sequence[str]) -> None:
        # The column of names grows in steps, so that one more letter doesn't move the whole picture.
        widest = max((_width(_plain(name), 14) for name in names), default=0.0)
        self.left = min(max(ceil((widest + 26) / 32) * 32.0, 96.0), self.width * 0.24)
        self.pitch = min((self.bottom - self.top) / max(len(names), 4), 58.0)
        self.lane = _LANE if self.pitch >= 34 else 0.0
        self.bar = min((self.pitch - self.lane) * (0.88 if self.lane else 0.74), 32.0)
        first = self.top + self.lane + (self.pitch - self.lane) / 2
        self.ys = [first + index * self.pitch for index in range(len(names))]

    def x(self, at: float) -> float:
        """The pixel of a moment, kept inside the plot."""
        share = (at - self.start) / (self.stop - self.start)
        return self.left + min(max(share, 0.0), 1.0) * (self.right - self.left)

    def _inside(self, at: float) -> bool:
        return self.start <= at <= self.stop

    # --- the fixed part

    def _axis_style(self) -> None:
        axes = self.axes
        axes.spines[["top", "left", "right"]].set_visible(False)
        axes.spines["bottom"].set(color="#C9D1D9", linewidth=1, zorder=0.5)
        axes.yaxis.set_visible(False)
        axes.tick_params("x", length=0, pad=6, labelsize=13, labelcolor=MUTED, labelfontfamily=_FONT)
        axes.grid(True, axis="x", color=GRID, linewidth=1)
        axes.set_axisbelow(True)

    def _dress(self, names: Sequence[str], shown: Sequence[str]) -> None:
        for artist in self._fixed:
            artist.remove()
        self._fixed = []
        width, height = self.width, self.height
        self.axes.set_position(
            (self.left / width, 1 - self.bottom / height, (self.right - self.left) / width,
             (self.bottom - self.top) / height)
        )  # fmt: skip
        self.axes.set_xlim(self.start, self.stop)
        span = self.stop - self.start
        step = next(step for step in (1, 2, 5, 10) if span / step <= 10)
        self.axes.set_xticks(range(int(self.start), int(self.stop) + 1, step))
        edge = 20.0
        self._label(edge, 22, self.title, 17, INK, bold=True)
        self._label(edge, 44, _fit(self.subtitle, width - 2 * edge, 13), 13, MUTED)
        self._label(self.left, height - 12, "seconds since the stage opened", 13, MUTED)
        for name, y in zip(names, self.ys, strict=True):
            self._label(self.left - 14, y, _fit(_plain(name), self.left - 22, 14), 14, INK, align="right")
        self._dress_key(width - edge, edge + _width(self.title, 17, True) + 24, shown)

    def _dress_key(self, right: float, left: float, shown: Sequence[str]) -> None:
        """What the marks mean, on the title's line: only the kinds that are there, as many as fit."""
        sizes = {kind: _width(MARKS[kind][2], 13) + 36 for kind in shown}
        while sum(sizes.values()) > right - left:
            # The first kinds are the everyday ones: who runs out of room misses those least.
            del sizes[next(iter(sizes))]
        x = right - sum(sizes.values()) + 16
        for kind, size in sizes.items():
            line = self._mark_line(kind)
            line.set_data([x + 7], [22])
            self._fixed.append(self.figure.add_artist(line))
            self._label(x + 19, 22, MARKS[kind][2], 13, MUTED)
            x += size

    def _label(self, x: float, y: float, text: str, size: float, colour: str, **how: Any) -> None:
        self._fixed.append(self._new_text())
        _set_text(self._fixed[-1], x, y, text, size, colour, **how)

    # --- the moving part

    def _stroke(self, kind: str, colour: str, x0: float, y0: float, x1: float, y1: float) -> None:
        """A line from one pixel to another; all of a kind and colour are one Line2D, with breaks between them."""
        xs, ys = self._points.setdefault((kind, colour), ([], []))
        xs += (x0, x1, float("nan"))
        ys += (y0, y1, float("nan"))

    def _mark(self, kind: str, x: float, y: float) -> None:
        """A mark on a white disc, so that it is seen on bars and on the "now" line too."""
        for key in (("disc", ""), ("mark", kind)):
            xs, ys = self._points.setdefault(key, ([], []))
            xs.append(x)
            ys.append(y)

    def _text(self, x: float, y: float, text: str, size: float, colour: str, **how: Any) -> None:
        if self._texts_used == len(self._texts):
            self._texts.append(self._new_text(animated=True))
        _set_text(self._texts[self._texts_used], x, y, text, size, colour, **how)
        self._texts_used += 1

    def _new_text(self, **how: Any) -> Text:
        return self.figure.text(0, 0, "", transform=self._pixels, parse_math=False, usetex=False, **how)

    def _mark_line(self, kind: str) -> Line2D:
        colour = MARKS[kind][1]
        return Line2D(
            [], [], transform=self._pixels, linestyle="none", marker=_shape(kind), markersize=13.5, markeredgewidth=0,
            markerfacecolor=colour, zorder=2.9 + list(MARKS).index(kind) / 1000,
        )  # fmt: skip

    def _new_line(self, kind: str, colour: str) -> Line2D:
        if kind == "mark":
            line = self._mark_line(colour)
        elif kind == "disc":
            line = Line2D([], [], transform=self._pixels, linestyle="none", marker="o", markersize=_BADGE, zorder=2.8)
            line.set(markerfacecolor="white", markeredgewidth=0)
        else:
            order, width, style = _STROKES[kind]
            line = Line2D([], [], transform=self._pixels, color=colour, linewidth=width or 1.0, zorder=order, **style)
            line.set(solid_capstyle="butt", dash_capstyle="butt", antialiased=True, marker="None")
        line.set_animated(True)
        self.figure.add_artist(line)
        return line

    def _flush(self) -> None:
        """Hand the collected points to the artists; those that have none this time are not drawn."""
        for key, points in self._points.items():
            if key not in self._lines:
                self._lines[key] = self._new_line(*key)
            self._lines[key].set_data(*points)
            if key[0] in ("bar", "tail"):
                self._lines[key].set_linewidth(self.bar)
            elif key[0] == "outage":
                self._lines[key].set_linewidth(self.bottom - self.top)
        for key, line in self._lines.items():
            line.set_visible(key in self._points)
        for index, text in enumerate(self._texts):
            text.set_visible(index < self._texts_used)

    def _now_line(self) -> None:
        x = self.x(self.now)
        self._stroke("now", INK, x, self.top - 4, x, self.bottom)
        # The strip above the plot belongs to this label alone.
        self._text(x, self.top - 13, "now", 13, INK, align="center", bold=True)

    def _obstacles(self, y: float) -> list[tuple[float, float]]:
        """The stretches of a row that no label may cross, in pixels."""
        now = self.x(self.now)
        return [(now - 4, now + 4)]

    def _space(self, x: float, limit: float, obstacles: Iterable[tuple[float, float]]) -> float:
        """How many pixels are free for a label that begins at `x`."""
        for left, right in obstacles:
            if right > x:
                limit = min(limit, left)
        return limit - x

    def _outages(self) -> None:
        for outage in self.timeline.outages:
            left, right = self.x(outage.start), self.x(self.now if outage.end is None else outage.end)
            if right <= left:
                continue
            self._stroke("outage", "#E4E7EB", left, (self.top + self.bottom) / 2, right, (self.top + self.bottom) / 2)
            words, middle, now = "no broker", (left + right) / 2, self.x(self.now)
            half = _width(words, 13) / 2
            if middle + half < now - 24 and middle - half >= self.left:
                self._text(middle, self.top - 13, words, 13, MUTED, align="center")

    def _bar(self, colour: str, begin: float, end: float, y: float) -> None:
        """A bar between two pixels, at least 3 pixels long: zero seconds are to be seen too."""
        self._stroke("bar", colour, begin, y, max(end, begin + 3), y)

    def _ticks(self, moments: Iterable[float], y: float) -> None:
        """White notches in the lower edge of a bar."""
        base, height = y + self.bar / 2, max(self.bar * 0.24, 4.0)
        for moment in moments:
            if self._inside(moment):
                self._stroke("beat", "#FFFFFF", self.x(moment), base, self.x(moment), base - height)

    def _patience(self, begin: float, until: float, y: float) -> None:
        """A dashed outline over the time that is still granted, and a tick where it ends."""
        x0, x1, half = self.x(begin), self.x(until), self.bar / 2 - 0.5
        if x1 - x0 < 2:
            return
        for edge in (y - half, y + half):
            self._stroke("patience", MUTED, x0, edge, x1, edge)
        if self._inside(until):
            self._stroke("limit", MUTED, x1, y - half - 3, x1, y + half + 3)


def _set_text(
    text: Text, x: float, y: float, words: str, size: float, colour: str, *, align: str = "left", bold: bool = False
) -> None:
    # The baseline is set from the size, not from the letters, so that "acked" and "A" sit on the same line.
    text.set(x=x, y=y + size * 0.36, text=words, color=colour, visible=True)
    text.set(horizontalalignment=align, verticalalignment="baseline", fontproperties=_font(size, bold))


# --- delivery attempts ------------------------------------------------------------------------------

_FOLD_ORDER: Final[tuple[JobState, ...]] = ("done", "dead", "waiting", "retrying", "stuck", "in flight")


class DeliveryPicture(_Picture):
    """One row per job, one bar per delivery attempt, and the DLQ at the bottom.

    Args:
        width, height: in CSS pixels.
        pixel_ratio: device pixels per CSS pixel; the PNG has width * pixel_ratio columns.
    """

    title = "Delivery attempts"
    subtitle = (
        "a bar = one attempt in its worker's colour · faint = the broker still waits · dashed = until it gives up"
    )
    nothing = "nothing published yet"

    def _choose_rows(self) -> tuple[list[str], str]:
        jobs = self.timeline.jobs.values()
        self.has_dlq = any(job.dead is not None or job.redriven for job in jobs)
        room = max(1, self._room - self.has_dlq)
        hidden = {job.name for job in jobs if job.state in ("done", "dead") and _last_moment(job) < self.start}
        shown = [job for job in jobs if job.name not in hidden]
        if len(shown) > room:
            # Finished ones go first, the oldest first; of the waiting ones those at the end of the queue.
            def order(job: JobLine) -> tuple[int, float]:
                return _FOLD_ORDER.index(job.state), -job.published if job.state == "waiting" else _last_moment(job)

            hidden.update(job.name for job in sorted(shown, key=order)[: len(shown) - room])
            shown = [job for job in shown if job.name not in hidden]
        self.shown = shown
        counted = Counter(self.timeline.jobs[name].state for name in hidden)
        parts = [f"{counted[s]} {'finished' if s == 'done' else s}" for s in _FOLD_ORDER if counted[s]]
        folded = f"+ {', '.join(parts)} job{'' if len(hidden) == 1 else 's'} not shown" if parts else ""
        return [job.name for job in shown] + ["DLQ"] * self.has_dlq, folded

    def _lay_out(self, names: Sequence[str]) -> None:
        super()._lay_out(names)
        if self.has_dlq:
            # At the very bottom from the start, so that it stays where it is when more jobs come.
            self.ys[-1] = self.bottom - self.pitch / 2
        self.row_of = {job.name: y for job, y in zip(self.shown, self.ys, strict=False)}
        dead = [(job.name, job.dead) for job in self.timeline.jobs.values() if job.dead is not None]
        dead += [(job.name, at) for job in self.timeline.jobs.values() for at in job.redriven]
        self.falls = [(self.x(at), self.row_of[name]) for name, at in dead if self._inside(at) and name in self.row_of]

    def _rows(self) -> None:
        if self.has_dlq:
            self._stroke("plate", "#FBF0F2", self.left, self.ys[-1], self.right, self.ys[-1])
            self._dead_letters()
        for job in self.shown:
            self._job(job, self.row_of[job.name])

    def _obstacles(self, y: float) -> list[tuple[float, float]]:
        return super()._obstacles(y) + [(x - 3, x + 3) for x, top in self.falls if top < y]

    def _job(self, job: JobLine, y: float) -> None:
        free_from = self._wait(job, y)
        lane_from = self.left
        attempts = [a for a in job.attempts if max(a.closed or 0, a.end or self.now, a.start) >= self.start]
        for index, attempt in enumerate(attempts):
            following = self.x(attempts[index + 1].start) if index + 1 < len(attempts) else self.right
            free_from, lane_from = self._attempt(attempt, y, following, free_from, lane_from)
        if job.state == "stuck" and job.exhausted is not None:
            x = max(self.x(job.exhausted), free_from) + 11
            self._mark("stuck", x, y)
            space = self._space(x + 13, self.right, self._obstacles(y))
            candidates = ("exhausted, still in the queue", "still in the queue", "stuck")
            words = next((words for words in candidates if _width(words, 13) <= space - 4), "")
            self._text(x + 13, y, words, 13, MARKS["stuck"][1])
        elif job.done is not None and not any(a.how == "acked" for a in job.attempts) and self._inside(job.done):
            self._mark("acked", self.x(job.done), y)

    def _wait(self, job: JobLine, y: float) -> float:
        """A hollow mark where a job entered the queue, and a thin line until its first worker; returns its end."""
        taken = self.left
        begins = [job.published, *job.redriven]
        for index, begin in enumerate(begins):
            before = begins[index + 1] if index + 1 < len(begins) else float("inf")
            end = next((a.start for a in job.attempts if (begin <= a.start or not index) and a.start < before), None)
            if end is None and (before < float("inf") or job.state != "waiting"):
                continue
            x0, x1 = self.x(begin), self.x(self.now if end is None else end)
            if end is None or x1 - x0 > 18:
                self._stroke("wait", "#C9D1D9", x0, y, x1, y)
                self._mark("waiting", max(x0, self.left + 9), y)
                taken = x1 if not index else taken
        return taken

    def _attempt(
        self, a: Attempt, y: float, following: float, free_from: float, lane_from: float
    ) -> tuple[float, float]:
        """Draw one attempt; returns up to where the row, and the lane above it, are now taken."""
        colour = self.colours.get(a.worker, OKABE_ITO[-1])
        end = max(self.now if a.end is None else a.end, a.start)
        heard = end if a.closed is None else max(min(end, a.closed), a.start)
        waits_until = max(min(self.now, a.until), end) if a.closed is None else max(a.closed, end)
        x0, x1, x_tail = self.x(a.start), self.x(heard), self.x(waits_until)
        obstacles = self._obstacles(y)
        self._bar(colour, x0, x1, y)
        self._ticks(a.beats, y)
        if x_tail > x1 and end == heard:
            self._stroke("tail", _mix(colour, "#FFFFFF", 0.78), x1, y, x_tail, y)
            if a.closed is not None:
                self._stroke("limit", MUTED, x_tail, y - self.bar / 2 - 2, x_tail, y + self.bar / 2 + 2)
                obstacles.append((x_tail - 2, x_tail + 2))
        if a.open and a.until > self.now:
            self._patience(max(self.now, end), a.until, y)
            obstacles.append((self.x(a.until) - 2, self.x(a.until) + 2))
        mark = None
        if end > heard:
            # It went on after the broker had given up on it: a thin strip below, for the row may be taken again.
            strip = y + self.bar / 2 + 3
            self._stroke("late", colour, x1, strip, self.x(end), strip)
            if self._inside(end) and a.how in MARKS:
                self._mark(a.how, min(self.x(end) + 9, self.right), strip)
            if self._inside(heard):
                mark = self._end_mark("timed_out", x0, x1, y, following)
        elif a.end is not None and a.how in MARKS and self._inside(end):
            mark = self._end_mark(a.how, x0, x1, y, following)
        inner = max(x0, free_from), x1 if mark is None else min(x1, mark - _BADGE / 2)
        taken = max(x1, x0 + 3) if mark is None else max(x1, mark + _BADGE / 2)
        return self._attempt_label(a, colour, y, inner, taken, following, (free_from, lane_from), obstacles)

    def _end_mark(self, kind: str, x0: float, x1: float, y: float, following: float) -> float:
        """Set the mark behind the bar where there is room, else inside its end, else upon it."""
        half = _BADGE / 2 + 1
        x = x1 + half if following - x1 >= 2 * half else x1 - half if x1 - x0 >= 4 * half else x1
        self._mark(kind, x, y)
        return x

    def _attempt_label(
        self, a: Attempt, colour: str, y: float, inner: tuple[float, float], taken: float, following: float,
        free: tuple[float, float], obstacles: list[tuple[float, float]],
    ) -> tuple[float, float]:  # fmt: skip
        """Number and worker inside the bar, else beside it, else above it: the first place that has room."""
        number, name = str(a.number), _plain(a.worker)
        lane_from = free[1]
        full = f"{number}  {name}"
        room = inner[1] - inner[0] - 9
        inside = _fit(full, room, 13, True, least=len(number) + 6) or _whole(number, room, 13)
        if inside:
            self._text(inner[0] + 5, y, inside, 13, _on(colour), bold=True)
        if len(inside) > len(number):
            return taken, lane_from
        wanted, dark = name if inside else full, _mix(colour, "#000000", 0.45)
        # Beside: behind the mark; for an attempt under way also in the time to come, before or behind its end.
        starts = [taken + 4] + [self.x(self.now) + 6, self.x(a.until) + 6] * a.open
        for start in starts:
            words = _fit(wanted, self._space(start, following, obstacles) - 4, 13, True, least=7)
            if words and start >= taken:
                self._text(start, y, words, 13, dark, bold=True)
                return max(taken, start + _width(words, 13, True)), lane_from
        above_from = max(inner[0], lane_from)
        space = self._space(above_from, following if inside else max(following, above_from + 14), obstacles[:-1])
        above = _fit(wanted, space - 3, 13, True, least=5) or ("" if inside else _whole(number, space, 13))
        if above and self.lane and above_from - inner[0] < 12:
            self._text(above_from, y - self.bar / 2 - 7, above, 13, dark, bold=True)
            return taken, above_from + _width(above, 13, True) + 4
        if not inside and free[0] + _width(number, 13, True) + 6 < inner[0]:
            self._text(inner[0] - 4, y, number, 13, dark, bold=True, align="right")
        return taken, lane_from

    def _dead_letters(self) -> None:
        colour = MARKS["dead"][1]
        letters = [(at, "redriven", job) for job in self.timeline.jobs.values() for at in job.redriven]
        letters += [(job.dead, "dead", job) for job in self.timeline.jobs.values() if job.dead is not None]
        letters = sorted((letter for letter in letters if self._inside(letter[0])), key=lambda letter: letter[0])
        y, now = self.ys[-1], self.x(self.now)
        spans = [(now - 6, now + 6)] + [(self.x(at) - 10, self.x(at) + 10) for at, _, _ in letters]
        for at, kind, job in reversed(letters):
            x = self.x(at)
            if job.name in self.row_of:
                self._stroke("fall", _mix(colour, "#FFFFFF", 0.35), x, self.row_of[job.name] + self.bar / 2, x, y)
            self._mark(kind, x, y)
            deliveries = job.deliveries or len(job.attempts)
            what = "redriven" if kind == "redriven" else f"after {_count(deliveries, 'delivery', 'deliveries')}"
            name = _plain(job.name)
            labels = [f"{name} {what}", f"{_fit(name, 120, 13)} {what}", _fit(name, 120, 13)]
            places = [(label, side) for label in labels for side in ("left", "right")]
            for label, align in places:
                size = _width(label, 13)
                x0 = x + 12 if align == "left" else x - 12 - size
                if (
                    self.left <= x0
                    and x0 + size <= self.right
                    and not any(x0 < end and begin < x0 + size for begin, end in spans)
                ):
                    self._text(x + 12 if align == "left" else x - 12, y, label, 13, colour, align=align)
                    spans.append((x0 - 6, x0 + size + 6))
                    break


# --- lease ownership ---------------------------------------------------------------------------------


class LeasePicture(_Picture):
    """One row per work item, one bar per ownership, and the roster at the right edge.

    Args:
        width, height: in CSS pixels.
        pixel_ratio: device pixels per CSS pixel; the PNG has width * pixel_ratio columns.
    """

    title = "Lease ownership"
    subtitle = "ticks = renewals · hatched = owner gone, lease still stands · r = revision, the fencing token"
    nothing = "no work items yet"
    right_margin = 216.0
    least_pitch = 34.0

    def _choose_rows(self) -> tuple[list[str], str]:
        items = list(self.timeline.items.values())
        hidden = {item.name for item in items if item.finished is not None and item.finished < self.start}
        shown = [item for item in items if item.name not in hidden]
        if len(shown) > self._room:
            order = ("done", "free", "held", "suspect")
            ranked = sorted(shown, key=lambda item: (order.index(item.state), item.finished or -item.added))
            hidden.update(item.name for item in ranked[: len(shown) - self._room])
            shown = [item for item in shown if item.name not in hidden]
        self.shown = shown
        counted = Counter(self.timeline.items[name].state for name in hidden)
        words = {"done": "finished", "free": "free", "held": "held", "suspect": "suspect"}
        parts = [f"{counted[state]} {word}" for state, word in words.items() if counted[state]]  # type: ignore[index]
        folded = f"+ {', '.join(parts)} item{'' if len(hidden) == 1 else 's'} not shown" if parts else ""
        return [item.name for item in shown], folded

    def _rows(self) -> None:
        if self.shown:
            self._text(self.right + 34, self.top - 13, "owner", 13, MUTED)
            self._text(self.width - 20, self.top - 13, "expires in", 13, MUTED, align="right")
        for item, y in zip(self.shown, self.ys, strict=True):
            self._item(item, y)
            self._roster(item, y)

    def _item(self, item: ItemLine, y: float) -> None:
        if not item.ownerships:
            self._stroke("wait", "#C9D1D9", self.x(item.added), y, self.x(self.now), y)
            self._mark("free", max(self.x(item.added), self.left + 8), y)
        last: Ownership | None = None
        self._lane_from = self.left
        for index, own in enumerate(item.ownerships):
            after = item.ownerships[index + 1] if index + 1 < len(item.ownerships) else None
            if max(own.end if own.end is not None else self.now, own.start) >= self.start:
                self._ownership(own, last, after, y)
            last = own

    def _ownership(self, own: Ownership, last: Ownership | None, after: Ownership | None, y: float) -> None:
        colour = self.colours.get(own.worker, OKABE_ITO[-1])
        end = max(self.now if own.end is None else own.end, own.start)
        alive = end if own.gone is None else min(max(own.gone, own.start), end)
        stands = max(min(self.now, own.until), alive) if own.end is None else end
        x0, x1 = self.x(own.start), self.x(alive)
        following = self.x(after.start) if after else self.right
        self._bar(colour, x0, x1, y)
        self._ticks(own.renewals, y)
        room = x1 - x0 - 10
        if own.gone is not None and self._inside(alive):
            room -= _BADGE / 2
            self._hatch(colour, x1, self.x(stands), y)
            self._mark(self._cause(own), x1, y)
        if own.end is None and own.until > self.now:
            self._patience(max(self.now, alive), own.until, y)
        self._owner_label(own, colour, x0, x1, room, following, y)
        if own.end is None:
            return
        x = self.x(end)
        if own.how == "expired" and self._inside(end):
            self._expiry(own, after, x, y, colour)
        elif own.how in MARKS and self._inside(end):
            half = _BADGE / 2 + 1
            if following - x < 2 * half:
                self._mark(own.how, x - half if x - x0 > 4 * half else x, y)
                return
            self._mark(own.how, x + half, y)
            now = self.x(self.now)
            limit = min(following, now if now > x + 2 * half else self.right) - 6
            if x + 21 + _width(own.how, 13) <= limit:
                self._text(x + 21, y, own.how, 13, MARKS[own.how][1])

    def _owner_label(
        self, own: Ownership, colour: str, x0: float, x1: float, room: float, following: float, y: float
    ) -> None:
        """Worker and token in the bar; of a bar that is too short yet, in the time to come or above it."""
        token, now = f"r{own.token}", self.x(self.now)
        full = f"{_plain(own.worker)} · {token}"
        inside = _fit(full, room, 13, True, least=8) or _whole(token, room, 13)
        if inside:
            self._text(x0 + 6, y, inside, 13, _on(colour), bold=True)
        if inside not in (token, ""):
            return
        wanted, dark = _plain(own.worker) if inside else full, _mix(colour, "#000000", 0.45)
        if own.end is None and own.gone is None:
            ends = [(self.x(own.until) - 2, self.x(own.until) + 2)] if own.until > self.now else []
            for start in (now + 6, self.x(own.until) + 6):
                words = _fit(wanted, self._space(start, self.right, ends), 13, True, least=7)
                if words and start > now:
                    self._text(start, y, words, 13, dark, bold=True)
                    return
        start = max(x0, self._lane_from)
        words = _fit(wanted, self._space(start, max(following, x1), self._obstacles(y)) - 12, 13, True, least=4)
        if words and start < x1:
            self._text(start, y - self.bar / 2 - 8, words, 13, dark, bold=True)
            self._lane_from = start + _width(words, 13, True) + 8

    def _cause(self, own: Ownership) -> str:
        return _cause_of(self.timeline, own)[0]

    def _hatch(self, colour: str, x0: float, x1: float, y: float) -> None:
        """Diagonal lines, cut off at the edges of the box by plain geometry."""
        if x1 - x0 < 1:
            return
        self._stroke("tail", _mix(colour, "#FFFFFF", 0.82), x0, y, x1, y)
        half, step = self.bar / 2, 7.0
        base = x0 - self.bar
        while base < x1:
            left, right = max(base, x0), min(base + self.bar, x1)
            if right > left:
                self._stroke("hatch", colour, left, y + half - (left - base), right, y + half - (right - base))
            base += step

    def _expiry(self, own: Ownership, after: Ownership | None, x: float, y: float, colour: str) -> None:
        """The expiry mark above the row, and beside it how long the item was without a living owner."""
        words = ["expired"]
        if after is not None:
            late = f"{_short(max(after.start - own.end, 0.0) if own.end is not None else 0.0)} s after expiry"
            cause = _cause_of(self.timeline, own)[1]
            by = f"reclaimed {_short(after.start - own.gone)} s after {cause}, {late}" if own.gone is not None else ""
            words = [by or f"reclaimed {late}", f"reclaimed {late}", "reclaimed"]
        lane = y - self.bar / 2 - 8
        self._mark("expired", x, lane)
        now = self.x(self.now)
        for label in words:
            size = _width(label, 13)
            for x0 in (x + 11, x - 11 - size):
                clear = x0 >= self._lane_from and x0 + size <= self.right - 2
                if clear and not (x0 < now + 6 and now - 6 < x0 + size):
                    self._text(x0, lane, label, 13, INK)
                    self._lane_from = max(x0 + size, x + 11) + 10
                    return
        self._lane_from = x + 20

    def _roster(self, item: ItemLine, y: float) -> None:
        left, edge = self.right + 34, self.width - 20.0
        owner = item.owner
        if owner is None:
            words = "finished" if item.state == "done" else "free"
            self._mark(words, left - 13, y)
            self._text(left, y, words, 13, MARKS[words][1], bold=True)
            return
        remaining = owner.until - self.now
        time = f"{remaining:.1f} s" if remaining > 0 else "due"
        suspect = owner.gone is not None
        if suspect:
            self._mark(self._cause(owner), left - 13, y)
        else:
            colour = self.colours.get(owner.worker, OKABE_ITO[-1])
            self._stroke("swatch", colour, left - 19, y, left - 7, y)
        name = _fit(_plain(owner.worker), edge - left - 62, 13, True)
        self._text(left, y, name, 13, INK, bold=True)
        self._text(edge, y, time, 13, MARKS["gone"][1] if suspect or remaining <= 0 else INK, align="right", bold=True)


# --- the pictures as functions --------------------------------------------------------------------------


def delivery_attempts(
    events: Told, *, now: float | None = None, width: int = 960, height: int | None = None, pixel_ratio: float = 1.0
) -> Figure:
    """The picture of delivery attempts as a figure, drawn once.

    Args:
        events: a history, events in their order, or a timeline.
        now: the moment to draw, seconds; None means the last event.
        width, height: in CSS pixels; without a height it follows from the number of jobs.
        pixel_ratio: device pixels per CSS pixel.
    """
    timeline, moment = _told(events, now)
    rows = len(timeline.jobs) + any(job.dead is not None or job.redriven for job in timeline.jobs.values())
    picture = DeliveryPicture(width=width, height=height or _height(rows), pixel_ratio=pixel_ratio)
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
    canvas = picture.canvas
    if not isinstance(canvas, FigureCanvasAgg):
        canvas = FigureCanvasAgg(picture)
        canvas.draw()
    elif picture.stale:
        canvas.draw()
    return _png(canvas)


def _png(canvas: FigureCanvasAgg) -> bytes:
    # Never print_png or savefig: they draw everything again, without the moving artists.
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    file = io.BytesIO()
    image.save(file, "png", compress_level=1)
    return file.getvalue()


def _height(rows: int) -> int:
    return int(min(max(_TOP + _BOTTOM + rows * 44, 300), 820))


def _told(events: Told, now: float | None) -> tuple[Timeline, float]:
    timeline = events if isinstance(events, Timeline) else Timeline(events)
    return timeline, timeline.last if now is None else now


# --- the text twins -------------------------------------------------------------------------------------


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _short(seconds: float) -> str:
    """Seconds with as many places as matter: 4.1, but 0.10 and 0.002."""
    return f"{seconds:.1f}" if abs(seconds) >= 0.95 else f"{seconds:.2f}" if abs(seconds) >= 0.01 else f"{seconds:.3f}"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def describe_deliveries(events: Told, *, now: float | None = None) -> str:
    """What the picture of delivery attempts says, as one paragraph; `now` as there."""
    timeline, moment = _told(events, now)
    if not timeline.jobs:
        return " ".join(["Nothing was published yet.", *_outages(timeline)])
    jobs = list(timeline.jobs.values())
    ordinary = [
        job for job in jobs if job.done is not None and len(job.attempts) <= 1 and not job.late and not job.redriven
    ]
    told = {job.name for job in ordinary}
    interesting = [
        job for job in jobs
        if job.name not in told and (len(job.attempts) > 1 or job.state in ("stuck", "dead", "retrying", "done")
                                     or job.redriven or any(a.end is not None for a in job.attempts))
    ]  # fmt: skip
    interesting.sort(key=_last_moment, reverse=True)
    narrated = interesting[:4]
    text = []
    if ordinary:
        who = ordinary[0].name if len(jobs) == 1 else f"{len(ordinary)} of {_count(len(jobs), 'job')}"
        text.append(f"{who} {'was' if len(ordinary) == 1 else 'were'} done at the first attempt.")
    text += [_job_story(job, moment) for job in narrated]
    if len(interesting) > len(narrated):
        rest = Counter(job.state for job in interesting[len(narrated) :])
        text.append(f"{len(interesting) - 4} more took several attempts or failed: {_states(rest)}.")
    named = {job.name for job in narrated}
    waiting = [job for job in jobs if job.state == "waiting" and job.name not in named]
    flying = [job for job in jobs if job.state == "in flight" and job not in interesting]
    if flying:
        some = [f"{job.name} with {job.attempts[-1].worker}" for job in flying[:3]]
        more = f" and {len(flying) - 3} more" if len(flying) > 3 else ""
        text.append(f"In flight at {moment:.1f} s: {', '.join(some)}{more}.")
    if waiting:
        who = waiting[0].name if len(waiting) == 1 else f"{len(waiting)} jobs"
        text.append(f"{who} {'waits' if len(waiting) == 1 else 'wait'} for a worker.")
    return " ".join(text + _outages(timeline))


def _states(counted: Counter[JobState]) -> str:
    return _listed([f"{number} {state}" for state, number in sorted(counted.items())])


def _last_moment(job: JobLine) -> float:
    moments = [job.published, job.done or 0.0, job.dead or 0.0, job.exhausted or 0.0, *job.redriven[-1:]]
    for attempt in job.attempts[-1:]:
        moments += [attempt.start, attempt.end or 0.0, attempt.closed or 0.0]
    return max(moments)


_ENDS: Final = {
    "acked": "acked", "naked": "handed back", "failed": "failed without a word", "killed": "killed",
    "terminated": "terminated", "timed_out": "timed out",
}  # fmt: skip
_FIRST_ENDS: Final = {
    "acked": "who acked it at {end} s", "naked": "who handed it back after {took} s",
    "failed": "who failed without a word after {took} s", "killed": "who was killed after {took} s",
    "terminated": "who terminated it after {took} s", "timed_out": "who was silent when the broker gave up at {end} s",
}  # fmt: skip


def _job_story(job: JobLine, now: float) -> str:
    """One job, attempt by attempt; of more than four only the first and the last are told one by one."""
    text: list[str] = []
    told = job.attempts if len(job.attempts) <= 4 else [job.attempts[0], job.attempts[-1]]
    if len(told) < len(job.attempts):
        middle = Counter(_ENDS.get(a.how, "open") for a in job.attempts[1:-1])
        between = f"{len(job.attempts) - 2} more attempts: {_listed([f'{n} {how}' for how, n in middle.items()])}."
    else:
        between = ""
    redriven = list(job.redriven)
    last: Attempt | None = None
    for attempt in told:
        while redriven and redriven[0] <= attempt.start:
            text.append(f"It was redriven at {redriven.pop(0):.1f} s and starts again.")
            last = None
        if attempt is told[-1] and between:
            text.append(between)
            last = None
        text.append(_attempt_story(job, attempt, last, now, first=attempt is told[0]))
        last = attempt
    text += [f"It was redriven at {at:.1f} s and waits for a worker." for at in redriven[-1:]]
    if job.dead is not None:
        reason = f" ({job.reason[:80]})" if job.reason else ""
        deliveries = _count(job.deliveries or len(job.attempts), "delivery", "deliveries")
        text.append(f"After {deliveries} it is in the DLQ since {job.dead:.1f} s{reason}.")
    elif job.state == "stuck" and job.exhausted is not None:
        text.append(
            f"Since {job.exhausted:.1f} s its deliveries are used up, but it is still in the queue: nobody will get it."
        )
    elif job.done is not None and job.late:
        text.append("It was done after the broker had given up on it.")
    return " ".join(text)


def _attempt_story(job: JobLine, a: Attempt, last: Attempt | None, now: float, *, first: bool) -> str:
    end = a.end if a.end is not None else now
    numbers = {"end": f"{end:.1f}", "took": _short(max(end - a.start, 0.0))}
    if first:
        doing = f"who is at it since {a.start:.1f} s"
        text = f"{job.name} was delivered to {a.worker}, {_FIRST_ENDS.get(a.how, doing).format(**numbers)}."
        if a.end is not None and a.closed is not None and a.end > a.closed:
            late = _ENDS.get(a.how, "ended")
            text = f"{job.name} was delivered to {a.worker}; the broker gave up at {a.closed:.1f} s, but it was {late} late, at {end:.1f} s."
    else:
        doing = f"at work since {a.start:.1f} s"
        how = f"{_ENDS[a.how]} at {end:.1f} s" if a.how in _ENDS else doing
        if a.how == "killed":
            how = f"killed after {numbers['took']} s"
        waited = last is not None and last.closed is not None and last.end is not None and last.closed > last.end
        if waited and last is not None and last.closed is not None:
            text = (
                f"The broker waited until {last.closed:.1f} s, then gave it to {a.worker}: attempt {a.number}, {how}."
            )
        else:
            text = f"{a.worker} got it at {a.start:.1f} s: attempt {a.number}, {how}."
    if a.open and a.end is not None and a.until > now:
        text += f" The broker waits until {a.until:.1f} s."
    return text


def _outages(timeline: Timeline) -> list[str]:
    return [
        f"The broker was {'killed' if outage.how == 'killed' else 'stopped'} at {outage.start:.1f} s and "
        + ("is still down." if outage.end is None else f"came back at {outage.end:.1f} s.")
        for outage in timeline.outages[-2:]
    ]


def describe_leases(events: Told, *, now: float | None = None) -> str:
    """What the picture of lease ownership says, as one paragraph; `now` as there."""
    timeline, moment = _told(events, now)
    if not timeline.items:
        return " ".join(["There are no work items yet.", *_outages(timeline)])
    items = list(timeline.items.values())
    counted = Counter(item.state for item in items)
    words = {"held": "held", "suspect": "held by an owner that is gone", "free": "free", "done": "finished"}
    parts = [f"{counted[state]} {word}" for state, word in words.items() if counted[state]]  # type: ignore[index]
    text = [f"{_count(len(items), 'work item')}: {_listed(parts)}."]
    stories = [(at, story) for item in items for at, story in _item_stories(timeline, item, moment)]
    stories.sort(key=lambda told: told[0], reverse=True)
    text += [story for _, story in stories[:4]]
    if len(stories) > 4:
        text.append(f"{len(stories) - 4} earlier changes of owner are not told here.")
    held = [(item, item.owner) for item in items if item.owner is not None and item.owner.gone is None]
    for item, own in held[:3]:
        left = own.until - moment
        expires = f"expires in {left:.1f} s" if left > 0 else "is due to expire"
        text.append(
            f"{own.worker} holds {item.name} (r{own.token}, {_count(len(own.renewals), 'renewal')}); it {expires}."
        )
    if len(held) > 3:
        text.append(f"{len(held) - 3} more are held.")
    return " ".join(text + _outages(timeline))


def _item_stories(timeline: Timeline, item: ItemLine, now: float) -> list[tuple[float, str]]:
    """What happened to the owners of an item: when, and a sentence or two."""
    stories = []
    for index, own in enumerate(item.ownerships):
        after = item.ownerships[index + 1] if index + 1 < len(item.ownerships) else None
        who = f"{own.worker} held {item.name} (r{own.token})"
        if own.gone is not None:
            story = f"{who} and {_cause_of(timeline, own)[2]} at {own.gone:.1f} s;"
            if own.end is None:
                story += (
                    f" the lease still stands until {own.until:.1f} s." if own.until > now else " it is due to expire."
                )
            else:
                story += f" the lease stood until {own.end:.1f} s."
        elif own.how == "expired":
            story = f"{who}, but the lease ran out at {own.end or own.until:.1f} s."
        elif own.how in ("released", "lost", "finished"):
            verb = {"released": "released it", "lost": "lost it", "finished": "finished it"}[own.how]
            story = f"{who} and {verb} at {own.end or now:.1f} s."
        else:
            continue
        at = own.end if own.end is not None else own.gone or own.start
        if after is not None and own.how == "expired" and own.end is not None:
            delays = f"{_short(max(after.start - own.end, 0.0))} s after expiry"
            if own.gone is not None:
                delays = f"{_short(after.start - own.gone)} s after {_cause_of(timeline, own)[1]}, {delays}"
            story += f" {after.worker} reclaimed it (r{after.token}) {delays}."
            at = after.start
        stories.append((at, story))
    return stories


def _cause_of(timeline: Timeline, own: Ownership) -> tuple[str, str, str]:
    """Why an owner is gone: mark, noun, verb. Only the worker's present state tells, so it may be forgotten."""
    worker = timeline.workers.get(own.worker)
    state = worker.state if worker and worker.since == own.gone else ""
    return {
        "killed": ("killed", "the kill", "was killed"),
        "frozen": ("frozen", "the freeze", "was frozen"),
        "cut off": ("cut off", "the cut", "was cut off"),
    }.get(state, ("gone", "the owner was gone", "was gone"))
