"""The rubric on the lessons; and on a model lesson that has every point, spoiled in one place after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import model_lesson
import pytest
import rubric
import runs
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from rubric import POINTS, Lesson, Point, judge

LESSONS = sorted(rubric.NOTEBOOKS.glob("*.ipynb"))
NAMES = [lesson.name for lesson in LESSONS]
STATIC = [point for point in POINTS if point.static]
DYNAMIC = [point for point in POINTS if point.dynamic]
Spoil = Callable[[NotebookNode], None]


@pytest.fixture(scope="module", params=LESSONS, ids=NAMES)
def lesson(request: pytest.FixtureRequest) -> Lesson:
    """One for all points, so that they share its runs."""
    return Lesson.read(request.param)


def test_there_are_lessons() -> None:
    assert LESSONS


def test_there_are_15_points_and_each_can_be_tried() -> None:
    assert [point.number for point in POINTS] == [*range(1, 16)]
    assert all(point.static or point.dynamic for point in POINTS)


@pytest.mark.parametrize("point", STATIC, ids=lambda point: f"point-{point.number}")
def test_what_can_be_read(lesson: Lesson, point: Point) -> None:
    mark, problems = judge(lesson, point, "static")
    assert mark != "✗", "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [point for point in DYNAMIC if point.number != 2],  # strict nbval twice is in test_lessons.py
    ids=lambda point: f"point-{point.number}",
)
def test_what_shows_when_it_runs(lesson: Lesson, point: Point) -> None:
    mark, problems = judge(lesson, point)
    assert mark == "✓", "\n".join(problems)


# --- no point that can't be lost -------------------------------------------------------------------


def cell(notebook: NotebookNode, ident: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.id == ident)


def words(ident: str, old: str, new: str) -> Spoil:
    """Something else in a cell's source."""

    def spoil(notebook: NotebookNode) -> None:
        target = cell(notebook, ident)
        assert old in target.source
        target.source = target.source.replace(old, new)

    return spoil


def output(ident: str, verdict: str) -> Spoil:
    """Another stored output."""

    def spoil(notebook: NotebookNode) -> None:
        cell(notebook, ident).outputs[0]["data"]["text/plain"] = verdict

    return spoil


def more(after: str, *new: NotebookNode) -> Spoil:
    """Further cells."""

    def spoil(notebook: NotebookNode) -> None:
        place = notebook.cells.index(cell(notebook, after)) + 1
        notebook.cells[place:place] = new

    return spoil


def code(ident: str, source: str, *tags: str) -> NotebookNode:
    return new_code_cell(source, id=ident, metadata={"tags": [*tags]})


def metadata(ident: str, **changes: object) -> Spoil:
    return lambda notebook: cell(notebook, ident).metadata.update(changes)


def without(ident: str) -> Spoil:
    return lambda notebook: notebook.cells.remove(cell(notebook, ident))


def asserted(*entries: str) -> Spoil:
    return metadata("explain-1", meetupq={"asserted_by": [*entries]})


def no_count(notebook: NotebookNode) -> None:
    cell(notebook, "check-1").execution_count = None


def all_of(*spoils: Spoil) -> Spoil:
    def spoil(notebook: NotebookNode) -> None:
        for one in spoils:
            one(notebook)

    return spoil


def only(*idents: str) -> Spoil:
    """A shorter lesson, for what has to run."""

    def spoil(notebook: NotebookNode) -> None:
        notebook.cells = [cell for cell in notebook.cells if cell.id in ("intro", "setup", *idents)]

    return spoil


def minutes(total: float) -> Spoil:
    return words("intro", "Minutes: 4", f"Minutes: {total:g}")


def no_promise(notebook: NotebookNode) -> None:
    """No minutes, and notes that take none."""
    words("intro", "Minutes: 4", "")(notebook)
    for ident, time in (("notes-1", "1"), ("notes-2", "1.5"), ("notes-3", "1.5")):
        words(ident, f"{time} min", "0 min")(notebook)


def check_before_change(notebook: NotebookNode) -> None:
    """Instead of a text."""
    check = cell(notebook, "check-2")
    notebook.cells.remove(check)
    notebook.cells[notebook.cells.index(cell(notebook, "change-text"))] = check


def other_solution(notebook: NotebookNode) -> None:
    """One that comes before the exercise."""
    metadata("solution", tags=[])(notebook)
    metadata("change", tags=["change", "solution"])(notebook)


def explained_first(notebook: NotebookNode) -> None:
    explanation = cell(notebook, "explain-1")
    notebook.cells.remove(explanation)
    notebook.cells.insert(notebook.cells.index(cell(notebook, "run-1")), explanation)


def only_two_held(notebook: NotebookNode) -> None:
    for ident in ("check-1", "check-2"):
        output(ident, "BROKEN: 2 jobs went out more than once")(notebook)


LINES_14 = "\n".join(f"x{n} = {n}" for n in range(14))
LINES_24 = "\n".join(f"x{n} = {n}" for n in range(24))
BROKEN = "BROKEN: calc-1 went out more than once"
READ: list[tuple[int, str, str, Spoil]] = [
    (1, "no tag", "tag intro", metadata("intro", tags=[])),
    (1, "no title", "title", words("intro", "# 00", "00")),
    (1, "no outcomes", "0 outcomes", words("intro", "After this lesson you can", "You can")),
    (
        1,
        "four outcomes",
        "4 outcomes",
        words("intro", "2. **predict**", "2. **see** it,\n3. **say** it,\n4. **predict**"),
    ),
    (1, "not observable", "'understand ...'", words("intro", "**show**", "**understand**")),
    (1, "no minutes", "'Minutes: N'", no_promise),
    (1, "no prerequisites", "'Needs: ...'", words("intro", "Needs: a", "A")),
    (1, "not offline", "offline", words("intro", "offline", "well")),
    (4, "no misconception", "Many believe", words("predict-1", "**Many believe:**", "Some say:")),
    (4, "one option", "1 options", words("predict-2", "- **b** after", "- after")),
    (4, "no run", "tag run", metadata("run-1", tags=[])),
    (4, "no explanation", "tag explain", metadata("explain-2", tags=[])),
    (4, "explained first", "explain-1: explains before run-1", explained_first),
    (4, "one loop", "1 whole loops", metadata("predict-2", tags=[])),
    (4, "not folded", "check-2: the stored verdict should be folded", metadata("check-2", jupyter={})),
    (5, "no method called", "press Kill, but no code cell calls kill()", words("run-2", "lab.kill(holder)", "pass")),
    (5, "no such button", "no panel has such a button", words("predict-2", "**Kill**", "**Slay**")),
    (5, "a second button", "calls stop()", words("predict-2", "**Kill**", "**Kill** or **Stop**")),
    (5, "all of it bold", "calls stop()", words("predict-2", "Press **Kill**", "**Press Stop**")),
    (6, "no count", "check-1: a check without a stored count", no_count),
    (6, "too few checks", "2 check cells", only_two_held),
    (6, "no verdict", "check-1: what is stored is no verdict", output("check-1", "2 jobs")),
    (6, "no evidence", "explain-1: metadata.meetupq.asserted_by is empty", metadata("explain-1", meetupq={})),
    (6, "nothing remembered", "remember: metadata.meetupq.asserted_by is empty", metadata("remember", meetupq={})),
    (6, "no such check", "no check cell has this id", asserted("check:check-9")),
    (6, "not a check", "no check cell has this id", asserted("check:run-1")),
    (6, "not yet", "stored as NOT YET", asserted("check:check-1", "check:check-3")),
    (6, "no such test", "there is no such test", asserted("check:check-1", "tests/test_checks.py::test_nothing")),
    (6, "no test", "there is no such test", asserted("check:check-1", "tests/conftest.py::broker")),
    (6, "no such file", "there is no such test", asserted("check:check-1", "tests/test_nothing.py::test_nothing")),
    (6, "another number", "explain-1: says 3, but", words("explain-1", "two jobs", "three jobs")),
    (6, "another digit", "explain-1: says 5, but", words("explain-1", "2 deliveries", "5 deliveries")),
    (6, "a figure", "explain-2: says 7, but", metadata("explain-2", meetupq={"asserted_by": ["check:check-2"]})),
    (6, "cannot fail", "checks.held can't say BROKEN", words("run-1", "for job", "checks.held('so')\nfor job")),
    (6, "nothing to remember", "tag remember", metadata("remember", tags=[])),
    (7, "no setup", "tag setup", metadata("setup", tags=[])),
    (7, "a late setup", "tag setup", metadata("run-2", tags=["setup", "run"])),
    (8, "sleeps", "run-1: sleeps", words("run-1", "for job", "import time; time.sleep(0)\nfor job")),
    (
        8,
        "sleeps awaiting",
        "run-1: sleeps",
        words("run-1", "for job", "from asyncio import sleep; await sleep(0)\nfor job"),
    ),
    (9, "a measured time", "'0.61 s'", output("check-0", "HELD: done after 0.61 s")),
    (9, "a clock", "'12:30'", output("check-0", "HELD: done at 12:30")),
    (9, "an endless loop", "while True", words("run-1", "for job", "while True:\n    break\nfor job")),
    (9, "an endless iteration", "async for", words("run-1", "for job", "async for _ in some():\n    break\nfor job")),
    (
        9,
        "somebody's until",
        "`other.until`",
        words("run-1", "for job", "other = object()\nawait other.until()\nfor job"),
    ),
    (9, "without limit", "no limit", words("run-1", "job=job", "job=job, within=float('inf')")),
    (9, "an endless wait", "`wait()`", words("run-1", "for job", "event.wait()\nfor job")),
    (10, "a long cell", "16 lines", words("change", "lab.publish", f"{LINES_14}\nlab.publish")),
    (10, "a long solution", "26 lines", words("solution", "lab.publish", f"{LINES_24}\nlab.publish")),
    (10, "three in a row", "c2: the third code cell in a row", more("run-1", code("c1", "1"), code("c2", "2"))),
    (11, "no twin", "describe_deliveries", words("run-1", "for job", "delivery_attempts(lab.history)\nfor job")),
    (11, "no other twin", "describe_leases", words("run-1", "for job", "lease_ownership(lab.history)\nfor job")),
    (12, "no change", "tag change", metadata("change", tags=[])),
    (12, "a bare change", "no text of its own", check_before_change),
    (12, "no exercise", "tag exercise", all_of(metadata("exercise", tags=[]), without("notes-3"), minutes(2.5))),
    (12, "no solution", "solution", metadata("solution", tags=[])),
    (12, "no solution of its own", "exercise: no solution follows", other_solution),
    (12, "not folded", "should be folded", metadata("solution", jupyter={})),
    (12, "solved already", "should be NOT YET", output("check-3", "HELD: 1 job")),
    (12, "not solved", "should be HELD", output("check-4", BROKEN)),
    (12, "no check", "no check says", without("check-4")),
    (13, "no note", "exercise: this step has no speaker notes", all_of(without("notes-3"), minutes(2.5))),
    (13, "another form", "should read", all_of(words("notes-3", "If it goes wrong", "Else"), minutes(2.5))),
    (13, "no notes for slides", "slide_type", metadata("notes-1", slideshow={})),
    (13, "not folded", "folded source", metadata("notes-1", jupyter={})),
    (13, "too long", "add up to 4.5 min", words("notes-2", "1.5 min", "2 min")),
    (14, "not closed", "call lab.close()", words("close", "lab.close()", "pass")),
    (14, "no tag", "tag close", metadata("close", tags=[])),
]


def spoiled(spoil: Spoil, folder: Path) -> Lesson:
    notebook = model_lesson.model_lesson()
    spoil(notebook)
    return Lesson.read(model_lesson.write(notebook, folder))


def unspoiled(notebook: NotebookNode) -> None:
    pass


def test_the_model_lesson_has_all_that_can_be_read(tmp_path: Path) -> None:
    model = spoiled(unspoiled, tmp_path)
    assert {point.number: problems for point in STATIC if (problems := judge(model, point, "static")[1])} == {}


@pytest.mark.slow
def test_the_model_lesson_has_every_point(tmp_path: Path) -> None:
    model = spoiled(unspoiled, tmp_path)
    verdicts = {point.number: judge(model, point) for point in POINTS}
    if not runs.without_network():
        mark, [problem] = verdicts.pop(2)
        assert mark == "–" and problem.startswith("not tried: ")
    assert {number: verdict for number, verdict in verdicts.items() if verdict != ("✓", [])} == {}


@pytest.mark.parametrize(
    ("number", "reason", "spoil"),
    [pytest.param(number, reason, spoil, id=f"{number}-{name}") for number, name, reason, spoil in READ],
)
def test_a_point_is_lost_by_what_can_be_read(number: int, reason: str, spoil: Spoil, tmp_path: Path) -> None:
    """This point, for this reason, and no other point."""
    lesson = spoiled(spoil, tmp_path)
    lost = {point.number: problems for point in STATIC if (problems := judge(lesson, point, "static")[1])}
    assert [*lost] == [number], lost
    assert any(reason in problem for problem in lost[number]), lost


def test_a_figure_with_its_twin_and_a_key_that_is_no_button_lose_nothing(tmp_path: Path) -> None:
    figure = words(
        "run-1", "for job", "delivery_attempts(lab.history)\nprint(describe_deliveries(lab.history))\nfor job"
    )
    key = words("predict-2", "on a card", "on a card (*Tab* and then `Enter` press it too)")
    model = spoiled(all_of(figure, key), tmp_path)
    assert rubric.figures_have_twins(model) == rubric.buttons_have_methods(model) == []


NOT_TWICE = "assert 'once' not in globals()\nonce = 1"
KILLS_AT_SECOND = "if 'once' in globals():\n    lab.kill_all()\nonce = 1"
BREAKS_AT_SECOND = "again = globals().get('again', 0) + 1\nchecks.broken('again') if again > 1 else ch"
KEEPS_A_FOLDER = """
import os, shutil, tempfile, time
kept = tempfile.gettempdir() + "/meetupq-kept"
os.makedirs(kept, exist_ok=True)
time.sleep(1)
"""
REMOVE_IT = "shutil.rmtree(kept, True)\nlab"
NO_TWIN = "import meetupq.panels as p\np.describe_deliveries = lambda *_, **__: ''\nlab.queue_panel()"
OUTSIDE = "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))"
SHORT = only("win", "close")
SHORT_CHECK = only("win", "run-1", "check-1", "close")


def between(source: str) -> Spoil:
    """A lesson of an opening, this cell `c1`, and the close."""
    return all_of(only("close"), more("setup", code("c1", source)))


def no_lab(notebook: NotebookNode) -> None:
    """Neither opened nor closed."""
    words("setup", "lab = meetupq.Lab()\nlab.queue_panel()", "")(notebook)
    words("close", "lab.close()", "1")(notebook)


RUN: list[tuple[int, str, str, Spoil]] = [
    (2, "a wrong verdict", "check-1 · Cell outputs differ", all_of(SHORT_CHECK, output("check-1", "HELD: 7"))),
    (2, "a file from here", "c1 · Cell execution", between("open('pyproject.toml')")),
    (2, "the outside", "c1 · Cell execution", between(OUTSIDE)),
    (2, "not again", "run 2 in one folder: c1", between("open('mine', 'x').close()")),
    (2, "left", "it left", between(KEEPS_A_FOLDER)),
    (3, "too late", "c2: after the first 3 code cells", more("setup", code("c1", "1"), code("c2", "2"))),
    (3, "asked only", "close: after the first 3 code cells", between("lab.publish('hello-1')")),
    (3, "nothing to see", "close: the first 3 code cells show no picture", all_of(between("1"), no_lab)),
    (3, "raises", "c1: raised ZeroDivisionError", between("1 / 0")),
    (7, "raises", "check-1 raised NameError", all_of(SHORT_CHECK, words("check-1", '"resize-1"', "unknown"))),
    (7, "held", "check-1: says 'HELD: so'", all_of(SHORT_CHECK, words("check-1", "ch", "checks.held('so') or ch"))),
    (8, "raises", "c1 raised ZeroDivisionError", between("1 / 0")),
    (8, "fails behind", "UnknownWorker", between("lab.press('kill', 'nobody')\nlab.publish('hello-1')")),
    (11, "no picture", "no cell shows a panel", all_of(SHORT, words("setup", "lab.queue_panel()", ""))),
    (11, "an empty twin", "c1: its panel has an empty text twin", between(NO_TWIN)),
    (14, "left", "after the last cell there is still", all_of(between("1"), words("close", "lab.close()", "1"))),
    (
        14,
        "killed",
        "c1: after the kernel was killed",
        all_of(between(KEEPS_A_FOLDER), words("close", "lab", REMOVE_IT)),
    ),
    (15, "raises", "c1 raised AssertionError", between(NOT_TWICE)),
    (15, "a second panel", "c1: run twice it shows a second panel", between("meetupq.QueuePanel(lab.history)")),
    (15, "hires", "c1: its second run puts", between("lab.launch(f'w{len(lab.history)}')")),
    (15, "kills", "c1: its second run kills ada, bo, cy", all_of(SHORT, more("win", code("c1", KILLS_AT_SECOND)))),
    (15, "a verdict", "check-1: says 'BROKEN: again'", all_of(SHORT_CHECK, words("check-1", "ch", BREAKS_AT_SECOND))),
]


FIRST = {number: name for number, name, _, _ in reversed(RUN)}
"""One way to lose each of these points is tried in every run; `pytest -m hard` tries them all."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "reason", "spoil"),
    [
        pytest.param(
            number, reason, spoil, id=f"{number}-{name}", marks=[] if FIRST[number] == name else [pytest.mark.hard]
        )
        for number, name, reason, spoil in RUN
    ],
)
def test_a_point_is_lost_by_what_happens(
    number: int, reason: str, spoil: Spoil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rubric, "_cell_to_kill_in", lambda lesson: 1)
    point = POINTS[number - 1]
    assert point.dynamic
    problems = point.dynamic(spoiled(spoil, tmp_path))
    assert any(reason in problem for problem in problems), problems


def pretended(folder: Path, *, seconds: float = 1.0, left: list[str] | None = None) -> Lesson:
    """The model lesson with a run that took so long for each cell and left that."""
    lesson = spoiled(unspoiled, folder)
    outcomes = [runs.Outcome(cell.id, seconds) for cell in lesson.code]
    look = runs.Look(kinds=["acked"])
    lesson.__dict__["ordinary"] = runs.Pass(outcomes, [look, look], [])
    lesson.__dict__["double"] = runs.Pass(outcomes, [look] * (len(outcomes) + 1), left or [])
    return lesson


def test_a_slow_cell_a_slow_notebook_and_a_slow_start_lose_a_point(tmp_path: Path) -> None:
    assert rubric.quick(pretended(tmp_path)) == rubric.first_win(pretended(tmp_path)) == []
    assert "setup: took 11.0 s, but a cell has 10 s" in rubric.quick(pretended(tmp_path, seconds=11))
    assert rubric.quick(pretended(tmp_path, seconds=9)) == ["the notebook took 117 s, but it has 90 s"]
    assert rubric.first_win(pretended(tmp_path, seconds=4)) == ["run-1: the first 3 code cells took 12.0 s"]


def test_what_the_double_run_leaves_loses_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rubric, "walk_and_kill", lambda *_: [])
    assert rubric.leaves_nothing(pretended(tmp_path)) == []
    assert rubric.leaves_nothing(pretended(tmp_path, left=["a server"])) == [
        "after every cell was run twice there is still a server"
    ]
    stopped = pretended(tmp_path)
    stopped.ordinary.outcomes[-1].error = "LabClosed"
    assert rubric.leaves_nothing(stopped) == ["can't be seen: close raised LabClosed"]


def test_the_buttons_are_found_where_they_are_shown() -> None:
    assert {("Kill", 'Kill ada now: lab.kill("ada")'), ("Next ▶", "One step on: tour.next()")} <= {*rubric.buttons()}
    assert {"Poison", "Add work", "Redrive"} <= {description for description, _ in rubric.buttons()}


@pytest.mark.parametrize(
    ("description", "tooltip", "reason"),
    [
        ("", "Kill all: lab.kill_all()", "no description"),
        ("Kill all", "", "names no method"),
        ("Kill all", "Kill all workers", "names no method"),
        ("Kill all", "Kill all workers: lab.slay()", "names no method"),
    ],
)
def test_a_button_without_words_or_method_loses_a_point(
    description: str, tooltip: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = rubric.buttons()
    monkeypatch.setattr(rubric, "buttons", lambda: (*known, (description, tooltip)))
    [problem] = rubric.buttons_have_methods(spoiled(unspoiled, tmp_path))
    assert reason in problem


@pytest.mark.hard
@pytest.mark.slow
def test_the_hard_tries_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = spoiled(between("1 / 0"), tmp_path)
    monkeypatch.setattr(rubric, "RUNS", 1)
    monkeypatch.setattr(rubric, "BUSY_LOOPS", 1)
    assert ["c1 · Cell execution" in problem for problem in rubric.ten_of_ten(broken)] == [True]
    assert ["c1 · Cell execution" in problem for problem in rubric.passes_when_busy(broken)] == [True]
    problems = rubric.leaves_nothing_anywhere(
        spoiled(all_of(between(KEEPS_A_FOLDER), words("close", "lab", REMOVE_IT)), tmp_path)
    )
    assert any("c1: after the kernel was killed" in problem for problem in problems), problems


def test_what_cannot_be_tried_is_not_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rubric, "without_network", lambda: ())
    monkeypatch.setattr(rubric, "strict_runs", lambda *_: iter(["", ""]))
    mark, [problem] = judge(spoiled(unspoiled, tmp_path), POINTS[1])
    assert mark == "–" and problem.startswith("not tried: the network")


def test_the_table_says_what_is_lacking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = spoiled(unspoiled, tmp_path).path
    assert rubric.main(["--static", str(path)]) == 0
    assert "✗ " not in capsys.readouterr().out.partition("✓ has it")[0]
    spoiled(metadata("close", tags=[]), tmp_path)
    assert rubric.main(["--static", str(path)]) == 1
    told = capsys.readouterr().out
    assert "  close: the last code cell should have the tag close and call lab.close()" in told
    assert "8 of 15" in told
