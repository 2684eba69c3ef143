"""Writes notebooks/PRESENTER.md: the speaker notes of all lessons on one page, with the minutes that have passed.

python tests/notebooks/presenter.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from rubric import NOTE, NOTEBOOKS, Lesson, has, lessons

PRESENTER: Final = NOTEBOOKS / "PRESENTER.md"
OPENING: Final = """\
# For who presents

What to say in each step, and what to do if it goes wrong. The notes are in the lessons too, as folded cells; this page
is made from them by `python tests/notebooks/presenter.py`.

## If everything is stuck

1. A cell hangs: press the stop button of JupyterLab. Every wait ends by itself too, and says what was seen so far.
2. The picture or the workers are in a muddle: run the first code cell again. It closes the lab that is open and opens
   a new one. Then go on from the beginning of the step; every cell can be run twice.
3. Nothing answers: restart the kernel, run the first code cell. The old server goes with the old kernel.
4. Still nothing: `meetupq doctor` in a terminal says what is missing here.
5. No time for any of it: every check cell has its verdict stored, unfold it and go on talking.
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
        lines += ["| step | min | so far | say | if it goes wrong |", "|--|--|--|--|--|"]
    passed = 0.0
    for step, minutes, say, wrong in rows:
        passed += minutes
        lines.append(f"| {step} | {minutes:g} | {passed:g} | {say} | {wrong} |")
    return "\n".join([*lines, ""] if rows else [*lines, "No speaker notes.", ""])


def steps(lesson: Lesson) -> Iterator[tuple[str, float, str, str]]:
    """For each of the notes: the heading nearest above it, the minutes, what to say, what to do if it goes wrong."""
    heading = "Opening"
    for cell in lesson.cells[1:]:
        if cell.cell_type != "markdown":
            continue
        if has(cell, "notes") and (note := NOTE.fullmatch(cell.source.strip())):
            yield heading, float(note["minutes"]), in_a_row(note["say"]), in_a_row(note["wrong"])
        elif found := re.findall(r"^#+ +(.+)$", cell.source, re.MULTILINE):
            heading = in_a_row(found[-1])


def in_a_row(text: str) -> str:
    """Fit for one cell of a table."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


if __name__ == "__main__":
    PRESENTER.write_text(render(lessons()), encoding="utf-8")
    print(f"{PRESENTER.name}: {len(PRESENTER.read_text(encoding='utf-8').splitlines())} lines")
