"""The presenter's page says what the notes in the lessons say."""

from __future__ import annotations

from pathlib import Path

import model_lesson
import presenter
from rubric import Lesson, lessons


def model(folder: Path, old: str = "", new: str = "") -> Lesson:
    """The model lesson, with one word of its notes changed."""
    notebook = model_lesson.model_lesson()
    for cell in notebook.cells:
        if cell.id.startswith("notes"):
            cell.source = cell.source.replace(old, new)
    return Lesson.read(model_lesson.write(notebook, folder))


def test_the_page_is_in_step_with_the_lessons() -> None:
    """If this fails: python tests/notebooks/presenter.py"""
    assert presenter.PRESENTER.read_text(encoding="utf-8") == presenter.render(lessons())


def test_a_changed_note_changes_the_page(tmp_path: Path) -> None:
    page = presenter.render([model(tmp_path)])
    assert presenter.render([model(tmp_path)]) == page
    for old, new in (("Watch the bar", "Watch"), ("1.5 min", "1 min"), ("run the first cell", "run a cell")):
        assert presenter.render([model(tmp_path, old, new)]) != page


def test_a_lesson_is_a_table_of_its_steps_with_the_minutes_that_have_passed(tmp_path: Path) -> None:
    wrong = "run the first cell again."
    assert presenter.section(model(tmp_path)).splitlines() == [
        "## 00 · A model",
        "",
        "`model.ipynb`, 4 minutes.",
        "",
        "| step | min | so far | say | if it goes wrong | answer |",
        "|--|--|--|--|--|--|",
        f"| 1 · Jobs | 1 | 1 | Raise your hands. | {wrong} | a, HELD |",
        f"| 2 · A death | 1.5 | 2.5 | Watch the bar. | {wrong} | b, HELD |",
        f"| Your turn | 1.5 | 4 | Your turn. | {wrong} | HELD |",
    ]


def test_a_note_of_several_lines_with_a_bar_in_it_stays_in_its_row(tmp_path: Path) -> None:
    page = presenter.section(model(tmp_path, "Watch the bar.", "Watch\nthe | bar."))
    assert "| Watch the \\| bar. |" in page


def test_a_lesson_without_notes_says_so(tmp_path: Path) -> None:
    assert "No speaker notes." in presenter.section(model(tmp_path, "**Speaker", "**Nobody"))
