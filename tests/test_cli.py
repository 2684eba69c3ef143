"""The command line: options, help and exit codes."""

from __future__ import annotations

import importlib.metadata
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_rig import ROOT, in_new_process

from meetupq import cli
from meetupq.errors import MeetupqError


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """`cli.main` takes SIGTERM for itself; the test run wants it back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("words", "runs", "options"),
    [
        ("doctor", "doctor.run", {}),
        ("demo", "demo.run", {"seconds": 60.0, "timing": "talk", "seed": 1, "out": "."}),
        (
            "demo --seconds 1.5 --timing ci --seed -3 --out show",
            "demo.run",
            {"seconds": 1.5, "timing": "ci", "seed": -3, "out": "show"},
        ),
        (
            "lab",
            "course.open_lab",
            {"folder": None, "timing": None, "port": None, "browser": True, "extra": []},
        ),
        (
            "lab --dir d --timing class --port 8899 --no-browser -- --ServerApp.ip=::1 --dir x",
            "course.open_lab",
            {
                "folder": "d",
                "timing": "class",
                "port": 8899,
                "browser": False,
                "extra": ["--ServerApp.ip=::1", "--dir", "x"],
            },
        ),
    ],
)
def test_options_reach_the_command_and_its_exit_code_is_ours(
    words: str, runs: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []

    def run(**options: Any) -> int:
        given.append(options)
        return 7

    monkeypatch.setattr(f"meetupq.{runs}", run)
    assert cli.main(words.split()) == 7
    assert given == [options]


@pytest.mark.parametrize(
    "words",
    [
        "",
        "dance",
        "demo --seconds 0",
        "demo --seconds nan",
        "demo --seconds soon",
        "demo --timing quick",
        "demo -- --x",
        "lab --port 65536",
        "lab --port -1",
        "doctor now",
    ],
)
def test_wrong_usage_is_answered_with_usage_and_two(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words.split())
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("usage: meetupq")


@pytest.mark.parametrize("command", ["", "lab", "demo", "doctor"])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([*command.split(), "--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert "examples:\n  meetupq " in told
    assert max(map(len, told.splitlines())) <= 120


@pytest.mark.parametrize("installed", [True, False])
def test_version_is_the_packages(
    installed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    def look(name: str) -> str:
        assert name == "meetupq"
        if not installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return str(version)

    monkeypatch.setattr(importlib.metadata, "version", look)
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"meetupq {version if installed else 'not installed, used from /'}")


@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        (MeetupqError("no paper: buy some"), 1, "meetupq: no paper: buy some\n"),
        (KeyboardInterrupt(), 130, "\nmeetupq: interrupted; everything is closed\n"),
    ],
)
def test_how_it_ended_is_told_in_a_sentence_and_a_code(
    end: BaseException, code: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends() -> int:
        raise end

    monkeypatch.setattr("meetupq.doctor.run", ends)
    assert cli.main(["doctor"]) == code
    assert capsys.readouterr() == ("", told)


def test_a_reader_that_has_seen_enough_causes_no_traceback(tmp_path: Path) -> None:
    doctor = in_new_process("doctor", cwd=tmp_path)
    assert doctor.stdout
    assert doctor.stderr
    doctor.stdout.close()
    doctor.wait(30)
    assert doctor.stderr.read() == ""
    doctor.stderr.close()
    assert doctor.returncode == 1
