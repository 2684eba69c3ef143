"""The panels with a picture: live views of a history, with buttons. `QueuePanel(history)` works in any notebook."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from typing import Any, ClassVar, Final, NamedTuple

import ipywidgets as widgets

from meetupq.figures import DeliveryPicture, LeasePicture
from meetupq.history import History
from meetupq.palette import JOB_STATE_COLOURS, JOB_STATE_MARKS, WORKER_MARKS, worker_colour
from meetupq.roster import Claim
from meetupq.summary import QueueSummary
from meetupq.timeline import JobState, WorkerLine
from meetupq.timing import Timing
from meetupq.twins import describe_deliveries, describe_leases
from meetupq.view import BORDER, Controls, View, button, check_sizes, enable, lab_call, put, row

ALIVE: Final = ("waiting", "working", "frozen", "cut off")
_PARTS: Final = ("waiting", "in flight", "retrying", "stuck", "dead", "terminated", "acked")
_ONE_LINE: Final = 70
"""Characters for which a header of usual width has room."""
CLAIM_MARKS: Final = {
    "free": "○", "held": "●", "suspect": "?", "expired": "▼", "released": "↩", "finished": "✓", "cancelled": "⊖",
}  # fmt: skip
_COLUMNS: Final = {
    "work": 12, "state": 10, "owner": 9, "token": 5, "nonce": 7, "since": 7, "renewals": 8, "revision": 7,
    "expires in": 11, "evidence": 11, "before": 7, "done": 6,
}  # fmt: skip
"""The columns of the roster, and the share of the width of each."""
_LINE, _LEAST_LINES, _MOST_LINES = 23, 4, 8
"""The height of a line of the roster in pixels, and for how many lines there is room before it scrolls."""
_CARD_STYLE: Final = """
.meetupq-card { border-radius: 6px; }
.meetupq-worker { display: flex; gap: 6px; align-items: center; font-size: 14px; }
.meetupq-worker i { flex: none; width: 12px; height: 12px; border-radius: 2px; }
.meetupq-worker b { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.meetupq-worker em, .meetupq-kind em { flex: none; padding: 0 5px; font-size: 11px; font-style: normal;
  border: 1px solid; border-radius: 8px; }
.meetupq-kind { font-size: 11px; color: var(--jp-ui-font-color2, #57606a); white-space: nowrap; }
.meetupq-kind em { color: var(--jp-ui-font-color1, #1f2328); font-weight: 600; }
.meetupq-worker span { flex: none; margin-left: auto; font-size: 13px; }
.meetupq-worker .meetupq-frozen, .meetupq-worker .meetupq-cut-off { font-weight: 600; }
.meetupq-worker .meetupq-frozen { color: var(--jp-info-color0, #0b5f9e); }
.meetupq-worker .meetupq-cut-off { color: var(--jp-warn-color0, #7d4e57); }
.meetupq-doing b { color: var(--jp-error-color1, #b42318); }
.meetupq-killed { color: var(--jp-error-color1, #b42318); font-weight: 600; }
.meetupq-doing { position: relative; font-size: 13px; color: var(--jp-ui-font-color2, #57606a); white-space: nowrap;
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
        _action("Cancel", "Cancel the newest work that is not finished", "cancel_work"),
        _action("Hire", "Start one more worker that lobbies", "hire", "leases"),
        _action("Kill all", "Kill all workers that lobby", "kill_all", "leases"),
    )
    gaps = ("Hire",)
    style = f"""{_CARD_STYLE}
.meetupq-roster {{ width: 100%; table-layout: fixed; font-size: 12px; border-collapse: separate; border-spacing: 0;
  color: var(--jp-ui-font-color1, #1f2328); font-variant-numeric: tabular-nums; }}
.meetupq-roster th, .meetupq-roster td {{ height: {_LINE}px; padding: 0 4px; text-align: left; white-space: nowrap;
  overflow: hidden; text-overflow: ellipsis; border-bottom: 1px solid var(--jp-border-color2, #d0d7de);
  box-sizing: border-box; }}
.meetupq-roster th {{ position: sticky; top: 0; font-weight: 400; color: var(--jp-ui-font-color2, #57606a);
  background: var(--jp-layout-color0, #fff); }}
.meetupq-roster td:first-child, .meetupq-roster .meetupq-claimed {{ font-weight: 600; }}
.meetupq-roster .meetupq-none td {{ color: var(--jp-ui-font-color2, #57606a); font-weight: 400; }}
.meetupq-roster i {{ display: inline-block; width: 10px; height: 10px; margin-right: 4px; border-radius: 2px; }}
.meetupq-roster u {{ display: inline-block; width: 28px; height: 6px; margin-right: 4px; border-radius: 3px;
  overflow: hidden; background: var(--jp-border-color2, #d0d7de); }}
.meetupq-roster u b {{ display: block; height: 100%; background: #0072b2; }}
.meetupq-roster .meetupq-suspect {{ font-weight: 600; color: var(--jp-error-color1, #b42318); }}
.meetupq-roster .meetupq-suspect u b {{ background: #b42318; }}
"""

    def _make_picture(self, **size: Any) -> LeasePicture:
        return LeasePicture(**size)

    def _facts(self) -> tuple[str, str]:
        assert self._controls
        timing = self._controls.timing
        facts = f"TTL {timing.lease_ttl:g} s · renewed every {timing.renew:g} s · timing {timing.name}"
        return facts, facts

    def _build(self, width: int) -> list[widgets.Widget]:
        # The box scrolls, not what is in it: that is made anew again and again, and would jump back to its top.
        self._table = widgets.Box([self._summary], layout=widgets.Layout(overflow="auto", flex="0 0 auto"))
        self._table.add_class("meetupq-claims")
        self._summary.layout.width = "100%"
        return [self._toolbar(), self._crew, self._image, self._table]

    def _summarise(self) -> str:
        items = self._timeline.items
        claims: list[Claim | str] = [*self._controls.claims()] if self._controls else []
        known = {claim.item for claim in claims if isinstance(claim, Claim)}
        claims += [name for name in items if name not in known]
        lines = min(max(len(claims), _LEAST_LINES), _MOST_LINES)
        put(self._table.layout, f"{(lines + 1) * _LINE + 4}px", "height")
        head = "".join(f'<th style="width:{share}%">{name}</th>' for name, share in _COLUMNS.items())
        rows = [self._claim_row(claim) for claim in claims]
        return f'<table class="meetupq-roster"><tr>{head}</tr>{"".join(rows)}</table>'

    def _claim_row(self, claim: Claim | str) -> str:
        """A line of the roster; of work that nobody has claimed only the name is known."""
        name = claim if isinstance(claim, str) else claim.item
        item = self._timeline.items.get(name)
        state: str = "free" if isinstance(claim, str) else claim.state
        if item and item.state in ("done", "cancelled"):
            state = "finished" if item.state == "done" else "cancelled"
        cells = dict.fromkeys(_COLUMNS, "–")
        hint = ""
        if not isinstance(claim, str) and claim.owner:
            held = claim.state in ("held", "suspect")
            colour = worker_colour(self._timeline, claim.owner)
            nonce = getattr(claim, "nonce", "")[:6]
            cells |= {
                "owner": f'<i style="background:{colour}"></i>{escape(claim.owner)}',
                "token": f"r{claim.token}",
                "nonce": f"<code>{escape(nonce)}</code>" if nonce else "–",
                "since": f"{claim.since:.1f} s",
                "renewals": str(claim.renewals),
                "revision": str(claim.revision),
                "expires in": self._countdown(claim.expires_in) if held else "–",
                "evidence": f"{escape(claim.evidence)} {_age(claim.evidence_age)}",
                "before": escape(", ".join(claim.past_owners[-3:])) or "–",
            }
            hint = f' title="before: {escape(", ".join(claim.past_owners))}"' if claim.past_owners else ""
        cells["work"] = escape(name)
        cells["state"] = f"{CLAIM_MARKS[state]} {state}"
        cells["done"] = f"{item.progress.percent} %" if item and item.progress else "–"
        kind = "suspect" if state == "suspect" else "claimed" if state == "held" else "none"
        marked = "".join(
            f'<td class="meetupq-{kind}">{text}</td>' if column in ("state", "expires in") else f"<td>{text}</td>"
            for column, text in cells.items()
        )
        return f'<tr class="meetupq-{kind if kind == "none" else "owned"}"{hint}>{marked}</tr>'

    def _countdown(self, seconds: float) -> str:
        assert self._controls
        share = min(max(seconds / self._controls.timing.lease_ttl, 0.0), 1.0)
        return f'<u><b style="width:{100 * share:.0f}%"></b></u>{seconds:.1f} s'

    def _describe(self, now: float) -> str:
        return describe_leases(self._timeline, now=now)


def _age(seconds: float) -> str:
    """How long ago, in a few letters."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


class _Card:
    """One worker: its name and colour, what it does in word and mark, its buttons. Four of them fit into a row."""

    width, height = 209, 114

    def __init__(self, worker: WorkerLine, colour: str, press: Callable[..., None]) -> None:
        self._worker = worker  # the timeline's own line, which changes with the history
        self._colour = colour
        self._text, self._kind = widgets.HTML(), widgets.HTML()
        # What a press brings is what the button shows, so that twice is as once.
        self._calls: dict[str, tuple[Any, ...]] = {}
        sizes = {"kill": 42, "stop": 42, "start": 42, "freeze": 58, "cut": 62, "beats": 28, "pulls": 28}
        self._buttons = {key: button("", "", size, danger=key == "kill") for key, size in sizes.items()}
        for key, made in self._buttons.items():
            made.on_click(lambda _, key=key: press(*self._calls[key]))
        for action in self._actions():
            self._offer(*action, usable=False)
        toggles = [self._buttons[key] for key in ("beats", "pulls") if worker.role == "queue"]
        ends = row([self._buttons[key] for key in ("kill", "stop", "start")], 2)
        absences = row([self._buttons[key] for key in ("freeze", "cut")], 2)
        self.box = widgets.VBox(
            [self._text, row([ends, row(toggles, 2)], 6), row([absences, self._kind], 6, align_items="center")],
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
        self.box.add_class(f"meetupq-worker-{worker.name}")

    def _actions(self) -> list[tuple[str, str, str, tuple[Any, ...], str]]:
        """For each button: its key, its description, what it does, the call, and why it has no effect now, if so."""
        worker, name = self._worker, self._worker.name
        alive = worker.state in ALIVE
        dead = "" if alive else f"{name} is {worker.state}: {lab_call('relaunch', name)} starts it again"
        found: list[tuple[str, str, str, tuple[Any, ...], str]] = [
            ("kill", "Kill", f"Kill {name} now", ("kill", name), dead),
            ("stop", "Stop", f"Let {name} finish, then stop", ("stop", name), dead),
            ("start", "Start", f"Start {name} again", ("relaunch", name), f"{name} is at work" if alive else ""),
        ]
        task = f"{name} is a task and shares the lab's process: {lab_call('launch', name, process=True)} can be frozen"
        if worker.absence("frozen"):
            found.append(("freeze", "Thaw", f"Let {name} go on", ("thaw", name), dead))
        else:
            why = dead or ("" if worker.process else task)
            found.append(("freeze", "Freeze", f"Let the process of {name} stand still", ("freeze", name), why))
        if worker.absence("cut"):
            found.append(("cut", "Restore", f"Give {name} its network back", ("restore", name), dead))
        else:
            found.append(("cut", "Cut", f"Cut {name} off from the network", ("cut", name), dead))
        if worker.role == "queue":
            beats, pulls = not worker.heartbeats, 3 if worker.prefetch == 1 else 1
            what = "Heartbeats are off; turn them on" if beats else "Heartbeats are on; turn them off"
            found.append(("beats", "♡" if beats else "♥", what, ("heartbeats", name, beats), ""))
            what = f"P{self._pulls()}; let it pull {pulls}"
            found.append(("pulls", f"×{worker.prefetch}", what, ("prefetch", name, pulls), ""))
        return found

    def _offer(self, key: str, description: str, what: str, call: tuple[Any, ...], why: str, *, usable: bool) -> None:
        made, (method, *args) = self._buttons[key], call
        self._calls[key] = call
        put(made, description, "description")
        put(made, f"{what}: {lab_call(method, *args)}{f' (off now: {why})' if why else ''}", "tooltip")
        enable(made, usable and not why)

    def show(self, *, usable: bool) -> None:
        worker = self._worker
        doing, spoken = self._doing(), ""
        if worker.role == "queue":
            state = "on" if worker.heartbeats else "off"
            spoken = f'<span class="meetupq-unseen">; heartbeats are {state}; it p{self._pulls()}</span>'
        low = "<em>low</em>" if worker.priority == "low" else ""
        put(
            self._text,
            f'<div class="meetupq-worker"><i style="background:{self._colour}"></i>'
            f'<b title="{escape(worker.name)}: {escape(worker.hired)}">{escape(worker.name)}</b>{low}'
            f'<span class="meetupq-{worker.state.replace(" ", "-")}">{WORKER_MARKS[worker.state]} {worker.state}</span>'
            f'</div><div class="meetupq-doing" title="{re.sub("<.*?>", "", doing)}">{doing}{spoken}</div>',
        )
        put(self._kind, f'<div class="meetupq-kind">{"<em>process</em>" if worker.process else "task"}</div>')
        for action in self._actions():
            self._offer(*action, usable=usable)

    def _doing(self) -> str:
        """What it has, or believes to have."""
        worker = self._worker
        over = [escape(item) for item, own in worker.leases.items() if own.is_zombie]
        held = [escape(item) for item, own in worker.leases.items() if not own.is_zombie]
        if not worker.leases and worker.holds:
            held = [escape(worker.holds) + (f" (attempt {worker.attempt})" if worker.attempt else "")]
        parts = [f"{'held' if worker.state == 'killed' else 'holds'} {', '.join(held)}"] if held else []
        parts += [f"<b>still believes in {', '.join(over)}</b>"] if over else []
        return "; ".join(parts) or ("stands by: nothing to claim" if worker.stands_by else "holds nothing")

    def _pulls(self) -> str:
        return f"ulls {self._worker.prefetch} job{'s' * (self._worker.prefetch > 1)} at once"
