"""The table of dead letters, live: who died and why, the whole letter on demand, and buttons to put jobs back.

It shows what the broker has, not what this history knows: letters of an earlier lab on the same store too.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

import ipywidgets as widgets

from meetupq.dead_letters import DeadLetter
from meetupq.history import History
from meetupq.view import BORDER, Controls, View, button, check_sizes, enable, lab_call, put, row

ROWS: Final = 10
"""So many letters are shown at once: each widget costs the browser, and 200 rows of buttons are too many."""
PREVIEW: Final = 40
"""Characters of a payload in the table."""
WHOLE: Final = 4096
"""Bytes of a payload that are shown of one letter."""
PATIENCE: Final = 5.0
"""Seconds after which a letter that should be gone by now can be redriven again: the broker may have been away."""
SETTLE: Final = 0.3
"""Seconds for which a row that has just got another letter redrives nothing: the press meant the one before."""


class LettersPanel(View):
    """The dead letters: a table with a filter, ten a page; Redrive and Inspect for each.

    Args:
        history: tells when to look again.
        controls: where the letters come from, and what the buttons act on; `lab.letters_panel()` gives its own.
        width: in CSS pixels.
        fps: frames a second at the most.
    """

    title = "Dead letters"
    role = "letters"
    style = """
.meetupq-line { display: grid; gap: 8px; align-items: center; height: 31px; font-size: 12px;
  grid-template-columns: 28px 90px 84px minmax(90px, 112px) 66px 72px 42px minmax(0, 1fr);
  color: var(--jp-ui-font-color1, #1f2328); }
.meetupq-line span { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; overflow: hidden;
  line-height: 14px; overflow-wrap: anywhere; }
.meetupq-line span:nth-child(1), .meetupq-line span:nth-child(5), .meetupq-line span:nth-child(7) {
  text-align: right; font-variant-numeric: tabular-nums; }
.meetupq-line span:last-child { font-size: 11px; }
.meetupq-line s { text-decoration: none; color: var(--jp-ui-font-color2, #57606a); }
.meetupq-columns { height: 20px; padding-right: 134px; border-bottom: 1px solid var(--jp-border-color1, #8c959f); }
.meetupq-columns span { color: var(--jp-ui-font-color2, #57606a); }
.meetupq-columns span:last-child { font-size: 12px; }
.meetupq-nothing { font-size: 13px; color: var(--jp-ui-font-color2, #57606a); }
.meetupq-place { font-size: 13px; color: var(--jp-ui-font-color1, #1f2328); white-space: nowrap; }
.meetupq-letter { height: 196px; margin: 8px 0; padding: 6px 8px; overflow: auto; box-sizing: border-box;
  font-size: 13px; color: var(--jp-ui-font-color1, #1f2328);
  border: 1px solid var(--jp-border-color2, #d0d7de); border-radius: 4px; }
.meetupq-letter p { margin: 0; color: var(--jp-ui-font-color2, #57606a); }
.meetupq-letter dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 2px 12px; margin: 4px 0 0; }
.meetupq-letter dt { float: none; width: auto; font-weight: 400; color: var(--jp-ui-font-color2, #57606a); }
.meetupq-letter dd { width: auto; margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font-family: var(--jp-code-font-family, monospace); font-size: 12px; }
"""

    def __init__(
        self, history: History, controls: Controls | None = None, *, width: int = 860, fps: float = 5.0
    ) -> None:
        check_sizes(("width", width, 640, 4000))
        self._first = 0
        self._which: dict[str, str] = {}
        self._inspected: DeadLetter | None = None
        self._under_way: dict[int, float] = {}  # which letters are on their way back, and since when
        super().__init__(history, controls, width=width, fps=fps)

    # --- what is shown -----------------------------------------------------------------------------

    def _build(self, width: int) -> list[widgets.Widget]:
        self._fields = {name: self._field(name) for name in ("kind", "job")}
        self._these, self._all = button("Redrive these", "", 100), button("Redrive all", "", 92)
        self._these.on_click(lambda _: self._redrive_all(**self._typed()))
        self._all.on_click(lambda _: self._redrive_all())
        self._back, self._on = button("Previous", "", 72), button("Next", "", 72)
        self._back.on_click(lambda _: self._turn(-ROWS))
        self._on.on_click(lambda _: self._turn(ROWS))
        self._place = widgets.HTML()
        pager = row([self._place, self._back, self._on], 5, align_items="center", margin="0 0 0 auto")
        choice = row([*self._fields.values(), self._these, self._all], 5, align_items="center")
        self._rows = [_Row(self) for _ in range(ROWS)]
        self._whole = widgets.HTML()
        return [
            row([choice, pager], 16, margin="6px 2px", flex="0 0 auto"),
            widgets.HTML(_HEAD),
            widgets.VBox([each.box for each in self._rows], layout=widgets.Layout(flex="0 0 auto", margin="0 2px")),
            self._whole,
        ]

    def _field(self, name: str) -> widgets.Text:
        field = widgets.Text(
            description=name,
            placeholder="any, or re*",
            tooltip=f"A pattern, in which * stands for anything, as in {lab_call('letters', **{name: 're*'})}",
            style={"description_width": "32px"},
            layout=widgets.Layout(width="150px", height="28px", margin="0"),
        )
        field.observe(lambda _: self._dirty.set(), "value")
        return field

    def _typed(self) -> dict[str, str]:
        """The patterns in the fields, as a method of the lab takes them."""
        return {name: text for name, field in self._fields.items() if (text := field.value.strip())}

    def _letters(self, **which: str) -> list[DeadLetter]:
        letters = self._controls.letters() if self._controls else ()
        return [letter for letter in letters if not which or letter.matches(**which)]

    def _facts(self) -> tuple[str, str]:
        facts = "jobs that were given up, kept whole by the broker, the oldest first"
        return facts, facts

    def _show(self, now: float, *, usable: bool) -> None:
        letters, which = self._letters(), self._typed()
        fitting = self._letters(**which) if which else letters
        self._forget_those_gone(letters)
        if which != self._which:
            self._which, self._first = which, 0
        self._first = min(self._first, max(len(fitting) - 1, 0) // ROWS * ROWS)
        shown = fitting[self._first : self._first + ROWS]
        moment = datetime.now(UTC)
        for place, each in enumerate(self._rows):
            if place < len(shown):
                sent = shown[place].number in self._under_way
                each.show(shown[place], moment, usable=usable, redrivable=usable and not sent)
            else:
                each.clear(_nothing(letters) if place == 0 else "")
        self._show_bar(len(letters), len(fitting), usable=usable)
        there = self._inspected is not None and self._inspected.number in {letter.number for letter in letters}
        put(self._whole, f'<div class="meetupq-letter" tabindex="0">{_whole(self._inspected, there=there)}</div>')

    def _show_bar(self, count: int, fitting: int, *, usable: bool) -> None:
        free = usable and not self._under_way
        for made, what, method, which, able in (
            (self._these, "Put the letters that fit back into the queue", "redrive_all", self._which, free and fitting),
            (self._all, "Put all letters back into the queue", "redrive_all", {}, free and count),
            (self._back, "The ten before these", "letters", self._which, usable and self._first),
            (self._on, "The next ten", "letters", self._which, usable and self._first + ROWS < fitting),
        ):
            put(made, f"{what}: {lab_call(method, **which)}", "tooltip")
            enable(made, bool(able))
        for field in self._fields.values():
            enable(field, usable)
        last = min(self._first + ROWS, fitting)
        all_of = f" ({count} in all)" if self._which else ""
        put(self._place, f'<span class="meetupq-place">{min(self._first + 1, last)}–{last} of {fitting}{all_of}</span>')

    def _describe(self, now: float) -> str:
        letters = self._letters()
        if not letters:
            return "There are no dead letters."
        told = [f"{each.job} ({_times(each.deliveries)}, last {each.last_worker or 'unknown'})" for each in letters[:3]]
        more = f", and {len(letters) - 3} more" if len(letters) > 3 else ""
        return f"{len(letters)} dead letter{'s' * (len(letters) > 1)}: {', '.join(told)}{more}."

    def _next_look(self) -> float | None:
        return 1.0 if self._rows[0].letter else None  # they grow older

    # --- what is pressed, in whatever thread -------------------------------------------------------

    def _turn(self, by: int) -> None:
        self._first = max(self._first + by, 0)
        self._dirty.set()

    def inspect(self, letter: DeadLetter) -> None:
        """Show the whole letter below the table."""
        self._inspected = letter
        self._dirty.set()

    def redrive(self, letter: DeadLetter) -> None:
        """Put it back into the queue; a second press while it is on its way would find no such letter."""
        if letter.number not in self._under_way:
            self._mark([letter])
            self._press("redrive", letter.number)

    def _redrive_all(self, **which: str) -> None:
        letters = self._letters(**which)
        if letters and not self._under_way:
            self._mark(letters)
            self._press("redrive_all", **which)

    def _mark(self, letters: Sequence[DeadLetter]) -> None:
        self._under_way |= dict.fromkeys((letter.number for letter in letters), time.monotonic())
        self._dirty.set()

    def _forget_those_gone(self, letters: Sequence[DeadLetter]) -> None:
        there, late = {letter.number for letter in letters}, time.monotonic() - PATIENCE
        for number, since in list(self._under_way.items()):
            if number not in there or since < late:
                self._under_way.pop(number, None)


class _Row:
    """A row of the table: its place stays, its letter changes."""

    def __init__(self, panel: LettersPanel) -> None:
        self.letter: DeadLetter | None = None
        self._since = 0.0
        self._preview = ""
        self._text = widgets.HTML(layout=widgets.Layout(flex="1 1 0", min_width="0", margin="0"))
        self._redrive = button("Redrive", "Put this letter back into the queue: lab.redrive(number)", 60)
        self._inspect = button("Inspect", "Show this whole letter: lab.letter(job)", 60)
        self._redrive.on_click(lambda _: self._press(panel.redrive, settled=SETTLE))
        self._inspect.on_click(lambda _: self._press(panel.inspect))
        self.box = widgets.HBox(
            [self._text, self._redrive, self._inspect],
            layout=widgets.Layout(
                height="32px", align_items="center", grid_gap="4px", padding="0 2px 0 0", overflow="visible"
            ),
        )

    def _press(self, do: Callable[[DeadLetter], None], settled: float = 0.0) -> None:
        if (letter := self.letter) and time.monotonic() - self._since >= settled:
            do(letter)

    def show(self, letter: DeadLetter, moment: datetime, *, usable: bool, redrivable: bool) -> None:
        if letter != self.letter:
            # What was empty can't have been meant.
            self._since = time.monotonic() if self.letter else 0.0
            self.letter = letter
            self._preview = _cell(_preview(letter.payload))
            call = lab_call("redrive", letter.number)
            put(self._redrive, f"Put {letter.job} back into the queue: {call}", "tooltip")
            put(self._inspect, f"Show the whole letter: {lab_call('letter', letter.job)}", "tooltip")
        where, _, kind = letter.subject.rpartition(".")
        subject = f"<s>{escape(where.removeprefix('jobs.'))}.</s><wbr>{escape(kind)}"
        cells = [str(letter.number), letter.job, letter.reason, str(letter.deliveries), letter.last_worker or "–"]
        number, job, reason, deliveries, worker = map(_cell, cells)
        age = _cell(_age(letter.at, moment))
        subject = f'<span title="{escape(letter.subject)}">{subject}</span>'
        line = f"{number}{job}{subject}{reason}{deliveries}{worker}{age}{self._preview}"
        put(self._text, f'<div class="meetupq-line">{line}</div>')
        self._arm("visible", usable=usable, redrivable=redrivable)

    def clear(self, told: str) -> None:
        self.letter = None
        put(self._text, f'<div class="meetupq-nothing">{escape(told)}</div>')
        self._arm("hidden", usable=False, redrivable=False)

    def _arm(self, visibility: str, *, usable: bool, redrivable: bool) -> None:
        for made, able in ((self._inspect, usable), (self._redrive, redrivable)):
            enable(made, able)
            put(made.layout, visibility, "visibility")  # it keeps its place
        put(self.box.layout, BORDER if self.letter else None, "border_bottom")


# --- words -------------------------------------------------------------------------------------------


def _cell(text: str) -> str:
    return f'<span title="{escape(text)}">{escape(text)}</span>'


def _nothing(letters: Sequence[DeadLetter]) -> str:
    return f"none of the {len(letters)} fits the filter" if letters else "no dead letters"


def _times(deliveries: int) -> str:
    return f"{deliveries} deliver{'y' if deliveries == 1 else 'ies'}"


def _age(at: datetime | None, moment: datetime) -> str:
    """How long ago; the coarser, the longer, so that old letters cause no traffic. Two clocks may differ a little."""
    if at is None:
        return "–"
    seconds = max(int((moment - at.replace(tzinfo=at.tzinfo or UTC)).total_seconds()), 0)
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86_400} days"


def _readable(payload: bytes) -> str | None:
    """The beginning of a payload as text, if it is text; None if it has bytes or signs that can't be shown."""
    start = payload[:WHOLE]
    try:
        # Incrementally: the cut may be in the middle of a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(start, final=len(start) == len(payload))
    except UnicodeDecodeError:
        return None
    return text if all(sign.isprintable() or sign in "\n\r\t" for sign in text) else None


def _preview(payload: bytes) -> str:
    if not payload:
        return "(empty)"
    text = _readable(payload)
    line = f"hex {payload[:PREVIEW].hex(' ')}" if text is None else " ".join(text.split())
    return line if len(line) <= PREVIEW else f"{line[: PREVIEW - 1]}…"


def _whole(letter: DeadLetter | None, *, there: bool) -> str:
    """One letter with all that it has, as HTML."""
    if letter is None:
        return "<p>Inspect shows a whole letter here.</p>"
    text = _readable(letter.payload)
    form = "text" if text is not None else "hex"
    shown = letter.payload[:WHOLE].hex(" ") if text is None else text
    more = f"\n... {len(letter.payload) - WHOLE} more bytes" if len(letter.payload) > WHOLE else ""
    facts = {
        "subject": letter.subject,
        "reason": letter.reason or "–",
        "deliveries": f"{letter.deliveries}, the last one to {letter.last_worker or 'an unknown worker'}",
        "put here": "–" if letter.at is None else f"{letter.at:%Y-%m-%d %H:%M:%S} UTC, by the broker's clock",
        "headers": "\n".join(f"{name}: {value}" for name, value in letter.headers.items()) or "none",
        f"payload ({len(letter.payload)} bytes, {form})": f"{shown}{more}",
    }
    gone = "" if there else " – no longer among the dead letters"
    told = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f"<b>{letter.number} · {escape(letter.job)}</b>{gone}<dl>{told}</dl>"


_COLUMNS: Final = ("no.", "job", "subject", "reason", "deliveries", "last worker", "age", "payload")
_HEAD: Final = f'<div class="meetupq-line meetupq-columns">{"".join(f"<span>{name}</span>" for name in _COLUMNS)}</div>'
