"""The cloud of delays: every kill is a dot, in its place, and the words say the same."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from meetupq.cloud import describe_takeovers, takeover_cloud
from meetupq.timing import Timing
from meetupq.trials import Trial


def trial(how: str, *delays: float) -> Trial:
    return Trial(how, delays, (), Timing.preset("ci"), 3, 20)


def texts(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


SLOW, FAST = trial("poll", 0.3, 0.5, 0.4), trial("observe", 0.003, 0.004, 0.009)


def test_every_kill_is_a_dot_at_its_delay_and_every_row_has_its_median() -> None:
    axes = takeover_cloud([SLOW, FAST]).axes[0]
    dots = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
    assert [[float(x) for x in line.get_xdata()] for line in dots] == [[300, 500, 400], [3, 4, 9]]  # type: ignore[union-attr]
    assert len({line.get_marker() for line in dots}) == 2, "colour is not the only thing that tells them apart"
    assert len({line.get_color() for line in dots}) == 2
    assert [line.get_xdata()[0] for line in axes.lines if line not in dots] == [400, 4]  # type: ignore[index]


def test_the_rows_are_labelled_and_the_axis_has_its_unit() -> None:
    figure = takeover_cloud([SLOW, FAST])
    said = [text.get_text() for text in texts(figure)]
    assert {"poll", "observe", "median 400 ms\nworst 500 ms", "median 4 ms\nworst 9 ms"} <= set(said)
    assert "milliseconds after the nominal expiry of the lease" in said


def test_a_takeover_before_the_expiry_is_on_the_picture_too() -> None:
    assert takeover_cloud([trial("observe", -0.05, 0.01)]).axes[0].get_xlim()[0] <= -50


@pytest.mark.parametrize("rows", [0, 1, 4, 6])
@pytest.mark.parametrize("width", [600, 960])
def test_no_words_cover_each_other_or_leave_the_picture(rows: int, width: int) -> None:
    chance = random.Random(rows)
    figure = takeover_cloud(
        [trial(f"way {n}", *(chance.uniform(0, n + 1) for _ in range(20))) for n in range(rows)], width=width
    )
    FigureCanvasAgg(figure).draw()
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    assert boxes
    for name, box in boxes:
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1, name
    for (one, a), (other, b) in combinations(boxes, 2):
        assert not a.overlaps(b), f"{one!r} covers {other!r}"


def test_the_words_say_the_same() -> None:
    assert describe_takeovers([]) == "Nothing was measured yet."
    said = describe_takeovers([SLOW, FAST])
    assert "poll: 3 owners were killed; half of the next ones came within 400 ms" in said
    assert "all within 9 ms" in said
    assert said.endswith("By the median observe is the fastest, and poll the slowest.")


def test_a_notebook_shows_it_by_itself() -> None:
    figure = takeover_cloud([SLOW, FAST])
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
