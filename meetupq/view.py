"""What all panels share: a thread that draws when something has happened, a header, a red line, and buttons.

A panel owns one thread. It wakes when the history grows, draws at most `fps` times a second, and sleeps when nothing
moves. Everything shown goes out through it, so that a burst of events never becomes a burst of messages: above 1000
messages a second the Jupyter server would drop all of the kernel's output.

Buttons only hand over, by `Controls.press`: which thread a click arrives on depends on the version of ipykernel.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar, Final

import ipywidgets as widgets

from meetupq.dead_letters import DeadLetter
from meetupq.errors import LookInvalid
from meetupq.history import History
from meetupq.roster import Claim
from meetupq.summary import QueueSummary
from meetupq.timeline import Timeline
from meetupq.timing import Timing


@dataclass(frozen=True)
class Controls:
    """What the buttons act on. Without it a panel is a view.

    Attributes:
        press: called with the name of an action and its arguments; must return at once and never raise.
        timing: shown in the header.
        failures: the background failures so far, as sentences.
        claims: the roster.
        counted: the broker's own counts at the last look; None before it.
        letters: the dead letters at the last look.
    """

    press: Callable[..., None]
    timing: Timing
    failures: Callable[[], Sequence[str]]
    claims: Callable[[], list[Claim]]
    counted: Callable[[], QueueSummary | None] = lambda: None
    letters: Callable[[], Sequence[DeadLetter]] = tuple


class View(widgets.VBox):  # type: ignore[misc]  # ipywidgets has no type hints
    """Header, red line for failures and text twin; what is between them is said by each panel."""

    title: ClassVar[str]
    role: ClassVar[str]
    style: ClassVar[str] = ""
    """CSS for what only this panel has."""

    def __init__(
        self, history: History, controls: Controls | None = None, *, width: int = 860, fps: float = 5.0
    ) -> None:
        check_sizes(("width", width, 320, 4000), ("fps", fps, 0.1, 60))
        self._history = history
        self._controls = controls
        self._timeline = Timeline()
        self._pause = 1.0 / fps
        self._dirty = threading.Event()
        self._ended = threading.Event()
        self._fault = ""
        self._header = widgets.HTML()
        self._red_line = widgets.HTML()
        # As many lines of text as fit here; a longer one scrolls. Nothing below may jump.
        self._twin = widgets.HTML(layout=widgets.Layout(min_height="64px"))
        body = self._build(width)
        self._frame()
        # The style has a widget of its own: the header is sent again and again.
        style = widgets.HTML(f"<style>{_STYLE}{self.style}</style>", layout=widgets.Layout(display="none"))
        super().__init__(
            [style, self._header, self._red_line, *body, self._twin],
            layout=widgets.Layout(width=f"{width + 32}px", padding="12px", overflow="hidden", border=BORDER),
        )
        self.add_class("meetupq-panel")
        self.add_class(f"meetupq-{self.role}")
        self._unsubscribe = history.subscribe(lambda event: self._dirty.set())
        self._dirty.set()
        self._thread = threading.Thread(target=self._run, name=f"meetupq {self.role} panel", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        # Stable, so that a cell which ends in a panel prints the same in every run.
        return f"<{type(self).__name__}>"

    # --- to be said by each panel ------------------------------------------------------------------

    def _build(self, width: int) -> list[widgets.Widget]:
        """Make the widgets between header and text twin."""
        raise NotImplementedError

    def _facts(self) -> tuple[str, str]:
        """What the header says: as far as one line has room for it, and in full."""
        raise NotImplementedError

    def _show(self, now: float, *, usable: bool) -> None:
        """Bring those widgets up to date; `usable`: whether a button has an effect."""
        raise NotImplementedError

    def _describe(self, now: float) -> str:
        """The text twin."""
        raise NotImplementedError

    def _next_look(self) -> float | None:
        """After how many seconds the clock alone changes what is shown; None: never."""
        raise NotImplementedError

    # --- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            self._dirty.wait(self._next_look())
            self._dirty.clear()
            began = time.thread_time()
            self._frame_safely()
            # A long history makes frames dear: two thirds of a core are left to the workers and to the cells.
            self._ended.wait(max(self._pause, 2 * (time.thread_time() - began)))
        self._frame_safely()
        self._let_go()

    def _let_go(self) -> None:
        """Called at the very end: ipywidgets keeps every widget, so what is large is dropped here."""

    def _frame_safely(self) -> None:
        try:
            self._frame()
        except Exception as error:  # noqa: BLE001 - a picture that fails must say so, not freeze
            self._fault = f"the picture can't be drawn: {type(error).__name__}: {error}"
            put(self._red_line, _red([self._fault]))

    def _frame(self) -> None:
        """Bring everything up to date; only what changed is sent."""
        self._timeline.feed(self._history.since(self._timeline.seen))
        now = self._history.now()
        put(self._header, self._title_line())
        put(self._twin, f'<div class="meetupq-twin">{escape(self._describe(now))}</div>')
        failures = self._controls.failures() if self._controls else ()
        put(self._red_line, _red([*failures, self._fault] if self._fault else failures))
        self._show(now, usable=self._controls is not None and not self._ended.is_set())

    def _title_line(self) -> str:
        outages = self._timeline.outages
        down = bool(outages) and outages[-1].end is None
        state = "closed" if self._ended.is_set() else "broker down" if down else "broker up"
        mark = "■" if self._ended.is_set() else "✗" if down else "●"
        brief, full = self._facts() if self._controls else ("a view without buttons", "")
        return (
            f'<div class="meetupq-head"><b>{self.title}</b>'
            f'<span class="meetupq-facts" title="{escape(full)}">{escape(brief)}</span>'
            f'<span class="meetupq-right">{mark} {state} · {self._timeline.seen} events, '
            f"last at {self._timeline.last:.1f} s</span></div>"
        )

    # --- for whoever shows it ----------------------------------------------------------------------

    def _press(self, action: str, *args: Any, **options: Any) -> None:
        if self._controls and not self._ended.is_set():
            self._controls.press(action, *args, **options)

    def refresh(self) -> None:
        """Draw again now-ish: something changed that is not in the history, such as a failure."""
        self._dirty.set()

    @property
    def ended(self) -> bool:
        """Whether it is frozen or closed."""
        return self._ended.is_set()

    def freeze(self) -> None:
        """Draw one last time, say so, and end the thread. The panel stays visible; its buttons are off."""
        self._unsubscribe()
        self._ended.set()
        self._dirty.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def close(self) -> None:
        """End the thread and take the panel away. Twice does no harm."""
        if hasattr(self, "_thread"):  # else its making was refused, and nothing is there to end
            self.freeze()
        super().close()


# --- small things that panels are made of ------------------------------------------------------------

BORDER: Final = "1px solid var(--jp-border-color2, #d0d7de)"


def check_sizes(*sizes: tuple[str, Any, float, float]) -> None:
    """Refuse what no panel can have: name, value, least, most.

    Raises:
        LookInvalid
    """
    for what, value, least, most in sizes:
        if not isinstance(value, (int, float)) or not least <= value <= most:
            raise LookInvalid(f"{what} is {value!r}, but a panel takes {least} to {most}")


def lab_call(method: str, *args: Any, **options: Any) -> str:
    """The call that does what a button does, as one writes it in a cell: `lab.kill("ada")`."""
    words = [_literal(value) for value in args] + [f"{name}={_literal(value)}" for name, value in options.items()]
    return f"lab.{method}({', '.join(words)})"


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def button(description: str, tooltip: str, width: int, *, danger: bool = False) -> widgets.Button:
    """A button of fixed size; without a gap, which is for its box to give."""
    return widgets.Button(
        description=description,
        tooltip=tooltip,
        button_style="danger" if danger else "",
        layout=widgets.Layout(width=f"{width}px", height="26px", margin="0", padding="0", flex="0 0 auto"),
    )


def row(children: Iterable[widgets.Widget], gap: int, **layout: str) -> widgets.Box:
    """Widgets beside each other; what has no room goes to the next line."""
    # Visible, since else the ring around the button that has the focus would be cut off.
    layout |= {"flex_flow": "row wrap", "grid_gap": f"{gap}px", "overflow": "visible"}
    return widgets.Box([*children], layout=widgets.Layout(**layout))


def put(widget: widgets.Widget, value: Any, trait: str = "value") -> None:
    """Set it, if it is another one: what is equal need not be sent."""
    if getattr(widget, trait) != value:
        setattr(widget, trait, value)


def enable(widget: widgets.Widget, usable: bool) -> None:
    """Let it be used, or grey it out."""
    put(widget, not usable, "disabled")


def _red(failures: Iterable[str]) -> str:
    lines = [escape(str(failure)) for failure in failures]
    if not lines:
        return ""
    more = f" (and {len(lines) - 1} before)" if len(lines) > 1 else ""
    return f'<div class="meetupq-red">✗ failed in the background: {lines[-1]}{more}</div>'


_STYLE: Final = """
.meetupq-panel .widget-html, .meetupq-panel .widget-html-content { line-height: 1.35; }
.meetupq-panel .widget-html-content { min-width: 0; }
.meetupq-panel .jupyter-button { font-size: 13px; line-height: 24px; }
.meetupq-head { display: flex; gap: 14px; align-items: baseline; color: var(--jp-ui-font-color1, #1f2328);
  white-space: nowrap; }
.meetupq-head b { font-size: 18px; }
.meetupq-head span { font-size: 13px; color: var(--jp-ui-font-color2, #57606a); }
.meetupq-head b { flex: none; }
.meetupq-head span { overflow: hidden; text-overflow: ellipsis; }
.meetupq-head .meetupq-facts { flex: 1 1 0; }
.meetupq-twin { font-size: 13px; padding: 8px; background: var(--jp-layout-color2, #f6f8fa); border-radius: 4px; }
.meetupq-red { font-size: 13px; padding: 4px 8px; color: #fff; background: #b42318; border-radius: 4px; }
.meetupq-unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
"""
