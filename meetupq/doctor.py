"""`meetupq doctor`: everything that meetupq needs, each looked at by itself, and what to do about what is missing."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from meetupq.broker import Broker, asking, find_server, server_version
from meetupq.errors import BrokerError, MeetupqError

LIBRARIES: Final = {"nats-py": "2.15", "jupyterlab": "4.2", "ipywidgets": "8.1", "matplotlib": "3.9", "pillow": "10"}
ENOUGH_DISK: Final = 200 * 2**20


def version() -> str:
    """meetupq's own version."""
    try:
        return importlib.metadata.version("meetupq")
    except importlib.metadata.PackageNotFoundError:
        return f"not installed, used from {Path(__file__).parent}"


def library(name: str, least: str) -> str:
    """The version of a library that is there.

    Raises:
        MeetupqError: it isn't, or is older than `least`.
    """
    remedy = f"run `{Path(sys.executable).name} -m pip install -U {name}`"
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise MeetupqError(f"{name} is not installed: {remedy}") from None
    there, needed = ([int(number) for number in re.findall(r"\d+", text)] for text in (found, least))
    if there < needed:
        raise MeetupqError(f"{name} is {found}, but at least {least} is needed: {remedy}")
    return found


def _server() -> str:
    if os.environ.get("MEETUPQ_NATS_URL"):
        return f"somebody else's, at {Broker().address} (MEETUPQ_NATS_URL)"
    server = find_server()
    return f"{server_version(server)} ({server})"


def _loopback() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]} could be opened"


def _temp_folder() -> str:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(2**20))
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < ENOUGH_DISK:
        raise MeetupqError(
            f"only {free >> 20} MB are free in {folder}: free {ENOUGH_DISK >> 20} MB, or set TMPDIR to another disk"
        )
    return f"{folder} can be written, {free / 2**30:.1f} GB are free"


async def _message_there_and_back() -> str:
    name = f"meetupq-doctor-{secrets.token_hex(4)}"
    async with Broker() as broker:
        client = await broker.connect("doctor")
        try:
            with asking("store a message and read it again", BrokerError):
                jetstream = client.jetstream(timeout=5)
                await jetstream.add_stream(name=name, subjects=[name])
                try:
                    receipt = await jetstream.publish(name, b"are you well?")
                    await jetstream.get_msg(name, seq=receipt.seq)
                finally:
                    await jetstream.delete_stream(name)
        finally:
            await client.close()
        return f"nats-server {broker.version} stored a message and gave it back"


CHECKS: Final[dict[str, Callable[[], str]]] = {
    "python": lambda: f"{sys.version.split()[0]} ({sys.executable})",
    "meetupq": version,
    **{name: functools.partial(library, name, least) for name, least in LIBRARIES.items()},
    "server": _server,
    "loopback": _loopback,
    "temp folder": _temp_folder,
    "jetstream": lambda: asyncio.run(_message_there_and_back()),
}
REMEDIES: Final = {
    "loopback": "allow local connections in this sandbox, container or firewall",
    "temp folder": "set TMPDIR to a folder that can be written",
}


def examine(checks: Mapping[str, Callable[[], str]]) -> Iterator[tuple[str, bool, str]]:
    """Each check's name, whether it is well, and what was found or what to do."""
    for name, look in checks.items():
        try:
            yield name, True, look()
        except MeetupqError as error:
            yield name, False, str(error)
        except Exception as error:  # noqa: BLE001 - one check's surprise must not keep the others from being made
            remedy = REMEDIES.get(name, "please report this, it should not happen")
            yield name, False, f"{type(error).__name__}: {error}; {remedy}"


def run() -> int:
    """Print a line per check. Returns the exit code."""
    ill = 0
    for name, well, found in examine(CHECKS):
        ill += not well
        print(f"{'ok' if well else 'FAIL':<5} {name:<12} {found}", flush=True)
    print(f"{ill} of {len(CHECKS)} checks failed; each line says what to do" if ill else "all is well")
    return int(ill > 0)
