"""The lessons as nbval sees them, and as they are stored."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from rubric import NOT_TRIED, NOTEBOOKS, Lesson, stands_alone
from runs import left_for_good, run_nbval

LESSONS = sorted(NOTEBOOKS.glob("*.ipynb"))
NAMES = [lesson.name for lesson in LESSONS]


@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_a_lesson_passes_strict_nbval_twice_in_the_same_folder(lesson: Path) -> None:
    """The rubric's point 2: in a folder elsewhere, and with no network where it can be cut off; nothing is left."""
    assert [problem for problem in stands_alone(Lesson.read(lesson)) if not problem.startswith(NOT_TRIED)] == []


@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_outputs_are_stored_for_check_cells_only(lesson: Path) -> None:
    """nbval compares no cell without a count, so a check without one would check nothing."""
    notebook = nbformat.read(lesson, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    checks = [cell for cell in code if "check" in cell.metadata.get("tags", [])]
    assert len(checks) >= 3
    for cell in code:
        if cell in checks:
            assert cell.execution_count
            assert cell.outputs[0]["data"]["text/plain"].startswith(("HELD: ", "NOT YET: ", "BROKEN: "))
        else:
            assert cell.execution_count is None
            assert cell.outputs == []
    assert sum(cell.outputs[0]["data"]["text/plain"].startswith("HELD: ") for cell in checks) >= 3
    assert "widgets" not in notebook.metadata
    assert notebook.metadata.kernelspec.name == "python3"


def test_every_verdict_in_a_lesson_is_looked_at() -> None:
    """A cell that asks for a verdict and shows it last must be a check cell, else its verdict could rot."""
    for lesson in LESSONS:
        for cell in nbformat.read(lesson, as_version=4).cells:
            last = cell.source.splitlines()[-1] if cell.cell_type == "code" and cell.source else ""
            if last.startswith("checks."):
                assert "check" in cell.metadata.get("tags", []), f"{lesson.name}: {last}"


def test_a_wrong_expectation_fails(tmp_path: Path) -> None:
    """The lessons' test can fail: the same lesson with one stored verdict turned round does."""
    notebook = nbformat.read(NOTEBOOKS / "01_work_queue.ipynb", as_version=4)
    check = next(cell for cell in notebook.cells if "check" in cell.metadata.get("tags", []))
    check.outputs[0]["data"]["text/plain"] = check.outputs[0]["data"]["text/plain"].replace("HELD", "BROKEN")
    nbformat.write(notebook, tmp_path / "wrong.ipynb")
    result = run_nbval(tmp_path, "wrong.ipynb")
    assert result.returncode == 1
    assert "1 failed" in result.stdout
    assert left_for_good(tmp_path) == []
