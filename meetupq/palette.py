"""Colours and marks: what a worker, a state and an end look like, on light paper and on dark.

Colour is never alone: every state has a mark and a word too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from matplotlib.colors import to_hex, to_rgb

from meetupq.errors import LookInvalid
from meetupq.timeline import JobState, Timeline, WorkerState

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


@dataclass(frozen=True)
class Theme:
    """What a picture is drawn on, and with what.

    Attributes:
        paper, ink, muted, faint, grid: the ground, words, less important words, thin lines, the grid.
        plate, fall, band: the row of the DLQ, the way down to it, and a time without a broker.
        light, glow: behind what the tour points out, and around it.
    """

    name: str
    paper: str
    ink: str
    muted: str
    faint: str
    grid: str
    plate: str
    fall: str
    band: str
    light: str
    glow: str

    @property
    def is_dark(self) -> bool:
        return self.name == "dark"

    def pale(self, colour: str, share: float) -> str:
        """The colour with a share of the paper: opaque, since see-through tints add up where they overlap."""
        return mix(colour, self.paper, share)

    def strong(self, colour: str) -> str:
        """The colour as words on the paper, where it has to be read."""
        return mix(colour, WHITE, 0.4) if self.is_dark else mix(colour, "#000000", 0.45)

    def mark(self, kind: str) -> str:
        """The colour of a mark, and of the words beside it."""
        colour = MARKS[kind][1]
        return mix(colour, WHITE, 0.5) if self.is_dark else colour


LIGHT: Final = Theme("light", WHITE, INK, MUTED, FAINT, GRID, "#FBF0F2", "#BE6B7F", "#E4E7EB", "#FFF9E3", "#FFE184")
DARK: Final = Theme(
    "dark", "#15191E", "#E9EDF1", "#A3ADB8", "#4A535D", "#272E36", "#33202A", "#B3667A", "#2E363F", "#35301A", "#6B5A16"
)
THEMES: Final = {theme.name: theme for theme in (LIGHT, DARK)}


def theme_named(name: str) -> Theme:
    """
    Raises:
        LookInvalid: there is no such theme.
    """
    if not isinstance(name, str) or name not in THEMES:
        raise LookInvalid(f"no theme is called {name!r}: choose {' or '.join(map(repr, THEMES))}")
    return THEMES[name]


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
