"""The picture of measured takeovers: a row for each way to take over, a dot for each kill, and the same in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from meetupq.ink import Shown, plain
from meetupq.palette import FAINT, GRID, INK, MUTED, OKABE_ITO, WHITE
from meetupq.trials import Trial

_SHAPES: Final = "os^Dvph"
"""So that colour is not the only thing that tells one row from another."""
_LANES: Final = 5
"""Dots of a row stand at so many heights in turn, so that few cover each other."""


def takeover_cloud(trials: Sequence[Trial], *, width: int = 960, height: int | None = None) -> Figure:
    """How late the next owners came, in milliseconds after the nominal expiry of the lease.

    Args:
        trials: a row each, in this order.
        width, height: in CSS pixels; without a height it follows from the number of rows.
    """
    height = height or 130 + 74 * max(len(trials), 1)
    figure = Shown(figsize=(width / 72, height / 72), dpi=72, facecolor=WHITE)
    axes = figure.add_axes((190 / width, 54 / height, 1 - 400 / width, 1 - 120 / height), facecolor="none")
    figure.text(20 / width, 1 - 28 / height, "How late the next owner came", size=17, weight="bold", color=INK)
    under = "a dot = one killed owner · a line = the median"
    figure.text(20 / width, 1 - 50 / height, under, size=13, color=MUTED)
    for row, trial in enumerate(trials):
        colour = OKABE_ITO[row % len(OKABE_ITO)]
        late = [1000 * delay for delay in trial.delays]
        heights = [row + 0.13 * (number % _LANES - _LANES // 2) for number in range(len(late))]
        axes.plot(
            late, heights, linestyle="none", marker=_SHAPES[row % len(_SHAPES)], markersize=8, color=colour,
            markeredgecolor=WHITE, markeredgewidth=0.8, clip_on=False, zorder=3,
        )  # fmt: skip
        axes.plot([1000 * trial.median] * 2, [row - 0.42, row + 0.42], color=INK, linewidth=2.5, zorder=4)
        # Both labels stand beside the plot, at the height of the row, where no dot can be.
        place = {"transform": axes.get_yaxis_transform(), "va": "center", "clip_on": False}
        axes.text(-0.03, row, plain(trial.how), size=15, weight="bold", color=INK, ha="right", **place)  # type: ignore[arg-type]
        told = f"median {1000 * trial.median:.0f} ms\nworst {1000 * trial.worst:.0f} ms"
        axes.text(1.03, row, told, size=13, color=INK, ha="left", **place)  # type: ignore[arg-type]
    least = min((1000 * delay for trial in trials for delay in trial.delays), default=0.0)
    most = max((1000 * delay for trial in trials for delay in trial.delays), default=100.0)
    axes.set_xlim(min(least, 0.0), max(most * 1.04, 50.0))
    axes.set_ylim(max(len(trials), 1) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(max((width - 400) // 80, 2), integer=True))
    axes.yaxis.set_visible(False)
    axes.tick_params("x", length=0, pad=6, labelsize=13, labelcolor=MUTED)
    axes.set_xlabel("milliseconds after the nominal expiry of the lease", size=13, color=MUTED)
    axes.grid(True, axis="x", color=GRID, linewidth=1)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.spines["bottom"].set(color=FAINT)
    if not trials:
        figure.text(0.5, 0.5, "nothing measured yet", color=MUTED, size=16, ha="center")
    return figure


def describe_takeovers(trials: Sequence[Trial]) -> str:
    """What the picture says, as one paragraph."""
    if not trials:
        return "Nothing was measured yet."
    ranked = sorted(trials, key=lambda trial: trial.median)
    told = [
        f"{trial.how}: {len(trial.delays)} owners were killed; half of the next ones came within "
        f"{1000 * trial.median:.0f} ms after the nominal expiry of the lease, all within {1000 * trial.worst:.0f} ms."
        for trial in trials
    ]
    if len(ranked) > 1:
        told.append(f"By the median {ranked[0].how} is the fastest, and {ranked[-1].how} the slowest.")
    return " ".join(told)
