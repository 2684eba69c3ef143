"""A wire between one worker and the broker, which can be cut and restored.

A cut is what a network does when a cable is pulled: nothing passes any more, in either direction, and neither side is
told. Whatever is sent meanwhile arrives after the restore, as TCP would send it again.
"""

from __future__ import annotations

import asyncio
import contextlib

from meetupq.errors import BrokerError
from meetupq.tasks import drop


class Wire:
    """A TCP proxy on loopback. `await wire.open()`, then let the worker connect to `wire.port`.

    It belongs to the running event loop, and all its methods are called there.

    Args:
        port, host: of the broker.

    Attributes:
        port: where the worker connects; it stays the same from `open` to `close`, over any restart of the broker.
        is_cut: whether nothing passes now.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._broker = (host, port)
        self._server: asyncio.Server | None = None
        self._ends: set[_End] = set()
        self._idle = asyncio.Event()  # while there are none
        self._idle.set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._whole = asyncio.Event()
        self._whole.set()
        self._closed = False
        self.port = 0

    def __repr__(self) -> str:
        return f"<Wire: port {self.port}{', cut' if self.is_cut else ''}>"

    @property
    def is_cut(self) -> bool:
        return not self._whole.is_set()

    async def open(self) -> None:
        """Listen on a free port of loopback.

        Raises:
            BrokerError: the system gives none.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _End(self), "127.0.0.1", 0)
        except OSError as error:
            raise BrokerError(f"no wire to the broker can be laid ({error.strerror}): close other programs") from error
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """From now on nothing passes; new connections hang. Twice does no harm."""
        self._whole.clear()
        for end in self._ends:
            end.listen()

    def restore(self) -> None:
        """Let everything pass again, what was sent meanwhile first. Twice does no harm."""
        self._whole.set()
        for end in self._ends:
            end.listen()

    def abort(self) -> None:
        """Break both sides in one step of the loop, and drop what the wire still holds. Twice does no harm."""
        self._closed = True
        if self._server:
            self._server.close()
        for task in self._connecting:
            task.cancel()
        for end in self._ends:
            end.transport.abort()

    async def close(self, within: float = 0.0) -> None:
        """`abort`, and wait until it is done. Twice does no harm.

        Args:
            within: how many seconds the worker's connections have before that to end by themselves, so that its last
                words get through; a wire that is cut doesn't wait.
        """
        if within and not self.is_cut:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), within)
        self.abort()
        await drop(*self._connecting)
        await self._idle.wait()

    def _accepted(self, end: _End) -> None:
        task = asyncio.create_task(self._connect(end), name=f"wire {self.port}")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, end: _End) -> None:
        """Connect a worker's end to the broker, as soon as the wire is whole."""
        while self.is_cut:
            await self._whole.wait()
        try:
            await asyncio.get_running_loop().create_connection(lambda: _End(self, end), *self._broker)
        except OSError:
            end.transport.abort()  # the broker is away: the worker will try again


class _End(asyncio.Protocol):
    """One end of a connection: what it hears, the other end says.

    It isn't told apart which end is whose: the wire is the same in both directions.
    """

    transport: asyncio.Transport

    def __init__(self, wire: Wire, other: _End | None = None) -> None:
        self._wire = wire
        self._other = other
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._wire._ends.add(self)
        self._wire._idle.clear()
        if self._wire._closed or (self._other and self._other not in self._wire._ends):
            transport.abort()  # too late: the wire is closed, or the worker has given up
        elif self._other is None:
            self._wire._accepted(self)
        else:
            self._other._other = self
            self._other.listen()
        self.listen()

    def listen(self) -> None:
        """Read, or leave what comes to the system: while the wire is cut, or the other end has its hands full.

        With the other end gone this one is closed, after what it still has to say.

        A paused transport doesn't notice either that its connection was closed, which is what a cut is about.
        """
        if self.transport.is_closing():
            return
        if self._other and self._other not in self._wire._ends and not self._wire.is_cut:
            self.transport.close()
        elif self._other is None or self._other._full or self._wire.is_cut:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        assert self._other
        self._other.transport.write(data)

    def pause_writing(self) -> None:
        self._full = True
        if self._other:
            self._other.listen()

    def resume_writing(self) -> None:
        self._full = False
        if self._other:
            self._other.listen()

    def connection_lost(self, _: Exception | None) -> None:
        self._wire._ends.discard(self)
        if not self._wire._ends:
            self._wire._idle.set()
        if self._other:
            self._other.listen()
