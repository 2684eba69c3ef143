"""Writes notebooks/PRESENTER.md: the speaker notes of all lessons on one page, with the minutes that have passed.

python tests/notebooks/presenter.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from nbformat import NotebookNode
from rubric import NOTE, NOTEBOOKS, Lesson, following, has, lessons, stored

PRESENTER: Final = NOTEBOOKS / "PRESENTER.md"
OPENING: Final = """\
# For who presents

What to say in each step, and what to do if it goes wrong. The notes are in the lessons too, as folded cells; this page
is made from them by `python tests/notebooks/presenter.py`.

The minutes are for the durations called `class` (the default). With `talk` a job takes 45 seconds to die instead of 12,
so plan twice as much. Before each step ask for a show of hands; the answer is in the last column, with the verdict
that the check says after it: BROKEN is the right one where the table says so.

## Before you go on stage

1. `meetupq doctor`, at home and again in the room. Nothing needs a network.
2. `meetupq lab --dir talk-copy` opens a fresh copy, so that no rehearsal shows. Choose the durations: `--timing class`.
3. Open the lessons that you will show, run the first cell of each (the first one takes some seconds), and zoom until
   the back row can read the picture. Then close the file browser (Ctrl+B).
4. Dock the panel: right click on it, *Create New View for Cell Output*, and drag the tab beside the notebook. A cell
   that opens a new lab shows a new panel; the docked one then says "closed".

## If everything is stuck

1. A cell hangs: press the stop button of JupyterLab. Every wait ends by itself too, and says what was seen so far.
2. The picture or the workers are in a muddle: run the first code cell again. It closes the lab that is open and opens
   a new one. Then select the cell where you were and choose *Run All Above Selected Cell*. Every cell can be run twice.
3. Nothing answers: restart the kernel, run the first code cell. The old server goes with the old kernel.
4. Still nothing: `meetupq doctor` in a terminal says what is missing here.
5. No time for any of it: in a fresh copy every check cell has its verdict stored; click on the line under it.
"""


def render(chosen: Sequence[Lesson]) -> str:
    """The whole page."""
    return "\n".join([OPENING, *(section(lesson) for lesson in chosen)])


def section(lesson: Lesson) -> str:
    """A lesson's title and its table."""
    title = lesson.cells[0].source.partition("\n")[0].lstrip("# ")
    lines = [f"## {title}", "", f"`{lesson.path.name}`, {lesson.minutes:g} minutes.", ""]
    rows = [*steps(lesson)]
    if rows:
        lines += ["| step | min | so far | say | if it goes wrong | answer |", "|--|--|--|--|--|--|"]
    passed = 0.0
    for step, minutes, say, wrong, answer in rows:
        passed += minutes
        lines.append(f"| {step} | {minutes:g} | {passed:g} | {say} | {wrong} | {answer} |")
    return "\n".join([*lines, ""] if rows else [*lines, "No speaker notes.", ""])


def steps(lesson: Lesson) -> Iterator[tuple[str, float, str, str, str]]:
    """For each of the notes: the heading nearest above it, the minutes, what to say, what to do if it goes wrong, and
    how the prediction comes out."""
    heading = "Opening"
    for cell in lesson.cells[1:]:
        if cell.cell_type != "markdown":
            continue
        if has(cell, "notes") and (note := NOTE.fullmatch(cell.source.strip())):
            yield heading, float(note["minutes"]), in_a_row(note["say"]), in_a_row(note["wrong"]), answer(lesson, cell)
        elif found := re.findall(r"^#+ +(.+)$", cell.source, re.MULTILINE):
            heading = in_a_row(found[-1])


def answer(lesson: Lesson, note: NotebookNode) -> str:
    """The letter with which the explanation after this note begins, and the verdicts before the next note."""
    step = following(lesson, note, "notes")
    letters = [
        found[1] for cell in step if has(cell, "explain") and (found := re.match(r"\*\*(\w)\.?\*\*", cell.source))
    ]
    verdicts = [stored(cell).partition(":")[0] for cell in step if has(cell, "check") and not has(cell, "exercise")]
    return ", ".join([*letters[:1], *dict.fromkeys(verdict for verdict in verdicts if verdict != "NOT YET")]) or "–"


def in_a_row(text: str) -> str:
    """Fit for one cell of a table."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


if __name__ == "__main__":
    PRESENTER.write_text(render(lessons()), encoding="utf-8")
    print(f"{PRESENTER.name}: {len(PRESENTER.read_text(encoding='utf-8').splitlines())} lines")
