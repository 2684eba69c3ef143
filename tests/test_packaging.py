"""What leaves the repository: the wheel, the Binder image's ingredients, the CI script."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_rig import command_of
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TESTS_COMMAND = "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/python -m pytest"
LESSON = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


# --- the wheel ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is built from, with one more lesson and with what must not be shipped."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("meetupq", "notebooks", "tests", "binder", ".ci"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    (tree / "notebooks" / "99_packaging.ipynb").write_text(json.dumps(LESSON))
    for folder in ("notebooks", "meetupq"):
        (tree / folder / ".ipynb_checkpoints").mkdir()
        (tree / folder / ".ipynb_checkpoints" / "99_packaging-checkpoint.ipynb").write_text(json.dumps(LESSON))
    return tree


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    """Built from the source distribution, without a network."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", "."],
        cwd=tree,
        check=True,
        capture_output=True,
    )
    [wheel] = (tree / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in a folder that comes first on the path, before the repository."""
    target = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", target, wheel],
        check=True,
        capture_output=True,
    )
    return target


def environment(installed: Path, home: Path) -> dict[str, str]:
    home.mkdir()
    return {
        **os.environ,
        "PYTHONPATH": str(installed),
        "HOME": str(home),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
    }


def test_the_wheel_has_the_lessons_and_the_settings_and_nothing_else(tree: Path, wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    lessons = {path.name for path in (tree / "notebooks").glob("*.ipynb")}
    assert {name.rpartition("/")[2] for name in names if name.endswith(".ipynb")} == lessons
    assert {name for name in names if name.startswith("meetupq/notebooks/") and name.endswith(".ipynb")} == {
        f"meetupq/notebooks/{lesson}" for lesson in lessons
    }
    modules = {f"meetupq/{path.name}" for path in (tree / "meetupq").glob("*.py")}
    assert modules <= set(names)
    assert "meetupq/jupyter/labconfig/default_setting_overrides.json" in names
    assert "meetupq/recordings/tour.jsonl" in names
    assert not [name for name in names if "checkpoint" in name or "__pycache__" in name]
    assert {name.split("/")[0] for name in names} == {"meetupq", f"meetupq-{PROJECT['version']}.dist-info"}


def test_the_source_distribution_has_what_the_tests_need(tree: Path, wheel: Path) -> None:
    import tarfile

    [source] = (tree / "dist").glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "binder/start", ".ci/run", "notebooks/99_packaging.ipynb", "tests/test_packaging.py"} <= names


def test_the_wheel_names_the_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    [entry_points] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    assert "meetupq = meetupq.cli:main" in archive.read(entry_points).decode()


def test_the_installed_command_knows_its_version(installed: Path, tmp_path: Path) -> None:
    said = subprocess.run(
        [installed / "bin" / "meetupq", "--version"],
        cwd=tmp_path,
        env=environment(installed, tmp_path / "home"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"meetupq {PROJECT['version']}\n"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return json.load(answer)


def until(answer: Callable[[], Any], process: subprocess.Popen[bytes], within: float = 60) -> None:
    """Ask again and again until the answer is yes; while nobody answers at all it is no."""
    deadline = time.monotonic() + within
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if answer():
                return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not get there (exit code {process.poll()})")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_installed_lab_opens_a_copy_of_the_lessons_and_ends_with_all_that_it_started(
    tree: Path, installed: Path, tmp_path: Path, how: signal.Signals
) -> None:
    port, course = free_port(), tmp_path / "notebooks"
    options = ["--no-browser", "--port", str(port), "--timing", "ci"]
    jupyters = ["--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"]
    course.mkdir()
    (course / "99_packaging.ipynb").write_text("mine")
    ours, terminal = os.openpty()  # without a terminal Jupyter would not even listen to Ctrl-C
    with (tmp_path / "log").open("wb") as log:
        lab = subprocess.Popen(
            [installed / "bin" / "meetupq", "lab", *options, "--", *jupyters],
            cwd=tmp_path,
            env=environment(installed, tmp_path / "home"),
            stdin=terminal,
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: get(port, "/api/status"), lab)
        for lesson in set((tree / "notebooks").glob("*.ipynb")) - {tree / "notebooks" / "99_packaging.ipynb"}:
            assert (course / lesson.name).read_bytes() == lesson.read_bytes()
        assert (course / "99_packaging.ipynb").read_text() == "mine"
        assert {item["name"] for item in get(port, "/api/contents")["content"]} >= {"99_packaging.ipynb"}
        tracker = get(port, "/lab/api/settings/@jupyterlab/notebook-extension:tracker")
        assert tracker["schema"]["properties"]["windowingMode"]["default"] == "none"
        news = get(port, "/lab/api/settings/@jupyterlab/apputils-extension:notification")
        assert news["schema"]["properties"]["fetchNews"]["default"] == "false"
        started = urllib.request.Request(f"http://127.0.0.1:{port}/api/kernels", data=b"{}", method="POST")
        urllib.request.urlopen(started, timeout=20).close()
        family = psutil.Process(lab.pid).children(recursive=True)
        kernels = [process for process in family if "ipykernel_launcher" in command_of(process)]
        assert kernels
        assert kernels[0].environ()["MEETUPQ_TIMING"] == "ci"
        until(lambda: kernels[0].net_connections(), lab)  # it is up, and not in the middle of its imports
        lab.send_signal(how)
        lab.wait(20)
        _, alive = psutil.wait_procs(family, timeout=5)
        assert alive == []
    finally:
        if lab.poll() is None:
            lab.kill()
            lab.wait()
        os.close(ours)
        os.close(terminal)
    log_text = (tmp_path / "log").read_text()
    assert lab.returncode == 0, log_text
    assert "kept as you left them" in log_text
    assert "99_packaging.ipynb" in log_text
    # No traceback of ours; a kernel that dies while it starts may show one.
    assert not re.search(r"meetupq/\w+\.py", log_text)
    with pytest.raises(urllib.error.URLError):
        get(port, "/api/status")


# --- Binder ------------------------------------------------------------------------------------------

BINDER = ROOT / "binder"


def requirements() -> list[str]:
    lines = (BINDER / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_binder_pins_every_dependency_to_a_version_that_the_package_accepts() -> None:
    *pinned, last = requirements()
    assert last == "."  # the package itself, from the repository's root
    pins = {pin.name: pin.specifier for pin in map(Requirement, pinned)}
    assert all(str(specifier).startswith("==") and "*" not in str(specifier) for specifier in pins.values())
    for needed in map(Requirement, PROJECT["dependencies"]):
        version = str(pins[needed.name])[2:]
        assert needed.specifier.contains(version), f"{needed} but Binder has {version}"


def test_binder_runs_a_python_that_the_package_accepts() -> None:
    runtime = (BINDER / "runtime.txt").read_text().strip()
    assert runtime == "python-3.11"
    assert SpecifierSet(PROJECT["requires-python"]).contains(runtime.removeprefix("python-"))


@pytest.mark.parametrize("script", ["binder/postBuild", "binder/start", ".ci/run"])
def test_scripts_can_be_run_and_stop_at_the_first_failure(script: str) -> None:
    path = ROOT / script
    assert os.access(path, os.X_OK)
    lines = path.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize(("given", "seen"), [(None, "class"), ("talk", "talk")])
def test_start_sets_the_timing_unless_set_and_becomes_the_command(given: str | None, seen: str) -> None:
    settings = {**os.environ, **({"MEETUPQ_TIMING": given} if given else {})}
    command = ["bash", "-c", 'echo "$MEETUPQ_TIMING $$ $# $1"; exit 3', "name", "two words"]
    process = subprocess.Popen([BINDER / "start", *command], env=settings, stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=10)
    assert out == f"{seen} {process.pid} 1 two words\n"
    assert process.returncode == 3
    assert (BINDER / "start").read_text().splitlines()[-1] == 'exec "$@"'


@pytest.mark.parametrize("well", [True, False])
def test_post_build_asks_the_doctor_and_fails_with_it(tmp_path: Path, well: bool) -> None:
    (tmp_path / "meetupq").write_text(f'#!/bin/sh\necho "meetupq $@"\nexit {0 if well else 1}\n')
    (tmp_path / "meetupq").chmod(0o755)
    done = subprocess.run(
        [BINDER / "postBuild"],
        cwd=ROOT,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "NB_PYTHON_PREFIX": str(tmp_path / "prefix")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0 if well else 1, "meetupq doctor\n")
    settings = tmp_path / "prefix" / "etc" / "jupyter" / "labconfig" / "default_setting_overrides.json"
    assert json.loads(settings.read_text())["@jupyterlab/notebook-extension:tracker"] == {"windowingMode": "none"}


# --- CI ----------------------------------------------------------------------------------------------


def test_ci_runs_the_command_that_the_readme_gives() -> None:
    assert TESTS_COMMAND in (ROOT / "README.md").read_text()
    assert f'tests="{TESTS_COMMAND}"' in (ROOT / ".ci" / "run").read_text()


def test_ci_makes_every_other_check_too_and_skips_no_browser() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    for check in ("ruff check", "ruff format --check", "mypy"):
        assert f'"{check}"' in script
    assert "export MEETUPQ_REQUIRE_BROWSER=1" in script
