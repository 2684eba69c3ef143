"""The rubric: what a lesson needs, 15 points, each of which can be lost.

python tests/notebooks/rubric.py [--static | --hard] [NAME.ipynb ...]

--static reads the notebooks and runs nothing. --hard also tries what takes long: ten runs, a busy processor, a kill in
every cell. Without names it takes all lessons. The exit code is 1 if a lesson lacks a point that was tried.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import ipywidgets
import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode
from runs import (
    ROOT,
    Look,
    Outcome,
    Pass,
    busy,
    strict_runs,
    walk,
    walk_all,
    walk_and_kill,
    walk_twice,
    without_network,
)

from meetupq import Lab
from meetupq.history import LEASE_KINDS, QUEUE_KINDS, History
from meetupq.tour import Tour
from meetupq.view import View

NOTEBOOKS: Final = ROOT / "notebooks"
NOT_TRIED: Final = "not tried: "
"""How a sentence begins that is no problem of the lesson, but of the machine that should have tried it."""

VERBS: Final = frozenset(
    "say see show tell predict name choose find put kill press read explain compute write mend count redrive avoid "
    "measure compare start stop list spot decide build change trace draw point recover keep open send".split()
)
"""What one can be seen doing; nobody sees anybody understand."""
MOST_OUTCOMES: Final = 3
FIRST_WIN_CELLS: Final = 3
CELL_SECONDS: Final = 10.0
NOTEBOOK_SECONDS: Final = 90.0
MOST_LINES: Final = 15
MOST_FOLDED_LINES: Final = 25
MOST_CELLS_IN_A_ROW: Final = 2
LEAST_LOOPS: Final = 2
LEAST_CHECKS: Final = 3
RUNS: Final = 10
BUSY_LOOPS: Final = 4
WINS: Final = (QUEUE_KINDS | LEASE_KINDS) - {"published", "added", "lobbied"}
"""Events that show that something came of it, not only that somebody asked for something."""
TWIN_OF: Final = {
    "delivery_attempts": "describe_deliveries",
    "lease_ownership": "describe_leases",
    "takeover_cloud": "describe_takeovers",
}
SPELLED: Final = dict(
    zip("two three four five six seven eight nine ten eleven twelve".split(), map(str, range(2, 13)), strict=True)
)
NOTE: Final = re.compile(
    r'\*\*Speaker, (?P<minutes>\d+(?:\.\d+)?) min\.\*\*\s+Say: ["“](?P<say>.+)["”]\s+If it goes wrong: (?P<wrong>\S.*)',
    re.DOTALL,
)
CLOCKS: Final = re.compile(r"\d+\.\d+ ?m?s\b|\d\d:\d\d")

Problems = list[str]


# --- a lesson --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lesson:
    """A notebook as it is stored, and its runs; each run is made once, when the first point asks for it."""

    path: Path
    notebook: NotebookNode

    @classmethod
    def read(cls, path: Path) -> Lesson:
        return cls(path, nbformat.read(path, as_version=4))

    @property
    def cells(self) -> list[NotebookNode]:
        return list(self.notebook.cells)

    @property
    def code(self) -> list[NotebookNode]:
        return [cell for cell in self.cells if cell.cell_type == "code"]

    def tagged(self, *tags: str) -> list[NotebookNode]:
        """The cells that have one of the tags."""
        return [cell for cell in self.cells if any(has(cell, tag) for tag in tags)]

    @property
    def minutes(self) -> float:
        """As the first cell promises; 0 if it does not."""
        found = re.search(r"^\W*Minutes\W+(\d+(?:\.\d+)?)", self.cells[0].source, re.MULTILINE)
        return float(found[1]) if found else 0.0

    @property
    def calls(self) -> set[str]:
        """The names of all functions and methods that its code calls."""
        return {name_of(call.func) for cell in self.code for call in found_in(cell, ast.Call)}

    @property
    def opens_a_lab(self) -> bool:
        return "Lab" in self.calls

    @cached_property
    def ordinary(self) -> Pass:
        """Every cell once, in order."""
        return walk(self.code, look_after=FIRST_WIN_CELLS)

    @cached_property
    def double(self) -> Pass:
        """Every cell twice in succession."""
        return walk_twice(self.code)

    @cached_property
    def unready(self) -> Pass:
        """The checks with nothing before them but the setup."""
        checks = [cell for cell in self.tagged("check") if not has(cell, "setup")]
        return walk_all([*self.tagged("setup"), *checks])


def has(cell: NotebookNode, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def folded(cell: NotebookNode, what: str = "source_hidden") -> bool:
    return bool(cell.metadata.get("jupyter", {}).get(what))


def stored(cell: NotebookNode) -> str:
    """The stored output of a code cell as text."""
    texts = []
    for output in cell.get("outputs", []):
        value = output.get("text") or output.get("data", {}).get("text/plain") or ""
        texts.append("".join(value))
    return "\n".join(texts)


def found_in(cell: NotebookNode, *kinds: type[ast.AST]) -> Iterator[Any]:
    """The nodes of these kinds in a code cell's syntax tree; magics are what IPython makes of them."""
    source = TransformerManager().transform_cell(cell.source)
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))


def name_of(node: ast.AST) -> str:
    """`kill` of `lab.kill` and of `kill`."""
    return getattr(node, "attr", None) or getattr(node, "id", "")


def following(lesson: Lesson, cell: NotebookNode, *ends: str) -> list[NotebookNode]:
    """The cells after this one, up to the next that has one of these tags."""
    rest = []
    for later in lesson.cells[position(lesson, cell) + 1 :]:
        if any(has(later, end) for end in ends):
            break
        rest.append(later)
    return rest


def position(lesson: Lesson, cell: NotebookNode) -> int:
    return next(number for number, other in enumerate(lesson.cells) if other is cell)


# --- 1: the first cell -----------------------------------------------------------------------------


def promises(lesson: Lesson) -> Problems:
    first = lesson.cells[0]
    text = first.source
    problems = []
    if first.cell_type != "markdown" or not has(first, "intro"):
        problems.append(f"{first.id}: the first cell should be markdown with the tag intro")
    if not text.startswith("# "):
        problems.append(f"{first.id}: the first line should be the title, `# ...`")
    _, _, after = text.partition("After this lesson you can")
    outcomes = re.findall(r"^(?:[-*]|\d+\.)\s+\W*(\w+)", after, re.MULTILINE)
    if not 1 <= len(outcomes) <= MOST_OUTCOMES:
        problems.append(
            f"{first.id}: {len(outcomes)} outcomes after 'After this lesson you can', but 1 to 3 are wanted"
        )
    problems += [
        f"{first.id}: the outcome '{verb} ...' should begin with a verb that one can observe, such as 'show'"
        for verb in outcomes
        if verb.lower() not in VERBS
    ]
    if not lesson.minutes:
        problems.append(f"{first.id}: a line 'Minutes: N' is missing")
    if not re.search(r"^\W*Needs\W+\w", text, re.MULTILINE):
        problems.append(f"{first.id}: a line 'Needs: ...' with the prerequisites is missing")
    if "offline" not in text.lower():
        problems.append(f"{first.id}: it should say that the lesson works offline")
    return problems


# --- 2: alone --------------------------------------------------------------------------------------


def stands_alone(lesson: Lesson) -> Problems:
    """Strict nbval in a folder far from the repository, twice, with no network but the loopback."""
    problems: Problems = (
        [] if without_network() else [f"{NOT_TRIED}the network can't be cut off here (Linux's unshare)"]
    )
    for number, why in enumerate(strict_runs(lesson.notebook, lesson.path.name, 2), start=1):
        if why:
            return [*problems, f"strict nbval, run {number} in one folder: {why}"]
    return problems


# --- 3: the first win ------------------------------------------------------------------------------


def first_win(lesson: Lesson) -> Problems:
    opening = lesson.ordinary.outcomes[:FIRST_WIN_CELLS]
    if failed := [outcome for outcome in opening if outcome.error]:
        return [f"{failed[0].cell}: raised {failed[0].error} before there was a first win"]
    problems = []
    if (took := sum(outcome.seconds for outcome in opening)) >= CELL_SECONDS:
        problems.append(f"{opening[-1].cell}: the first {len(opening)} code cells took {took:.1f} s")
    won = WINS & set(lesson.ordinary.looks[0].kinds)
    shown = any(outcome.widgets or outcome.shows_picture for outcome in opening)
    if lesson.opens_a_lab and not won:
        problems.append(
            f"{opening[-1].cell}: after the first {len(opening)} code cells no job was acked, nothing claimed"
        )
    elif not lesson.opens_a_lab and not shown:
        problems.append(f"{opening[-1].cell}: the first {len(opening)} code cells show no picture and no panel")
    return problems


# --- 4: predict, run, explain ----------------------------------------------------------------------


def predictions(lesson: Lesson) -> Problems:
    problems, loops = [], 0
    for predict in lesson.tagged("predict"):
        step = following(lesson, predict, "predict")
        own = _question(predict)
        runs = [number for number, cell in enumerate(step) if has(cell, "run")]
        explained = [number for number, cell in enumerate(step) if has(cell, "explain")]
        if not runs:
            own.append(f"{predict.id}: no cell with the tag run comes after this prediction")
        elif not explained:
            own.append(f"{predict.id}: no cell with the tag explain comes after this prediction")
        elif explained[0] < runs[0]:
            own.append(f"{step[explained[0]].id}: explains before {step[runs[0]].id} has run")
        problems += own
        loops += not own
    if loops < LEAST_LOOPS:
        problems.append(f"{loops} whole loops of predict, run, explain, but a lesson needs {LEAST_LOOPS}")
    problems += [
        f"{cell.id}: the stored verdict should be folded (outputs_hidden), or it spoils the prediction"
        for cell in lesson.tagged("check")
        if not folded(cell, "outputs_hidden")
    ]
    return problems


def _question(predict: NotebookNode) -> Problems:
    problems = []
    if not re.search(r"^\*\*Many believe:\*\* \S", predict.source, re.MULTILINE):
        problems.append(f"{predict.id}: no line begins with '**Many believe:**' and names the misconception")
    options = re.findall(r"^[-*] \*\*(\w)\*\* \S", predict.source, re.MULTILINE)
    if len(set(options)) < 2:
        problems.append(f"{predict.id}: {len(set(options))} options such as '- **a** ...', but 2 or more are wanted")
    return problems


# --- 5: buttons and methods ------------------------------------------------------------------------


@cache
def buttons() -> tuple[tuple[str, str], ...]:
    """Description and tooltip of every button that the package's widgets have once there is one of everything."""

    def kinds(kind: type[View]) -> Iterator[type[View]]:
        for below in kind.__subclasses__():
            yield from kinds(below) if below.__subclasses__() else [below]

    def inside(widget: ipywidgets.Widget) -> Iterator[ipywidgets.Button]:
        if isinstance(widget, ipywidgets.Button):
            yield widget
        for child in getattr(widget, "children", ()):
            yield from inside(child)

    shown: list[View | Tour] = [Tour(History())]
    for kind in kinds(View):
        history = History()
        role = "queue high, heartbeats on, prefetch 1" if kind.role == "queue" else kind.role
        for worker, *befalls in (("ada",), ("bo", "frozen", "cut")):  # some buttons have a word for each state
            history.append("started", worker=worker, detail=f"{role}, process")
            for kind_of_event in befalls:
                history.append(kind_of_event, worker=worker)
        shown.append(kind(history))
        shown[-1].freeze()  # draws once more, so that the worker is there
    found = [(button.description or "", button.tooltip or "") for widget in shown for button in inside(widget)]
    for widget in shown:
        widget.close()
    return tuple(found)


def method_of(tooltip: str) -> str:
    """`kill` of `Kill ada now: lab.kill("ada")`; "" if it names no method that there is."""
    named = re.search(r"\b(lab|tour)\.(\w+)\(", tooltip)
    return named[2] if named and callable(getattr({"lab": Lab, "tour": Tour}[named[1]], named[2], None)) else ""


def buttons_have_methods(lesson: Lesson) -> Problems:
    problems = []
    methods: dict[str, set[str]] = {}
    for description, tooltip in buttons():
        if not description:
            problems.append(f"a button has no description; its tooltip is {tooltip!r}")
        if not method_of(tooltip):
            problems.append(f"the tooltip of the button {description!r} names no method that there is: {tooltip!r}")
        methods.setdefault(re.sub(r"^\W+ | \W+$", "", description), set()).add(method_of(tooltip))
    for cell in lesson.cells:
        for button in _pressed(cell.source) if cell.cell_type == "markdown" else []:
            if button not in methods:
                problems.append(f"{cell.id}: tells one to press {button}, but no panel has such a button")
            elif not methods[button] & lesson.calls:
                names = " or ".join(sorted(methods[button]))
                problems.append(f"{cell.id}: tells one to press {button}, but no code cell calls {names}()")
    return problems


def _pressed(text: str) -> list[str]:
    """The bold words after "press": `press **Kill**`, `press **Kill** or **Stop**`, `**Press Kill**`."""
    chains = re.findall(r"\bpress(?:\s+the)?((?:(?:,|\s|or|and|then|the)*\*\*[^*]+\*\*)+)", text, re.IGNORECASE)
    names = [name for chain in chains for name in re.findall(r"\*\*([^*]+)\*\*", chain)]
    return names + re.findall(r"\*\*press (?:the )?([^*]+)\*\*", text, re.IGNORECASE)


# --- 6: evidence -----------------------------------------------------------------------------------


def evidence(lesson: Lesson) -> Problems:
    checks = lesson.tagged("check")
    good = [cell for cell in checks if cell.execution_count and stored(cell).startswith("HELD: ")]
    problems = []
    if len(good) < LEAST_CHECKS:
        problems.append(f"{len(good)} check cells have a stored count and HELD, but a lesson needs {LEAST_CHECKS}")
    for cell in checks:
        if not cell.execution_count or not stored(cell):
            problems.append(f"{cell.id}: a check without a stored count and output is never compared")
        elif not re.match(r"(HELD|NOT YET|BROKEN): \S", stored(cell)):
            problems.append(f"{cell.id}: what is stored is no verdict; the last line should be `checks. ...`")
    problems += [
        f"{cell.id}: checks.{name} can't say BROKEN, so it proves nothing"
        for cell in lesson.code
        for name in sorted({name_of(call.func) for call in found_in(cell, ast.Call)} & set(_checks_source()))
        if not can_break(name)
    ]
    claims = lesson.tagged("explain", "remember")
    if not lesson.tagged("remember"):
        problems.append("no cell has the tag remember")
    for cell in claims:
        entries = cell.metadata.get("meetupq", {}).get("asserted_by", [])
        wrong = [] if entries else [f"{cell.id}: metadata.meetupq.asserted_by is empty: what asserts what it says?"]
        for entry in entries:
            wrong += [f"{cell.id}: {why}" for why in _why_no_evidence(lesson, entry)]
        problems += wrong or _unproven_numbers(lesson, cell, entries)
    return problems


@cache
def _checks_source() -> dict[str, set[str]]:
    """For each function of meetupq/checks.py the names that it calls."""
    tree = ast.parse((ROOT / "meetupq" / "checks.py").read_text())
    return {
        node.name: {name_of(n.func) for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def can_break(check: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether this function, or one that it calls, can return BROKEN."""
    called = _checks_source().get(check, set()) - seen
    return "broken" in called or any(can_break(name, seen | called) for name in called)


def _why_no_evidence(lesson: Lesson, entry: str) -> Problems:
    kind, _, name = entry.partition(":")
    if kind == "check":
        cell = next((cell for cell in lesson.tagged("check") if cell.id == name), None)
        if cell is None:
            return [f"asserted by {entry}, but no check cell has this id"]
        return [f"asserted by {entry}, which is stored as NOT YET"] if stored(cell).startswith("NOT YET") else []
    return [] if source_of_test(entry) else [f"asserted by {entry}, but there is no such test"]


@cache
def source_of_test(entry: str) -> str:
    """The source of `tests/test_x.py::test_y`; "" if there is none. It is parsed, not imported."""
    file, *names = entry.split("::")
    path = ROOT / file
    if not file.startswith("tests/") or not names or not path.is_file():
        return ""
    source = path.read_text()
    wanted = names[-1].partition("[")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == wanted:
            parts = [ast.get_source_segment(source, part) or "" for part in (*node.decorator_list, node)]
            return "\n".join(parts) if wanted.startswith("test") else ""
    return ""


def _unproven_numbers(lesson: Lesson, cell: NotebookNode, entries: Sequence[str]) -> Problems:
    """Every number that the text claims occurs in what asserts it."""
    proof = []
    for entry in entries:
        kind, _, name = entry.partition(":")
        if kind == "check":
            proof += [f"{check.source}\n{stored(check)}" for check in lesson.tagged("check") if check.id == name]
        else:
            proof.append(source_of_test(entry))
    known = numbers_in("\n".join(proof).replace("_", " "))
    text = cell.source
    for harmless in cell.metadata.get("meetupq", {}).get("not_figures", []):
        text = text.replace(harmless, " ")
    text = re.sub(r"```.*?```|`[^`]*`", " ", text, flags=re.DOTALL)
    text = re.sub(r"^#+.*$|^\s*\d+\. ", " ", text, flags=re.MULTILINE)  # headings, and the numbers of a list
    return [
        f"{cell.id}: says {number}, but what asserts it ({', '.join(entries)}) has no such number"
        for number in sorted(numbers_in(text) - known)
    ]


def numbers_in(text: str) -> set[str]:
    """All numbers, in digits: "three" and "3" are the same, and so are "0.50" and ".5"."""
    digits = {f"{float(found):g}" for found in re.findall(r"(?<![\w.])\d*\.?\d+(?![\w])", text)}
    return digits | {SPELLED[word] for word in re.findall(r"[a-z]+", text.lower()) if word in SPELLED}


# --- 7: not yet ------------------------------------------------------------------------------------


def setup_comes_first(lesson: Lesson) -> Problems:
    setup, code = lesson.tagged("setup"), lesson.code
    if not setup or code[: len(setup)] != setup or len(setup) > 2:
        return [f"{code[0].id}: the first code cell, at most the first two, should have the tag setup, and no other"]
    return []


def not_yet_before(lesson: Lesson) -> Problems:
    setup = len(lesson.tagged("setup"))
    problems = [f"{error}, with nothing run but the setup" for error in lesson.unready.errors]
    problems += [
        f"{outcome.cell}: says {outcome.result[:60] or 'nothing'!r} before its run, not NOT YET"
        for outcome in lesson.unready.outcomes[setup:]
        if not outcome.error and not outcome.result.startswith("NOT YET")
    ]
    return problems


# --- 8: quick --------------------------------------------------------------------------------------


def no_sleeps(lesson: Lesson) -> Problems:
    return [
        f"{cell.id}: sleeps; wait for an event instead (lab.until)"
        for cell in lesson.code
        if any(name_of(call.func) == "sleep" for call in found_in(cell, ast.Call))
    ]


def quick(lesson: Lesson) -> Problems:
    outcomes = lesson.ordinary.outcomes
    problems = list(lesson.ordinary.errors)
    problems += [f"in the background failed {look.failure}" for look in lesson.ordinary.looks if look.failure]
    problems += [
        f"{outcome.cell}: took {outcome.seconds:.1f} s, but a cell has {CELL_SECONDS:g} s"
        for outcome in outcomes
        if outcome.seconds >= CELL_SECONDS
    ]
    if (total := sum(outcome.seconds for outcome in outcomes)) >= NOTEBOOK_SECONDS:
        problems.append(f"the notebook took {total:.0f} s, but it has {NOTEBOOK_SECONDS:g} s")
    return problems


def passes_when_busy(lesson: Lesson) -> Problems:
    if not hasattr(os, "sched_setaffinity"):
        return [f"{NOT_TRIED}processes can't be pinned to one processor here"]
    core = min(os.sched_getaffinity(0))
    with busy(core, BUSY_LOOPS):
        runs = [*strict_runs(lesson.notebook, lesson.path.name, core=core)]
    return [f"on a busy processor: {why}" for why in runs if why]


# --- 9: the same in every run ----------------------------------------------------------------------


def nothing_by_the_clock(lesson: Lesson) -> Problems:
    problems = [
        f"{cell.id}: the stored output has a measured time in it: {found[0]!r}"
        for cell in lesson.code
        if (found := CLOCKS.search(stored(cell)))
    ]
    labs = {
        name_of(target)
        for cell in lesson.code
        for node in found_in(cell, ast.Assign)
        if isinstance(node.value, ast.Call) and name_of(node.value.func) == "Lab"
        for target in node.targets
    }
    for cell in lesson.code:
        problems += [f"{cell.id}: {why}" for why in _endless(cell, labs)]
    return problems


def _endless(cell: NotebookNode, labs: set[str]) -> Iterator[str]:
    """What could wait for ever. `lab.until` has a limit, and so has `lab.history.until`."""
    for loop in found_in(cell, ast.While):
        if isinstance(loop.test, ast.Constant):
            yield "a `while True` has no limit"
    for _ in found_in(cell, ast.AsyncFor):
        yield "an `async for` has no limit"
    for call in found_in(cell, ast.Call):
        name, owner = name_of(call.func), name_of(getattr(call.func, "value", ast.Pass()))
        if name == "until" and owner not in labs | {"history"}:
            yield f"`{owner}.until` is not a lab's: has it a limit?"
        if name == "until" and any(word.arg == "within" and "inf" in ast.unparse(word.value) for word in call.keywords):
            yield "this `until` has no limit"
        if name in ("wait", "join", "input") and not call.args and not call.keywords:
            yield f"`{name}()` has no limit"


def ten_of_ten(lesson: Lesson) -> Problems:
    runs = strict_runs(lesson.notebook, lesson.path.name, RUNS)
    return [f"run {number} of {RUNS}: {why}" for number, why in enumerate(runs, start=1) if why]


# --- 10: short cells -------------------------------------------------------------------------------


def short_cells(lesson: Lesson) -> Problems:
    problems, row = [], 0
    for cell in lesson.cells:
        if cell.cell_type == "code":
            lines, most = len(cell.source.splitlines()), MOST_FOLDED_LINES if folded(cell) else MOST_LINES
            if lines > most:
                problems.append(f"{cell.id}: {lines} lines, but at most {most} are wanted")
        if folded(cell) or has(cell, "check"):
            continue  # what the reader does not see, speaker notes too, neither groups nor separates
        row = row + 1 if cell.cell_type == "code" else 0
        if row == MOST_CELLS_IN_A_ROW + 1:
            problems.append(f"{cell.id}: the third code cell in a row; put some text between")
    return problems


# --- 11: figures -----------------------------------------------------------------------------------


def figures_have_twins(lesson: Lesson) -> Problems:
    return [
        f"{cell.id}: shows {figure}, but no cell prints its text twin, {twin}"
        for figure, twin in TWIN_OF.items()
        if twin not in lesson.calls
        for cell in lesson.code
        if any(name_of(call.func) == figure for call in found_in(cell, ast.Call))
    ]


def shows_with_twin(lesson: Lesson) -> Problems:
    ours = {ident: seen for ident, seen in lesson.ordinary.looks[-1].widgets.items() if seen["ours"]}
    if not ours and not any(outcome.shows_picture for outcome in lesson.ordinary.outcomes):
        return ["no cell shows a panel or a figure of the package"]
    shown_by = {ident: outcome.cell for outcome in lesson.ordinary.outcomes for ident in outcome.widgets}
    return [f"{shown_by[ident]}: its panel has an empty text twin" for ident, seen in ours.items() if not seen["twin"]]


# --- 12: change and exercise -----------------------------------------------------------------------


def own_work(lesson: Lesson) -> Problems:
    problems = [
        f"no code cell has the tag {tag}"
        for tag in ("change", "exercise", "solution")
        if not any(cell.cell_type == "code" for cell in lesson.tagged(tag))
    ]
    for change in lesson.tagged("change"):
        before = [c for c in lesson.cells[: position(lesson, change)] if not has(c, "notes")]
        if before[-1].cell_type != "markdown" and not has(before[-1], "change"):
            problems.append(f"{change.id}: no text of its own comes before this change")
    for exercise in lesson.tagged("exercise"):
        problems += _verdict_of(lesson, exercise, "NOT YET", "solution")
        if not any(has(cell, "solution") for cell in following(lesson, exercise, "exercise")):
            problems.append(f"{exercise.id}: no solution follows this exercise")
    for solution in lesson.tagged("solution"):
        problems += _verdict_of(lesson, solution, "HELD", "exercise")
        if not folded(solution):
            problems.append(f"{solution.id}: the solution should be folded (source_hidden)")
    return problems


def _verdict_of(lesson: Lesson, cell: NotebookNode, wanted: str, end: str) -> Problems:
    """The cell is a check, or the next check before `end` is its own; what is stored there?"""
    candidates = [other for other in [cell, *following(lesson, cell, end)] if has(other, "check")]
    if not candidates:
        return [f"{cell.id}: no check says whether it is done"]
    if not stored(candidates[0]).startswith(wanted):
        return [f"{candidates[0].id}: the stored verdict on {cell.id} should be {wanted}"]
    return []


# --- 13: speaker notes -----------------------------------------------------------------------------


def speaker_notes(lesson: Lesson) -> Problems:
    problems, total = [], 0.0
    notes = lesson.tagged("notes")
    for cell in notes:
        if cell.metadata.get("slideshow", {}).get("slide_type") != "notes" or not folded(cell):
            problems.append(f"{cell.id}: speaker notes need slide_type notes and a folded source")
        if found := NOTE.fullmatch(cell.source.strip()):
            total += float(found["minutes"])
        else:
            problems.append(f'{cell.id}: should read **Speaker, 2 min.** Say: "..." If it goes wrong: ...')
    free = [position(lesson, cell) for cell in notes]
    steps = [position(lesson, cell) for cell in lesson.tagged("predict", "exercise")]
    for before, step, after in zip([-1, *steps], steps, [*steps[1:], len(lesson.cells)], strict=False):
        mine = [note for note in free if before < note < after]
        if mine:
            free.remove(mine[0])  # a note between two steps is of one of them only
        else:
            problems.append(f"{lesson.cells[step].id}: this step has no speaker notes")
    if abs(total - lesson.minutes) > 0.1 * lesson.minutes:
        problems.append(f"the notes add up to {total:g} min, but {lesson.cells[0].id} promises {lesson.minutes:g}")
    return problems


# --- 14: nothing is left ---------------------------------------------------------------------------


def closes(lesson: Lesson) -> Problems:
    last = lesson.code[-1]
    if lesson.opens_a_lab and not (has(last, "close") and "lab.close()" in last.source):
        return [f"{last.id}: the last code cell should have the tag close and call lab.close()"]
    return []


def leaves_nothing(lesson: Lesson) -> Problems:
    if lesson.ordinary.errors:
        return [f"can't be seen: {error}" for error in lesson.ordinary.errors]
    problems = [f"after the last cell there is still {left}" for left in lesson.ordinary.left]
    if not lesson.double.errors:
        problems += [f"after every cell was run twice there is still {left}" for left in lesson.double.left]
    return problems + _left_when_killed(lesson, _cell_to_kill_in(lesson))


def _cell_to_kill_in(lesson: Lesson) -> int:
    """The position of some code cell that is reached within a few seconds; the same one in every run."""
    reached, seconds = 0, 0.0
    for outcome in lesson.ordinary.outcomes[:-1]:
        seconds += outcome.seconds
        reached += seconds < CELL_SECONDS / 2
    return random.Random(lesson.path.name).randrange(max(reached, 1))


def _left_when_killed(lesson: Lesson, number: int) -> Problems:
    """Killed somewhere in this cell, at the same moment in every run."""
    moment = random.Random(f"{lesson.path.name} {number}").uniform(0.1, 0.9)
    left = walk_and_kill(lesson.code[: number + 1], moment * lesson.ordinary.outcomes[number].seconds)
    return [f"{lesson.code[number].id}: after the kernel was killed here there is still {line}" for line in left]


def leaves_nothing_anywhere(lesson: Lesson) -> Problems:
    reached = range(len(lesson.ordinary.outcomes))
    return [problem for number in reached for problem in _left_when_killed(lesson, number)]


# --- 15: twice -------------------------------------------------------------------------------------


def runs_twice(lesson: Lesson) -> Problems:
    run = lesson.double
    problems = [f"{error} (when every cell is run twice)" for error in run.errors]
    problems += [f"in the background failed {look.failure}" for look in run.looks if look.failure]
    verdicts = {cell.id: stored(cell) for cell in lesson.tagged("check")}
    for number in range(1, len(run.outcomes), 2):
        second = run.outcomes[number]
        if second.error:
            continue
        problems += _new_panels(run.outcomes[number - 1], second, run.looks[number + 1])
        problems += _new_crew(second.cell, *run.looks[number - 1 : number + 2])
        if verdicts.get(second.cell, "").startswith("HELD") and not second.result.startswith("HELD"):
            problems.append(f"{second.cell}: says {second.result[:60]!r} when run twice, but HELD is stored")
    return problems


def _new_panels(first: Outcome, second: Outcome, look: Look) -> Problems:
    """The second run shows the same panels, or others in the place of those that are over."""
    before = [ident for ident in first.widgets if ident not in second.widgets]
    alive = [ident for ident in before if ident in look.widgets and not look.widgets[ident]["ended"]]
    return [f"{second.cell}: run twice it shows a second panel while the first is alive"] if alive else []


def _new_crew(cell: str, before: Look, between: Look, after: Look) -> Problems:
    """The second run hires nobody that the first did not, and kills nobody if the first did not change the crew."""

    def crew(look: Look) -> dict[str, set[str]]:
        return {
            lab: {n for n, state in w.items() if state not in ("killed", "stopped")} for lab, w in look.crews.items()
        }

    problems = []
    for lab, workers in crew(after).items():
        at_first = crew(between).get(lab, set())
        hired = sorted(workers - at_first)
        if hired and len(workers) > len(at_first):  # else somebody else was killed in the place of these
            problems.append(f"{cell}: its second run puts {', '.join(hired)} to work")
        killed = sorted(n for n in at_first - workers if after.crews[lab].get(n) == "killed")
        if killed and crew(before).get(lab) == at_first:
            problems.append(f"{cell}: its second run kills {', '.join(killed)}")
    return problems


# --- the points ------------------------------------------------------------------------------------

Function = Callable[[Lesson], Problems]


@dataclass(frozen=True)
class Point:
    """One point: what a lesson needs for it, and what looks for problems: by reading, by running, by running long."""

    number: int
    title: str
    static: Function | None = None
    dynamic: Function | None = None
    hard: Function | None = None


POINTS: Final = [
    Point(1, "The first cell has 1 to 3 observable outcomes, prerequisites, minutes, works offline", promises),
    Point(2, "Stands alone: any folder, twice, without network, strict nbval", dynamic=stands_alone),
    Point(3, "First win within 3 code cells and 10 s", dynamic=first_win),
    Point(4, "Two loops or more of predict, run, explain, with misconception and options, not spoiled", predictions),
    Point(5, "Every button that is to be pressed has a method that a cell calls", buttons_have_methods),
    Point(6, "Every claim is asserted by a check or a test that can fail, every number is in it", evidence),
    Point(7, "Checks say NOT YET before their run", setup_comes_first, not_yet_before),
    Point(8, "Quick: a cell 10 s, the notebook 90 s, no sleeps", no_sleeps, quick, passes_when_busy),
    Point(9, "The same in every run: no measured times, no endless waits", nothing_by_the_clock, hard=ten_of_ten),
    Point(10, "Short cells, text between them", short_cells),
    Point(11, "A picture, and its text twin", figures_have_twins, shows_with_twin),
    Point(12, "One number to change, one exercise with folded solution", own_work),
    Point(13, "Speaker notes for every step, in form and in time", speaker_notes),
    Point(14, "Leaves nothing, killed or not", closes, leaves_nothing, leaves_nothing_anywhere),
    Point(15, "Any cell can be run twice", dynamic=runs_twice),
]


def lessons(names: Sequence[str] = ()) -> list[Lesson]:
    """The notebooks of these names (or paths), or all."""
    paths = [NOTEBOOKS / name if (NOTEBOOKS / name).exists() else Path(name) for name in names]
    return [Lesson.read(path) for path in paths or sorted(NOTEBOOKS.glob("*.ipynb"))]


def judge(lesson: Lesson, point: Point, mode: str = "dynamic") -> tuple[str, Problems]:
    """A mark and the reasons: ✓, ✗, · (what can be read is well, the rest was not tried) or – (not tried)."""
    kinds = ["static", "dynamic", "hard"][: ["static", "dynamic", "hard"].index(mode) + 1]
    problems = []
    for kind in kinds:
        if function := getattr(point, kind):
            try:
                problems += function(lesson)
            except Exception as error:  # a notebook that is no lesson at all must not hide the other points
                problems.append(f"can't be judged: {type(error).__name__}: {error}")
    problems = [*dict.fromkeys(problems)]
    if any(not problem.startswith(NOT_TRIED) for problem in problems):
        return "✗", problems
    if (mode == "static" and point.dynamic) or problems:
        return ("·" if point.static else "–"), problems
    return "✓", problems


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--static", dest="mode", action="store_const", const="static", help="only read the notebooks")
    how.add_argument("--hard", dest="mode", action="store_const", const="hard", help="try also what takes long")
    parser.add_argument("names", nargs="*", metavar="NAME.ipynb")
    chosen = parser.parse_args(arguments)
    mode = chosen.mode or "dynamic"
    found = lessons(chosen.names)
    width = max([len(lesson.path.name) for lesson in found], default=0)
    print(" " * width, *(f"{point.number:>2}" for point in POINTS))
    reasons: list[str] = []
    full = bool(found)
    for lesson in found:
        marks = []
        print(f"{lesson.path.name:{width}}", end="", flush=True)
        for point in POINTS:
            mark, problems = judge(lesson, point, mode)
            marks.append(mark)
            reasons += [f"\n{lesson.path.name}, {point.number}: {point.title}"] if problems else []
            reasons += [f"  {problem}" for problem in problems]
            print(f"  {mark}", end="", flush=True)
        print(f"  {marks.count('✓')} of {len(POINTS)}")
        full = full and not set(marks) - ({"✓", "·", "–"} if mode == "static" else {"✓"})
    print("✓ has it  ✗ lacks it  · what can be read is well, the rest was not tried  – not tried")
    print(*reasons, sep="\n")
    return 0 if full else 1


if __name__ == "__main__":
    sys.exit(main())
