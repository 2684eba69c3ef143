"""The panels without a browser: what they show, what their buttons do, and what they cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import ipywidgets as widgets
import pytest

from meetupq import Lab
from meetupq.history import History
from meetupq.panels import Controls, LeasePanel, Panel, QueuePanel
from meetupq.timing import Timing

Pressed = list[tuple[str, tuple[Any, ...], dict[str, Any]]]


class Bench:
    """Panels on a hand-made history, with controls that only write down what was pressed."""

    def __init__(self) -> None:
        self.history = History()
        self.pressed: Pressed = []
        self.failures: list[str] = []
        self.panels: list[Panel] = []
        self.controls = Controls(
            press=lambda action, *args, **options: self.pressed.append((action, args, options)),
            timing=Timing.preset("ci"),
            failures=lambda: self.failures,
            claims=list,
        )

    def show(self, kind: type[Panel], *, controls: bool = True, **options: Any) -> Panel:
        self.panels.append(kind(self.history, self.controls if controls else None, **options))
        return self.panels[-1]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for panel in bench.panels:
        panel.close()


def soon(condition: Callable[[], object], within: float = 5.0) -> None:
    """Wait until a panel's own thread has brought something about."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "the panel did not show it in time"
        time.sleep(0.01)


def all_of(panel: widgets.Widget, kind: type) -> list[Any]:
    found = [panel] if isinstance(panel, kind) else []
    for child in getattr(panel, "children", ()):
        found += all_of(child, kind)
    return found


def buttons(panel: Panel) -> dict[str, widgets.Button]:
    return {f"{b.description} {b.tooltip.split()[1]}": b for b in all_of(panel, widgets.Button)}


def text(panel: Panel) -> str:
    return " ".join(html.value for html in all_of(panel, widgets.HTML))


def a_killed_worker(history: History) -> None:
    history.append("started", worker="ada", detail="queue high")
    history.append("started", worker="bo", detail="queue high")
    history.append("published", "resize-1")
    history.append("delivered", "resize-1", "ada", attempt=1, until=history.now() + 60, source="worker")
    history.append("killed", worker="ada")


def test_a_panel_shows_what_is_in_the_history_already_and_what_comes(bench: Bench) -> None:
    a_killed_worker(bench.history)
    panel = bench.show(QueuePanel)
    soon(lambda: "✗ killed" in text(panel))
    assert "held resize-1 (attempt 1)" in text(panel)
    assert "1 in flight" in text(panel)
    assert "= 1 published" in text(panel)
    first = all_of(panel, widgets.Image)[0].value
    bench.history.append("delivered", "resize-1", "bo", attempt=2, until=bench.history.now() + 60, source="worker")
    bench.history.append("acked", "resize-1", "bo", attempt=2, source="worker")
    soon(lambda: "1 done" in text(panel))
    soon(lambda: all_of(panel, widgets.Image)[0].value != first)
    assert "ada" in panel._twin.value and "acked" in panel._twin.value


def test_every_button_has_a_tooltip_that_names_a_method_of_the_lab(bench: Bench) -> None:
    a_killed_worker(bench.history)
    for panel in (bench.show(QueuePanel), bench.show(LeasePanel)):
        soon(lambda panel=panel: all_of(panel, widgets.Button))
        for button in all_of(panel, widgets.Button):
            assert button.description
            method = button.tooltip.partition("lab.")[2].partition("(")[0]
            assert callable(getattr(Lab, method)), button.tooltip


def test_the_buttons_hand_over_what_they_say(bench: Bench) -> None:
    a_killed_worker(bench.history)
    panel = bench.show(QueuePanel)
    soon(lambda: "Kill bo" in buttons(panel))
    by_name = buttons(panel)
    assert by_name["Kill ada"].disabled and by_name["Stop ada"].disabled and not by_name["Start ada"].disabled
    assert not by_name["Kill bo"].disabled and by_name["Start bo"].disabled
    for name in ("Kill bo", "Stop bo", "Start ada", "Publish 5 five", "Poison a", "Kill all all"):
        by_name[name].click()
    assert bench.pressed == [
        ("kill", ("bo",), {}),
        ("stop", ("bo",), {}),
        ("relaunch", ("ada",), {}),
        ("publish", (), {"count": 5}),
        ("poison", (), {}),
        ("kill_all", ("queue",), {}),
    ]


def test_without_controls_a_panel_is_a_view(bench: Bench) -> None:
    a_killed_worker(bench.history)
    panel = bench.show(QueuePanel, controls=False)
    soon(lambda: "killed" in text(panel))
    assert all(button.disabled for button in all_of(panel, widgets.Button))
    for button in all_of(panel, widgets.Button):
        button.click()
    assert bench.pressed == []


def test_a_failure_in_the_background_is_a_red_line(bench: Bench) -> None:
    panel = bench.show(QueuePanel)
    assert "failed in the background" not in text(panel)
    bench.failures.append("the keeper: <b>boom</b>")
    panel.refresh()
    soon(lambda: "failed in the background: the keeper: &lt;b&gt;boom&lt;/b&gt;" in text(panel))


def test_a_picture_that_cannot_be_drawn_says_so_and_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = bench.show(QueuePanel)
    soon(lambda: all_of(panel, widgets.Image)[0].value)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("no ink")

    monkeypatch.setattr(panel._picture, "update", fail)
    panel.refresh()
    soon(lambda: "ZeroDivisionError: no ink" in text(panel))
    monkeypatch.undo()
    bench.history.append("published", "resize-1")
    soon(lambda: "= 1 published" in text(panel))


def test_names_with_markup_are_text(bench: Bench) -> None:
    history = bench.history
    history.append("started", worker="<img src=x>", detail="queue high")
    history.append("published", "<script>")
    history.append("delivered", "<script>", "<img src=x>", attempt=1, until=99, source="worker")
    panel = bench.show(QueuePanel)
    soon(lambda: "&lt;img src=x&gt;" in text(panel))
    assert "<img src=x>" not in text(panel)
    assert "<script>" not in text(panel)


def test_each_panel_shows_its_own_workers(bench: Bench) -> None:
    a_killed_worker(bench.history)
    bench.history.append("started", worker="cy", detail="leases")
    bench.history.append("added", "import-eu")
    bench.history.append("claimed", "import-eu", "cy", revision=3, until=99, source="worker")
    queue, leases = bench.show(QueuePanel), bench.show(LeasePanel)
    soon(lambda: "Kill cy" in buttons(leases))
    assert "Kill cy" not in buttons(queue)
    assert "Kill bo" not in buttons(leases)


def test_a_burst_of_events_becomes_few_messages_and_the_last_state_is_shown(bench: Bench) -> None:
    panel = bench.show(QueuePanel, fps=5)
    changes: list[object] = []
    for widget in [*all_of(panel, widgets.HTML), *all_of(panel, widgets.Image)]:
        widget.observe(changes.append, "value")
    started = time.monotonic()
    for number in range(3000):
        bench.history.append("published", f"resize-{number}")
    soon(lambda: "= 3000 published" in text(panel), within=20)
    assert len(changes) <= 5 * (5 * (time.monotonic() - started) + 2)


def test_nothing_is_drawn_while_nothing_moves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.history.append("published", "resize-1")
    panel = bench.show(QueuePanel, fps=50)
    soon(lambda: "= 1 published" in text(panel))
    time.sleep(0.2)  # the frame that may be under way
    frames = 0
    draw = panel._picture.update

    def count(*args: Any) -> None:
        nonlocal frames
        frames += 1
        draw(*args)

    monkeypatch.setattr(panel._picture, "update", count)
    time.sleep(0.5)  # the silence is the subject
    assert frames == 0
    bench.history.append("published", "resize-2")
    soon(lambda: frames > 0)


def test_close_and_freeze_end_the_thread(bench: Bench) -> None:
    before = threading.active_count()
    panel = bench.show(QueuePanel)
    assert threading.active_count() == before + 1
    panel.freeze()
    assert threading.active_count() == before
    assert "closed" in text(panel)
    bench.history.append("published", "resize-1")  # nobody listens any more
    panel.close()
    panel.close()


def test_a_panel_prints_the_same_in_every_run(bench: Bench) -> None:
    assert repr(bench.show(QueuePanel)) == "<QueuePanel>"


def test_a_lab_has_one_panel_of_a_kind_and_takes_it_along_when_it_closes() -> None:
    with Lab("ci", name="panels") as lab:
        panel = lab.queue_panel()
        assert lab.queue_panel() is panel
        lab.launch("ada")
        soon(lambda: "Kill ada" in buttons(panel))
        buttons(panel)["Kill ada"].click()
        soon(lambda: "✗ killed" in text(panel))
        assert lab.history.where("killed", worker="ada")
        lab.press("kill", "nobody")
        soon(lambda: "UnknownWorker" in text(panel))
        with pytest.raises(Exception, match="nobody"):
            lab.publish("resize-1")
    assert "closed" in text(panel)
    assert all(button.disabled for button in all_of(panel, widgets.Button) if button.tooltip.split()[1] == "ada")
