"""The lessons as nbval sees them, and as they are stored."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [lesson.name for lesson in LESSONS]


def run_nbval(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    """Run one notebook strictly, in `folder`, with temp files of its own."""
    temp = folder / "tmp"
    temp.mkdir(exist_ok=True)
    environment = {**os.environ, "MEETUPQ_TIMING": "ci", "TMPDIR": str(temp), "IPYTHONDIR": str(folder / "ipython")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    arguments = ["-m", "pytest", "--nbval", "-p", "no:cacheprovider", "--nbval-cell-timeout=60", "-q", name]
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def left_behind(folder: Path) -> list[str]:
    """Servers, guards and temp folders of a run in `folder` that are still there."""
    temp = str(folder / "tmp")
    processes = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    return [line for line in processes if temp in line] + [str(p) for p in Path(temp).glob("meetupq-*")]


def assert_nothing_left(folder: Path) -> None:
    deadline = time.monotonic() + 5
    while left := left_behind(folder):
        assert time.monotonic() < deadline, f"5 s later there is still: {left}"
        time.sleep(0.05)


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_passes_strict_nbval_twice_in_the_same_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text((ROOT / "notebooks" / name).read_text())
    for _ in range(2):
        result = run_nbval(tmp_path, name)
        assert result.returncode == 0, result.stdout[-4000:]
        assert_nothing_left(tmp_path)


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
    notebook = nbformat.read(ROOT / "notebooks" / "01_work_queue.ipynb", as_version=4)
    check = next(cell for cell in notebook.cells if "check" in cell.metadata.get("tags", []))
    check.outputs[0]["data"]["text/plain"] = check.outputs[0]["data"]["text/plain"].replace("HELD", "BROKEN")
    nbformat.write(notebook, tmp_path / "wrong.ipynb")
    result = run_nbval(tmp_path, "wrong.ipynb")
    assert result.returncode == 1
    assert "1 failed" in result.stdout
    assert_nothing_left(tmp_path)
