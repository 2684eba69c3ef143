"""The panels with a picture: live views of a history, with buttons. `QueuePanel(history)` works in any notebook."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from typing import Any, ClassVar, Final, NamedTuple

import ipywidgets as widgets

from meetupq.canvas import JOB_STATE_COLOURS, JOB_STATE_MARKS, WORKER_MARKS, worker_colour
from meetupq.figures import DeliveryPicture, LeasePicture
from meetupq.history import History
from meetupq.summary import QueueSummary
from meetupq.timeline import JobState, WorkerLine
from meetupq.timing import Timing
from meetupq.twins import describe_deliveries, describe_leases
from meetupq.view import BORDER, Controls, View, button, check_sizes, enable, lab_call, put, row

ALIVE: Final = ("waiting", "working", "frozen", "cut off")
_PARTS: Final = ("waiting", "in flight", "retrying", "stuck", "dead", "terminated", "acked")
_ONE_LINE: Final = 70
"""Characters for which a header of usual width has room."""
_CLAIM_MARKS: Final = {"held": "●", "suspect": "?", "expired": "▼", "released": "↩", "finished": "✓"}
_CARD_STYLE: Final = """
.meetupq-card { border-radius: 6px; }
.meetupq-worker { display: flex; gap: 6px; align-items: center; font-size: 14px; }
.meetupq-worker i { flex: none; width: 12px; height: 12px; border-radius: 2px; }
.meetupq-worker b { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.meetupq-worker em { flex: none; padding: 0 5px; font-size: 11px; font-style: normal; border: 1px solid;
  border-radius: 8px; }
.meetupq-worker span { flex: none; margin-left: auto; font-size: 13px; }
.meetupq-killed { color: var(--jp-error-color1, #b42318); font-weight: 600; }
.meetupq-doing { position: relative; font-size: 12px; color: var(--jp-ui-font-color2, #57606a); white-space: nowrap;
  overflow: hidden; text-overflow: ellipsis; }
"""


class Action(NamedTuple):
    """A button of a panel as a whole; its tooltip says what it does and names the method that does the same.

    `off` says why it has no effect here, if so.
    """

    description: str
    name: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    tooltip: str
    off: str = ""


def _action(description: str, what: str, name: str, *args: Any, **options: Any) -> Action:
    return Action(description, name, args, options, f"{what}: {lab_call(name, *args, **options)}")


class Panel(View):
    """What both share: a toolbar, a card per worker, the picture, and what is said below it."""

    actions: ClassVar[tuple[Action, ...]]
    """The toolbar."""
    gaps: ClassVar[tuple[str, ...]] = ()
    """The descriptions of the buttons before which the toolbar has a gap."""

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
        sizes = ("width", width, 320, 4000), ("height", height, 160, 4000), ("pixel_ratio", pixel_ratio, 0.5, 4)
        check_sizes(*sizes)
        self._picture: DeliveryPicture | LeasePicture | None = self._make_picture(
            width=width, height=height, pixel_ratio=pixel_ratio
        )
        self._cards: dict[str, _Card] = {}
        self._image = widgets.Image(
            format="png", width=width, height=height, layout=widgets.Layout(width=f"{width}px", height=f"{height}px")
        )
        self._crew = row([], 8, min_height=f"{_Card.height}px", margin="0 2px 8px")
        self._summary = widgets.HTML()
        super().__init__(history, controls, width=width, fps=fps)

    # --- to be said by each panel ------------------------------------------------------------------

    def _make_picture(self, **size: Any) -> DeliveryPicture | LeasePicture:
        raise NotImplementedError

    def _summarise(self) -> str:
        """What is said between the picture and the text twin."""
        raise NotImplementedError

    # --- what is shown -----------------------------------------------------------------------------

    def _build(self, width: int) -> list[widgets.Widget]:
        return [self._toolbar(), self._crew, self._image, self._summary]

    def _offered(self) -> list[Action]:
        """The actions, as they are with this panel's timing."""
        return [Action(*action) for action in self.actions]

    def _toolbar(self) -> widgets.Box:
        self._buttons: list[tuple[widgets.Button, Action]] = []
        groups: list[list[widgets.Button]] = [[]]
        for action in self._offered():
            made = button(action.description, action.tooltip, 72, danger=action.name.startswith("kill"))
            made.on_click(lambda _, a=action: None if a.off else self._press(a.name, *a.args, **a.options))
            self._buttons.append((made, action))
            groups += [[]] if action.description in self.gaps else []
            groups[-1].append(made)
        return row([row(group, 5) for group in groups], 14, margin="6px 2px 8px", flex="0 0 auto")

    def _show(self, now: float, *, usable: bool) -> None:
        for made, action in self._buttons:
            enable(made, usable and not action.off)
        for worker in self._timeline.workers.values():
            if worker.role != self.role:
                continue
            if worker.name not in self._cards:
                self._cards[worker.name] = _Card(worker, worker_colour(self._timeline, worker.name), self._press)
            self._cards[worker.name].show(usable=usable)
        put(self._crew, tuple(card.box for card in self._cards.values()), "children")
        put(self._summary, self._summarise())
        if self._picture is not None:
            self._picture.update(self._timeline, now)
            put(self._image, self._picture.png())

    def _next_look(self) -> float | None:
        # While something moves the clock alone changes the picture; else only an event does.
        return self._pause if self._timeline.moving else None

    def _let_go(self) -> None:
        self._picture = None  # its bitmaps are megabytes; the last image stays


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
        _action("Publish", "Publish an ordinary job", "publish"),
        _action("Publish 5", "Publish five ordinary jobs", "publish", count=5),
        _action("Slow", "Publish a job that takes longer than the broker's patience", "slow"),
        _action("Poison", "Publish a job that fails at every attempt", "poison"),
        _action("Nak", "Publish a job that its worker hands back at once", "publish", kind="nak", ending="nak"),
        # How much later, and whether at all, depends on the timing: see `_offered`.
        _action("Nak later", "Publish a job that its worker hands back for later", "publish", kind="later"),
        _action(
            "Reject", "Publish a job that its worker gives up, with a copy", "publish", kind="reject", ending="reject"
        ),
        _action(
            "Term", "Publish a job that its worker gives up, without a copy", "publish", kind="term", ending="term"
        ),
        _action("Sweep", "Look for dead jobs now, without any worker's help", "sweep"),
        _action("Hire", "Start one more worker", "hire"),
        _action("Kill all", "Kill all workers of the queue", "kill_all", "queue"),
    )
    gaps = ("Poison", "Sweep")
    style = f"""{_CARD_STYLE}
.meetupq-bar {{ display: flex; flex-wrap: wrap; font-size: 12px; color: #fff; border-radius: 4px; overflow: hidden; }}
.meetupq-bar span {{ padding: 2px 4px; white-space: nowrap; }}
.meetupq-bar span.meetupq-none {{ color: var(--jp-ui-font-color2, #57606a);
  background: var(--jp-layout-color2, #f6f8fa); }}
.meetupq-bar b {{ padding: 2px 4px; color: var(--jp-ui-font-color1, #1f2328); white-space: nowrap; }}
.meetupq-counts {{ width: 100%; margin: 4px 0; table-layout: fixed; border-collapse: collapse; font-size: 12px;
  color: var(--jp-ui-font-color1, #1f2328); }}
.meetupq-counts th, .meetupq-counts td {{ height: 20px; padding: 0 6px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--jp-border-color2, #d0d7de); font-variant-numeric: tabular-nums; }}
.meetupq-counts th {{ font-weight: 400; color: var(--jp-ui-font-color2, #57606a); }}
.meetupq-counts th:first-child {{ text-align: left; width: 18%; }}
.meetupq-counts th:nth-child(5) {{ width: 12%; }}
.meetupq-counts td.meetupq-stuck {{ font-weight: 600; color: #fff; background: #5b3e8c; }}
"""

    def _make_picture(self, **size: Any) -> DeliveryPicture:
        return DeliveryPicture(**size)

    def _offered(self) -> list[Action]:
        timing = self._controls.timing if self._controls else Timing()
        later = {"kind": "later", "ending": "nak", "after": timing.ack_wait}
        off = ""
        if timing.of("high").backoff:
            off = "the backoff and the delay of a nak would add up; a timing without backoff allows it"
        tooltip = f"Publish a job that its worker hands back for later: {lab_call('publish', **later)}"
        nak_later = Action("Nak later", "publish", (), later, f"{tooltip} (off here: {off})" if off else tooltip, off)
        return [nak_later if a.description == nak_later.description else a for a in super()._offered()]

    def _facts(self) -> tuple[str, str]:
        assert self._controls
        timing = self._controls.timing
        told = {"patience": timing} if timing.low is None else {"high": timing, "low": timing.low}
        full = " · ".join(f"{name} {each.patience_in_words}" for name, each in told.items())
        without = re.sub(r" \(backoff.*?\)", "", full)  # what doesn't count is the last to go: it surprises most
        forms = [f"{full} · timing {timing.name}", full, f"{without} · timing {timing.name}"]
        return next((form for form in forms if len(form) <= _ONE_LINE), without), forms[0]

    def _summarise(self) -> str:
        return _bar(self._timeline.counts) + (_broker_says(self._controls.counted()) if self._controls else "")

    def _describe(self, now: float) -> str:
        return describe_deliveries(self._timeline, now=now)


def _bar(counts: dict[JobState, int]) -> str:
    """Where every job is, as the history has it; a state that no job is in takes no more room than it needs."""
    parts = "".join(
        f'<span style="background:{JOB_STATE_COLOURS[state]};flex:{count} 0 auto">'
        f"{JOB_STATE_MARKS[state]} {count} {state}</span>"
        if count
        else f'<span class="meetupq-none" title="0 {state}">{JOB_STATE_MARKS[state]} 0</span>'
        for state, count in counts.items()
    )
    hint = "by the history; every published job is in exactly one of them"
    return f'<div class="meetupq-bar" title="{hint}">{parts}<b>= {sum(counts.values())} published</b></div>'


def _broker_says(counted: QueueSummary | None) -> str:
    """The broker's own counts: a table of two lines, whatever is in it."""
    parts: dict[str, int | str] = dict.fromkeys(_PARTS, "–") if counted is None else {**counted.parts()}
    head = "".join(f"<th>{name}</th>" for name in parts)
    cells = "".join(
        f'<td class="meetupq-stuck">{JOB_STATE_MARKS["stuck"]} {count} stuck</td>'
        if name == "stuck" and counted and counted.stuck
        else f"<td>{count}</td>"
        for name, count in parts.items()
    )
    told, total = ("the broker says", f"= {counted.published}") if counted else ("the broker: not asked yet", "–")
    return (
        f'<table class="meetupq-counts"><tr><th></th>{head}<th>published</th></tr>'
        f"<tr><th>{told}</th>{cells}<td>{total}</td></tr></table>"
    )


class LeasePanel(Panel):
    """The leases, live: workers with buttons, lease ownership, the claims roster, and the text twin.

    The arguments are those of `QueuePanel`.
    """

    title = "Leases"
    role = "leases"
    actions = (
        _action("Add work", "Put up one more item of long work", "add_work"),
        _action("Kill all", "Kill all workers that lobby", "kill_all", "leases"),
    )
    gaps = ("Kill all",)
    style = f"""{_CARD_STYLE}
.meetupq-roster {{ width: 100%; font-size: 13px; border-collapse: collapse; }}
.meetupq-roster th, .meetupq-roster td {{ text-align: left; padding: 2px 8px;
  border-bottom: 1px solid var(--jp-border-color2, #d0d7de); }}
"""

    def _make_picture(self, **size: Any) -> LeasePicture:
        return LeasePicture(**size)

    def _facts(self) -> tuple[str, str]:
        assert self._controls
        timing = self._controls.timing
        facts = f"TTL {timing.lease_ttl:g} s · renewed every {timing.renew:g} s · timing {timing.name}"
        return facts, facts

    def _summarise(self) -> str:
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
    """One worker: its name and colour, what it does in word and mark, its buttons. Four of them fit into a row."""

    width, height = 209, 84

    def __init__(self, worker: WorkerLine, colour: str, press: Callable[..., None]) -> None:
        name = worker.name
        self._worker = worker  # the timeline's own line, which changes with the history
        self._offered = (False, 1)  # what a press of the toggles brings: as they show it, so that twice is as once
        self._colour = colour
        self._text = widgets.HTML()
        self._buttons = {
            "Kill": button("Kill", f"Kill {name} now: {lab_call('kill', name)}", 42, danger=True),
            "Stop": button("Stop", f"Let {name} finish, then stop: {lab_call('stop', name)}", 42),
            "Start": button("Start", f"Start {name} again: {lab_call('relaunch', name)}", 42),
        }
        for description, action in (("Kill", "kill"), ("Stop", "stop"), ("Start", "relaunch")):
            self._buttons[description].on_click(lambda _, a=action: press(a, name))
        self._beats, self._pulls = button("♥", "", 28), button("×1", "", 28)
        self._beats.on_click(lambda _: press("heartbeats", name, self._offered[0]))
        self._pulls.on_click(lambda _: press("prefetch", name, self._offered[1]))
        self._toggles = [self._beats, self._pulls] if worker.role == "queue" else []
        buttons = row([row([*self._buttons.values()], 2), row(self._toggles, 2)], 6)
        self.box = widgets.VBox(
            [self._text, buttons],
            layout=widgets.Layout(
                width=f"{self.width}px",
                height=f"{self.height}px",
                padding="5px 6px",
                justify_content="space-between",
                border=BORDER,
                overflow="hidden",
            ),
        )
        self.box.add_class("meetupq-card")
        self.box.add_class(f"meetupq-worker-{name}")

    def show(self, *, usable: bool) -> None:
        worker = self._worker
        held = f" (attempt {worker.attempt})" if worker.attempt else ""
        verb = "held" if worker.state == "killed" else "holds"
        doing = f"{verb} {escape(worker.holds)}{held}" if worker.holds else "holds nothing"
        low = "<em>low</em>" if worker.priority == "low" else ""
        put(
            self._text,
            f'<div class="meetupq-worker"><i style="background:{self._colour}"></i>'
            f'<b title="{escape(worker.name)}">{escape(worker.name)}</b>{low}'
            f'<span class="meetupq-{worker.state.replace(" ", "-")}">{WORKER_MARKS[worker.state]} {worker.state}</span>'
            f'</div><div class="meetupq-doing" title="{doing}">{doing}{self._settings()}</div>',
        )
        alive = worker.state in ALIVE
        for description, made in self._buttons.items():
            enable(made, usable and alive != (description == "Start"))
        for toggle in self._toggles:
            enable(toggle, usable)

    def _settings(self) -> str:
        """Bring the toggles up to date; returns the same in words, for those who don't see the marks on them."""
        if not self._toggles:
            return ""
        worker = self._worker
        on, other = self._offered = (not worker.heartbeats, 3 if worker.prefetch == 1 else 1)
        state, change = ("off", "on") if on else ("on", "off")
        call = lab_call("heartbeats", worker.name, on)
        put(self._beats, "♡" if on else "♥", "description")
        put(self._beats, f"Heartbeats are {state}; turn them {change}: {call}", "tooltip")
        pulls = f"ulls {worker.prefetch} job{'s' * (worker.prefetch > 1)} at once"
        call = lab_call("prefetch", worker.name, other)
        put(self._pulls, f"×{worker.prefetch}", "description")
        put(self._pulls, f"P{pulls}; let it pull {other}: {call}", "tooltip")
        return f'<span class="meetupq-unseen">; heartbeats are {state}; it p{pulls}</span>'
