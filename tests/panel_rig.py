"""Panels without a kernel, on a hand-made history, and what one asks of them."""

from __future__ import annotations

import ast
import inspect
import time
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from meetupq import Lab
from meetupq.dead_letters import DeadLetter
from meetupq.history import History
from meetupq.roster import Claim
from meetupq.summary import QueueSummary
from meetupq.timing import Timing
from meetupq.view import Controls, View

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


class Bench:
    """Panels on a hand-made history, with controls that only write down what was pressed."""

    def __init__(self, timing: Timing | None = None) -> None:
        self.history = History()
        self.pressed: list[Call] = []
        self.failures: list[str] = []
        self.counted: QueueSummary | None = None
        self.letters: list[DeadLetter] = []
        self.claims: list[Claim] = []
        self.panels: list[View] = []
        self.controls = Controls(
            press=lambda action, *args, **options: self.pressed.append((action, args, options)),
            timing=timing or Timing.preset("ci"),
            failures=lambda: self.failures,
            claims=lambda: self.claims,
            counted=lambda: self.counted,
            letters=lambda: self.letters,
        )

    def show(self, kind: type[View], *, controls: bool = True, **options: Any) -> Any:
        self.panels.append(kind(self.history, self.controls if controls else None, **options))
        return self.panels[-1]

    def close(self) -> None:
        for panel in self.panels:
            panel.close()


def soon(condition: Callable[[], object], within: float = 5.0) -> None:
    """Wait until a panel's own thread has brought something about."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "the panel did not show it in time"
        time.sleep(0.01)


def all_of(panel: widgets.Widget, kind: type = widgets.Widget) -> list[Any]:
    found = [panel] if isinstance(panel, kind) else []
    for child in getattr(panel, "children", ()):
        found += all_of(child, kind)
    return found


def buttons(panel: View) -> list[widgets.Button]:
    """Those that one can see."""
    return [each for each in all_of(panel, widgets.Button) if each.layout.visibility != "hidden"]


def the_button(panel: View, description: str, method: str = "") -> widgets.Button:
    """The first button of this description, and, where given, of a method: `lab.kill("ada")`."""
    return next(b for b in buttons(panel) if b.description == description and method in b.tooltip)


def has_button(panel: View, description: str, method: str = "") -> bool:
    return any(b.description == description and method in b.tooltip for b in buttons(panel))


def text(panel: View) -> str:
    """All that is said, the style sheet aside."""
    return " ".join(html.value for html in all_of(panel, widgets.HTML) if "<style>" not in html.value)


def call_in(tooltip: str) -> Call:
    """The call of a method of the lab in a tooltip; fails if there is none, or one that the lab would refuse."""
    _, found, rest = tooltip.partition("lab.")
    assert found, f"{tooltip!r} names no method of the lab"
    for end in (place + 1 for place, sign in enumerate(rest) if sign == ")"):
        try:
            call = ast.parse(rest[:end], mode="eval").body
        except SyntaxError:
            continue  # a parenthesis inside of a text
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        args = tuple(ast.literal_eval(value) for value in call.args)
        options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        inspect.signature(getattr(Lab, call.func.id)).bind(None, *args, **options)
        return call.func.id, args, options
    raise AssertionError(f"{tooltip!r} has no call that can be read")
