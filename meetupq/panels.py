"""The two panels: live views of a history, with buttons. `QueuePanel(history)` works in any notebook.

A panel owns one thread. It wakes when the history grows, draws at most `fps` times a second, and sleeps when nothing
moves. Everything shown goes out through it, so that a burst of events never becomes a burst of messages: above 1000
messages a second the Jupyter server would drop all of the kernel's output.

Buttons only hand over, by `Controls.press`: which thread a click arrives on depends on the version of ipykernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar, Final

import ipywidgets as widgets

from meetupq.canvas import JOB_STATE_COLOURS, JOB_STATE_MARKS, WORKER_MARKS, worker_colour
from meetupq.dead_letters import DeadLetter
from meetupq.errors import SizeInvalid
from meetupq.figures import DeliveryPicture, LeasePicture
from meetupq.history import History
from meetupq.roster import Claim
from meetupq.summary import QueueSummary
from meetupq.timeline import Timeline, WorkerLine
from meetupq.timing import Timing
from meetupq.twins import describe_deliveries, describe_leases

ALIVE: Final = ("waiting", "working", "frozen", "cut off")


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


class Panel(widgets.VBox):  # type: ignore[misc]  # ipywidgets has no type hints
    """What both panels share: header, a card per worker, the picture, the text twin, a red line for failures."""

    title: ClassVar[str]
    role: ClassVar[str]
    actions: ClassVar[tuple[tuple[str, str, tuple[Any, ...], dict[str, Any], str], ...]]
    """Buttons of the panel as a whole: description, action, arguments, options, tooltip."""

    def __init__(
        self,
        history: History,
        controls: Controls | None = None,
        *,
        width: int = 860,
        height: int = 380,
        pixel_ratio: float = 1.0,
        fps: float = 5.0,
    ) -> None:
        for what, value, least, most in (
            ("width", width, 320, 4000),
            ("height", height, 160, 4000),
            ("pixel_ratio", pixel_ratio, 0.5, 4),
            ("fps", fps, 0.1, 60),
        ):
            if not isinstance(value, (int, float)) or not least <= value <= most:
                raise SizeInvalid(f"{what} is {value!r}, but a panel takes {least} to {most}")
        self._history = history
        self._controls = controls
        self._timeline = Timeline()
        self._pause = 1.0 / fps
        self._dirty = threading.Event()
        self._ended = threading.Event()
        self._fault = ""
        self._cards: dict[str, _Card] = {}
        self._picture: DeliveryPicture | LeasePicture | None = self._make_picture(
            width=width, height=height, pixel_ratio=pixel_ratio
        )
        self._header = widgets.HTML()
        self._crew = widgets.Box(layout=_layout(flex_flow="row wrap", flex="1 1 auto", grid_gap="8px"))
        self._image = widgets.Image(
            format="png", width=width, height=height, layout=_layout(width=f"{width}px", height=f"{height}px")
        )
        self._summary = widgets.HTML()
        self._twin = widgets.HTML()
        self._red_line = widgets.HTML()
        # As many lines of text as fit here; a longer one scrolls. Nothing below may jump.
        self._twin.layout = _layout(min_height="64px")
        self._actions = self._action_buttons()
        actions = widgets.VBox(self._actions, layout=_layout(flex="0 0 auto", margin="0 0 0 8px"))
        top = widgets.HBox([self._crew, actions], layout=_layout(min_height="92px"))
        self._frame()
        super().__init__(
            [self._header, self._red_line, top, self._image, self._summary, self._twin],
            layout=_layout(
                width=f"{width + 32}px",
                padding="12px",
                overflow="hidden",
                border="1px solid var(--jp-border-color2, #d0d7de)",
            ),
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

    def _make_picture(self, **size: Any) -> DeliveryPicture | LeasePicture:
        raise NotImplementedError

    def _facts(self, timing: Timing) -> str:
        raise NotImplementedError

    def _summarise(self, now: float) -> str:
        raise NotImplementedError

    def _describe(self, now: float) -> str:
        raise NotImplementedError

    # --- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            # While something moves the clock alone changes the picture; else only an event does.
            self._dirty.wait(self._pause if self._timeline.moving else None)
            self._dirty.clear()
            self._frame_safely()
            self._ended.wait(self._pause)
        self._frame_safely()
        self._picture = None  # its bitmaps are megabytes, and ipywidgets keeps every widget; the last image stays

    def _frame_safely(self) -> None:
        try:
            self._frame()
        except Exception as error:  # noqa: BLE001 - a picture that fails must say so, not freeze
            self._fault = f"the picture can't be drawn: {type(error).__name__}: {error}"
            _set(self._red_line, _red([self._fault]))

    def _frame(self) -> None:
        """Bring everything up to date; only what changed is sent."""
        self._timeline.feed(self._history.since(self._timeline.seen))
        now = self._history.now()
        crew = [worker for worker in self._timeline.workers.values() if worker.role == self.role]
        usable = self._controls is not None and not self._ended.is_set()
        for button in self._actions:
            _enable(button, usable)
        for worker in crew:
            if worker.name not in self._cards:
                self._cards[worker.name] = _Card(worker.name, worker_colour(self._timeline, worker.name), self._press)
            self._cards[worker.name].show(worker, usable=usable)
        boxes = tuple(card.box for card in self._cards.values())
        if self._crew.children != boxes:
            self._crew.children = boxes
        _set(self._header, self._title_line(now))
        _set(self._summary, self._summarise(now))
        _set(self._twin, f'<div class="meetupq-twin">{escape(self._describe(now))}</div>')
        failures = self._controls.failures() if self._controls else ()
        _set(self._red_line, _red([*failures, self._fault] if self._fault else failures))
        if self._picture is not None:
            self._picture.update(self._timeline, now)
            png = self._picture.png()
            if self._image.value != png:
                self._image.value = png

    def _title_line(self, now: float) -> str:
        outages = self._timeline.outages
        down = bool(outages) and outages[-1].end is None
        state = "closed" if self._ended.is_set() else "broker down" if down else "broker up"
        mark = "■" if self._ended.is_set() else "✗" if down else "●"
        facts = f"{escape(self._facts(self._controls.timing))}" if self._controls else "a view without buttons"
        return (
            f'{_STYLE}<div class="meetupq-head"><b>{self.title}</b><span>{facts}</span>'
            f'<span class="meetupq-right">{mark} {state} · {self._timeline.seen} events, '
            f"the last at {self._timeline.last:.1f} s</span></div>"
        )

    # --- buttons -----------------------------------------------------------------------------------

    def _press(self, action: str, *args: Any, **options: Any) -> None:
        if self._controls and not self._ended.is_set():
            self._controls.press(action, *args, **options)

    def _action_buttons(self) -> list[widgets.Button]:
        buttons = []
        for description, action, args, options, tooltip in self.actions:
            button = widgets.Button(
                description=description,
                tooltip=tooltip,
                disabled=self._controls is None,
                button_style="danger" if action.startswith("kill") else "",
                layout=_layout(width="92px", height="28px", padding="0", margin="0 0 4px 0"),
            )
            button.on_click(lambda _, a=action, b=args, c=options: self._press(a, *b, **c))
            buttons.append(button)
        return buttons

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


class QueuePanel(Panel):
    """The work queue, live: workers with buttons, delivery attempts, where every job is, and the text twin.

    Args:
        history: anybody's history.
        controls: what the buttons act on; `lab.queue_panel()` gives its own.
        width, height: of the picture, in CSS pixels.
        pixel_ratio: of the screen it is shown on; 2 is sharp on most laptops, and takes four times the bytes.
        fps: frames a second at the most.
    """

    title = "Work queue"
    role = "queue"
    actions = (
        ("Publish 5", "publish", (), {"count": 5}, "Publish five ordinary jobs: lab.publish(count=5)"),
        ("Poison", "poison", (), {}, "Publish a job that fails at every attempt: lab.poison()"),
        ("Kill all", "kill_all", ("queue",), {}, 'Kill all workers of the queue: lab.kill_all("queue")'),
    )

    def _make_picture(self, **size: Any) -> DeliveryPicture:
        return DeliveryPicture(**size)

    def _facts(self, timing: Timing) -> str:
        patience = "/".join(f"{seconds:g}" for seconds in timing.backoff) or f"{timing.ack_wait:g}"
        return f"patience {patience} s · max_deliver {timing.max_deliver} · timing {timing.name}"

    def _summarise(self, now: float) -> str:
        counts = self._timeline.counts
        parts = "".join(
            f'<span style="background:{JOB_STATE_COLOURS[state]};flex:{count} 0 auto">'
            f"{JOB_STATE_MARKS[state]} {count} {state}</span>"
            for state, count in counts.items()
        )
        total = sum(counts.values())
        hint = "every published job is in exactly one of them"
        return f'<div class="meetupq-bar" title="{hint}">{parts}<b>= {total} published</b></div>'

    def _describe(self, now: float) -> str:
        return describe_deliveries(self._timeline, now=now)


class LeasePanel(Panel):
    """The leases, live: workers with buttons, lease ownership, the claims roster, and the text twin.

    The arguments are those of `QueuePanel`.
    """

    title = "Leases"
    role = "leases"
    actions = (
        ("Add work", "add_work", (), {}, "Put up one more item of long work: lab.add_work()"),
        ("Kill all", "kill_all", ("leases",), {}, 'Kill all workers that lobby: lab.kill_all("leases")'),
    )

    def _make_picture(self, **size: Any) -> LeasePicture:
        return LeasePicture(**size)

    def _facts(self, timing: Timing) -> str:
        return f"TTL {timing.lease_ttl:g} s · renewed every {timing.renew:g} s · timing {timing.name}"

    def _summarise(self, now: float) -> str:
        claims = self._controls.claims() if self._controls else []
        done = {name for name, item in self._timeline.items.items() if item.state == "done"}
        state = {c.item: "finished" if c.item in done else c.state for c in claims}
        rows = "".join(
            f"<tr><td>{escape(c.item)}</td><td>{_CLAIM_MARKS[state[c.item]]} {state[c.item]}</td>"
            f"<td>{escape(c.owner)}</td>"
            f"<td>{c.token}</td><td>{c.since:.1f} s</td><td>{c.renewals}</td>"
            f"<td>{'–' if c.state in ('expired', 'released') else f'{c.expires_in:.1f} s'}</td>"
            f"<td>{c.evidence}</td><td>{escape(', '.join(c.past_owners[-3:])) or '–'}</td></tr>"
            for c in claims
        )
        head = "".join(
            f"<th>{name}</th>"
            for name in ("work", "state", "owner", "token", "since", "renewals", "expires in", "seen by", "before")
        )
        return f'<table class="meetupq-roster"><tr>{head}</tr>{rows}</table>' if rows else ""

    def _describe(self, now: float) -> str:
        return describe_leases(self._timeline, now=now)


class _Card:
    """One worker: its name and colour, what it does in word and mark, its buttons."""

    def __init__(self, name: str, colour: str, press: Callable[..., None]) -> None:
        self._text = widgets.HTML()
        self._colour = colour
        self._buttons = {
            "Kill": _small_button("Kill", f'Kill {name} now: lab.kill("{name}")', "danger"),
            "Stop": _small_button("Stop", f'Let {name} finish, then stop: lab.stop("{name}")'),
            "Start": _small_button("Start", f'Start {name} again: lab.relaunch("{name}")'),
        }
        for description, action in (("Kill", "kill"), ("Stop", "stop"), ("Start", "relaunch")):
            self._buttons[description].on_click(lambda _, a=action: press(a, name))
        self.box = widgets.VBox(
            [self._text, widgets.HBox([*self._buttons.values()])],
            layout=_layout(
                width="182px", height="84px", padding="4px 8px", border="1px solid var(--jp-border-color2, #d0d7de)"
            ),
        )
        self.box.add_class("meetupq-card")
        self.box.add_class(f"meetupq-worker-{name}")

    def show(self, worker: WorkerLine, *, usable: bool) -> None:
        held = f" (attempt {worker.attempt})" if worker.attempt else ""
        verb = "held" if worker.state == "killed" else "holds"
        doing = f"{verb} {escape(worker.holds)}{held}" if worker.holds else "holds nothing"
        _set(
            self._text,
            f'<div class="meetupq-worker"><i style="background:{self._colour}"></i><b>{escape(worker.name)}</b>'
            f'<span class="meetupq-{worker.state.replace(" ", "-")}">{WORKER_MARKS[worker.state]} {worker.state}</span>'
            f"</div><div class='meetupq-doing'>{doing}</div>",
        )
        alive = worker.state in ALIVE
        for description, button in self._buttons.items():
            _enable(button, usable and alive != (description == "Start"))


def _small_button(description: str, tooltip: str, style: str = "") -> widgets.Button:
    return widgets.Button(
        description=description,
        tooltip=tooltip,
        button_style=style,
        layout=_layout(width="50px", height="26px", margin="0 4px 0 0", padding="0"),
    )


def _enable(button: widgets.Button, usable: bool) -> None:
    if button.disabled == usable:
        button.disabled = not usable


def _layout(**settings: str) -> widgets.Layout:
    return widgets.Layout(**settings)


def _set(widget: widgets.HTML, value: str) -> None:
    if widget.value != value:
        widget.value = value


def _red(failures: Iterable[str]) -> str:
    lines = [escape(str(failure)) for failure in failures]
    if not lines:
        return ""
    more = f" (and {len(lines) - 1} before)" if len(lines) > 1 else ""
    return f'<div class="meetupq-red">✗ failed in the background: {lines[-1]}{more}</div>'


_CLAIM_MARKS: Final = {"held": "●", "suspect": "?", "expired": "▼", "released": "↩", "finished": "✓"}
_STYLE: Final = """<style>
.meetupq-panel .widget-html, .meetupq-panel .widget-html-content { line-height: 1.35; }
.meetupq-head { display: flex; gap: 14px; align-items: baseline; color: var(--jp-ui-font-color1, #1f2328); }
.meetupq-head b { font-size: 18px; }
.meetupq-head span { font-size: 13px; color: var(--jp-ui-font-color2, #57606a); }
.meetupq-head .meetupq-right { margin-left: auto; }
.meetupq-card { border-radius: 6px; }
.meetupq-worker { display: flex; gap: 6px; align-items: center; font-size: 14px; }
.meetupq-worker i { width: 12px; height: 12px; border-radius: 2px; }
.meetupq-worker span { margin-left: auto; font-size: 13px; }
.meetupq-killed { color: #b42318; font-weight: 600; }
.meetupq-doing { font-size: 12px; color: var(--jp-ui-font-color2, #57606a); white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; }
.meetupq-bar { display: flex; font-size: 13px; font-weight: 600; color: #fff; border-radius: 4px; overflow: hidden; }
.meetupq-bar span { padding: 2px 8px; white-space: nowrap; }
.meetupq-bar b { padding: 2px 8px; color: var(--jp-ui-font-color1, #1f2328); white-space: nowrap; }
.meetupq-roster { width: 100%; font-size: 13px; border-collapse: collapse; }
.meetupq-roster th, .meetupq-roster td { text-align: left; padding: 2px 8px;
  border-bottom: 1px solid var(--jp-border-color2, #d0d7de); }
.meetupq-twin { font-size: 13px; padding: 8px; background: var(--jp-layout-color2, #f6f8fa); border-radius: 4px; }
.meetupq-red { font-size: 13px; padding: 4px 8px; color: #fff; background: #b42318; border-radius: 4px; }
</style>"""
