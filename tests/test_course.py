"""`meetupq lab`: which lessons are opened, what is copied and what is kept, and how JupyterLab is started."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_rig import ROOT

from meetupq import course
from meetupq.course import copy_lessons, lab_command, lab_environment
from meetupq.errors import MeetupqError

Launched = list[tuple[list[str], dict[str, str]]]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lessons as a wheel has them; `tmp_path` is where one is."""
    folder = tmp_path / "site-packages" / "meetupq" / "notebooks"
    (folder / "recordings").mkdir(parents=True)
    (folder / ".ipynb_checkpoints").mkdir()
    for name in ("00_start_here", "01_work_queue"):
        (folder / f"{name}.ipynb").write_text(json.dumps({"cells": [], "name": name}))
    (folder / "recordings" / "tour.jsonl").write_text("{}\n")
    (folder / ".ipynb_checkpoints" / "00_start_here-checkpoint.ipynb").write_text("old")
    monkeypatch.setattr(course, "PACKAGE", folder.parent)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """Instead of becoming JupyterLab: what would be executed."""
    launches: Launched = []

    def execve(path: str, command: list[str], environment: dict[str, str]) -> int:
        assert path == command[0] == sys.executable
        launches.append((command, environment))
        return 0

    monkeypatch.setattr(course.os, "execve", execve)
    return launches


def open_lab(
    folder: str | None = None, timing: str | None = None, browser: bool = True, extra: Sequence[str] = ()
) -> None:
    assert course.open_lab(folder, timing, None, browser, extra) == 0


# --- copying -----------------------------------------------------------------------------------------


def test_lessons_are_copied_with_what_belongs_to_them(shipped: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine" / "course"
    assert copy_lessons(shipped, target) == []
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()) == [
        "00_start_here.ipynb",
        "01_work_queue.ipynb",
        "recordings/tour.jsonl",
    ]
    assert (target / "00_start_here.ipynb").read_bytes() == (shipped / "00_start_here.ipynb").read_bytes()


def test_what_the_learner_changed_is_kept_and_named(shipped: Path, tmp_path: Path) -> None:
    target = tmp_path / "course"
    copy_lessons(shipped, target)
    (target / "01_work_queue.ipynb").write_text("my answers")
    (target / "00_start_here.ipynb").unlink()
    before = (target / "recordings" / "tour.jsonl").stat().st_mtime_ns
    assert copy_lessons(shipped, target) == ["01_work_queue.ipynb"]
    assert (target / "01_work_queue.ipynb").read_text() == "my answers"
    assert (target / "00_start_here.ipynb").exists()
    assert (target / "recordings" / "tour.jsonl").stat().st_mtime_ns == before


def test_a_link_or_a_folder_in_a_lessons_place_is_kept(shipped: Path, tmp_path: Path) -> None:
    target = tmp_path / "course"
    target.mkdir()
    (target / "00_start_here.ipynb").symlink_to(tmp_path / "elsewhere.ipynb")
    (target / "01_work_queue.ipynb").mkdir()
    assert copy_lessons(shipped, target) == ["00_start_here.ipynb", "01_work_queue.ipynb"]
    assert not (tmp_path / "elsewhere.ipynb").exists()


def test_a_failed_copy_leaves_no_half_lesson(
    shipped: Path, tmp_path: Path, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_full(self: Path, goal: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", disk_full)
    with pytest.raises(
        MeetupqError, match=r"can't put the notebooks into .*course \(No space left on device\): .*--dir"
    ):
        open_lab("course")
    assert list((tmp_path / "course").iterdir()) == []
    assert launched == []


# --- which lessons -----------------------------------------------------------------------------------


def test_lab_outside_the_repository_opens_a_copy(
    shipped: Path, tmp_path: Path, launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    open_lab(browser=False, timing="talk", extra=["--ServerApp.ip=::1", "--collaborative"])
    command, environment = launched[0]
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={tmp_path / 'notebooks'}" in command
    assert "--LabApp.default_url=/lab/tree/00_start_here.ipynb" in command
    assert "--no-browser" in command
    assert command[-2:] == ["--ServerApp.ip=::1", "--collaborative"]
    assert environment["MEETUPQ_TIMING"] == "talk"
    assert "kept" not in capsys.readouterr().err
    (tmp_path / "notebooks" / "00_start_here.ipynb").write_text("mine")
    (tmp_path / "notebooks" / "000_earlier.ipynb").touch()
    open_lab()
    assert f"kept as you left them, in {tmp_path / 'notebooks'}: 00_start_here.ipynb" in capsys.readouterr().err
    assert "--LabApp.default_url=/lab/tree/00_start_here.ipynb" in launched[1][0]
    assert "--no-browser" not in launched[1][0]
    assert "MEETUPQ_TIMING" not in launched[1][1]


def test_lab_in_the_repository_opens_the_lessons_where_they_lie(
    shipped: Path, tmp_path: Path, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    (tree / "meetupq").mkdir(parents=True)
    shipped.rename(tree / "notebooks")
    (tree / "pyproject.toml").touch()
    monkeypatch.setattr(course, "PACKAGE", tree / "meetupq")
    open_lab()
    assert f"--ServerApp.root_dir={tree / 'notebooks'}" in launched[0][0]
    assert not (tmp_path / "notebooks").exists()
    open_lab("copy")
    assert f"--ServerApp.root_dir={tmp_path / 'copy'}" in launched[1][0]
    assert (tmp_path / "copy" / "01_work_queue.ipynb").exists()


def test_a_folder_called_notebooks_beside_an_installed_package_is_not_taken_for_ours(
    shipped: Path, tmp_path: Path
) -> None:
    foreign = shipped.parent.parent / "notebooks"
    foreign.mkdir()
    (foreign / "foreign.ipynb").touch()
    assert course.prepare(None) == tmp_path / "notebooks" / "00_start_here.ipynb"
    assert not (tmp_path / "notebooks" / "foreign.ipynb").exists()


def test_lab_says_why_it_cannot(
    shipped: Path, tmp_path: Path, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MeetupqError, match=r"^can't put the notebooks into .*--dir$"):
        open_lab(str(tmp_path / "file"))
    monkeypatch.setenv("MEETUPQ_TIMING", "quick")
    with pytest.raises(MeetupqError, match="no timing is called 'quick'"):
        open_lab()
    monkeypatch.delenv("MEETUPQ_TIMING")
    monkeypatch.setattr(course, "PACKAGE", tmp_path)
    with pytest.raises(MeetupqError, match=r"^this installation of meetupq has no notebooks: "):
        open_lab()
    assert launched == []


# --- starting JupyterLab -----------------------------------------------------------------------------


def test_only_root_is_let_in_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    for user, allowed in ((0, True), (1000, False)):
        monkeypatch.setattr(course.os, "geteuid", lambda user=user: user)
        assert ("--allow-root" in lab_command(Path("a.ipynb"))) is allowed


def test_a_port_that_was_asked_for_is_taken_or_nothing() -> None:
    command = lab_command(Path("a.ipynb"), port=8899)
    assert "--ServerApp.port=8899" in command
    assert "--ServerApp.port_retries=0" in command
    assert "port" not in str(lab_command(Path("a.ipynb")))


def test_our_settings_come_before_the_ones_that_are_there() -> None:
    changed = lab_environment({"JUPYTER_CONFIG_PATH": "/theirs", "HOME": "/h"})
    assert changed == {"JUPYTER_CONFIG_PATH": f"{course.JUPYTER_SETTINGS}{os.pathsep}/theirs", "HOME": "/h"}
    assert lab_environment({}, "ci") == {"JUPYTER_CONFIG_PATH": str(course.JUPYTER_SETTINGS), "MEETUPQ_TIMING": "ci"}


def test_jupyterlab_knows_every_setting_that_we_ship() -> None:
    """A setting whose name JupyterLab doesn't know would be dropped in silence."""
    settings = ROOT / "meetupq" / "jupyter" / "labconfig" / "default_setting_overrides.json"
    assert settings.is_relative_to(course.JUPYTER_SETTINGS)
    schemas = Path(sys.prefix) / "share" / "jupyter" / "lab" / "schemas"
    for plugin, ours in json.loads(settings.read_text()).items():
        package, _, name = plugin.partition(":")
        known = json.loads((schemas / package / f"{name}.json").read_text())["properties"]
        for key, value in ours.items():
            allowed = [choice["const"] for choice in known[key].get("oneOf", [])]
            assert value in allowed if allowed else isinstance(value, bool)
