"""A wire between a worker and the broker: whole it is invisible, cut it lets nothing pass and tells nobody."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from conftest import Connect, eventually
from nats.aio.client import Client

from meetupq.broker import Broker, sever
from meetupq.errors import BrokerUnreachable
from meetupq.wire import Wire

QUIET = 0.3
"""Seconds in which something that could pass would have passed."""


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    wire = Wire(broker.port)
    await wire.open()
    yield wire
    await wire.close()


@pytest.fixture
async def ada(broker: Broker, wire: Wire) -> AsyncIterator[Client]:
    """A client that is connected through the wire."""
    client = await broker.connect("ada", servers=f"nats://127.0.0.1:{wire.port}")
    yield client
    await sever(client)


async def listen(client: Client, subject: str) -> list[bytes]:
    """What comes on a subject from now on."""
    heard: list[bytes] = []

    async def hear(message: object) -> None:
        heard.append(message.data)  # type: ignore[attr-defined]

    await client.subscribe(subject, cb=hear)
    await client.flush()
    return heard


async def test_a_cut_stops_both_directions_and_a_restore_delivers_what_was_sent_in_order(
    wire: Wire, ada: Client, connect: Connect
) -> None:
    far = await connect("far")
    to_far, to_ada = await listen(far, "to.far"), await listen(ada, "to.ada")
    await ada.publish("to.far", b"0")
    await eventually(lambda: to_far == [b"0"])

    wire.cut()
    wire.cut()
    assert wire.is_cut
    for number in (b"1", b"2", b"3"):
        await ada.publish("to.far", number)
        await far.publish("to.ada", number)
    await far.flush()
    await asyncio.sleep(QUIET)
    assert (to_far, to_ada) == ([b"0"], [])
    assert ada.is_connected

    wire.restore()
    wire.restore()
    await eventually(lambda: to_far == [b"0", b"1", b"2", b"3"] and to_ada == [b"1", b"2", b"3"])
    assert ada.stats["reconnects"] == 0, "neither side has noticed anything"


async def test_a_wire_that_is_cut_again_in_the_same_moment_lets_nothing_pass(
    wire: Wire, ada: Client, connect: Connect
) -> None:
    heard = await listen(await connect("far"), "to.far")
    wire.cut()
    await ada.publish("to.far", b"1")
    await asyncio.sleep(QUIET)
    wire.restore()
    wire.cut()
    await asyncio.sleep(QUIET)
    assert heard == []
    wire.restore()
    await eventually(lambda: heard == [b"1"])


async def test_new_connections_hang_while_it_is_cut(broker: Broker, wire: Wire) -> None:
    wire.cut()
    late = asyncio.create_task(broker.connect("late", servers=f"nats://127.0.0.1:{wire.port}", connect_timeout=4))
    await asyncio.sleep(QUIET)
    assert not late.done()
    wire.restore()
    await sever(await late)


async def test_after_a_restart_of_the_broker_a_client_comes_back_through_the_same_port(
    broker: Broker, wire: Wire, ada: Client, connect: Connect
) -> None:
    port = wire.port
    await broker.kill()
    await eventually(lambda: not ada.is_connected)
    await broker.start()
    await eventually(lambda: ada.is_connected)
    await ada.flush()
    assert wire.port == port
    assert {server.uri.port for server in ada._server_pool} == {port}, "it knows no way around the wire"


async def test_a_broker_that_dies_behind_a_cut_is_noticed_after_the_restore(
    broker: Broker, wire: Wire, ada: Client
) -> None:
    wire.cut()
    await broker.kill()
    await asyncio.sleep(QUIET)
    assert ada.is_connected
    await broker.start()
    wire.restore()
    await eventually(lambda: ada.stats["reconnects"] == 1 and ada.is_connected)
    await ada.flush()


async def test_without_a_broker_a_connection_is_refused_and_works_later(broker: Broker, wire: Wire) -> None:
    await broker.kill()
    one = f"nats://127.0.0.1:{wire.port}"
    with pytest.raises(BrokerUnreachable):
        await Broker(one).connect("ada", max_reconnect_attempts=0, token=broker._token)
    await broker.start()
    await sever(await broker.connect("ada", servers=one))


# --- byte by byte ----------------------------------------------------------------------------------


class Ends:
    """A plain TCP connection through a wire, and both ends of it."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def open(self) -> None:
        self.server = await asyncio.start_server(lambda *streams: self.accepted.put_nowait(streams), "127.0.0.1", 0)
        self.wire = Wire(self.server.sockets[0].getsockname()[1])
        await self.wire.open()
        self.near_reader, self.near = await asyncio.open_connection("127.0.0.1", self.wire.port)
        self.far_reader, self.far = await asyncio.wait_for(self.accepted.get(), 5)

    async def close(self) -> None:
        await self.wire.close()
        self.server.close()
        for writer in (self.near, self.far):
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ends = Ends()
    await ends.open()
    yield ends
    await ends.close()


@pytest.mark.parametrize("side", ["near", "far"])
async def test_when_one_side_closes_the_other_gets_all_and_is_closed(ends: Ends, side: str) -> None:
    closing, reader = (ends.near, ends.far_reader) if side == "near" else (ends.far, ends.near_reader)
    closing.write(b"goodbye")
    closing.close()
    assert await asyncio.wait_for(reader.read(), 5) == b"goodbye"


@pytest.mark.parametrize("side", ["near", "far"])
@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_cut_hides_that_one_side_has_closed_until_the_restore(ends: Ends, side: str, how: str) -> None:
    closing, reader = (ends.near, ends.far_reader) if side == "near" else (ends.far, ends.near_reader)
    ends.wire.cut()
    getattr(closing.transport, how)()
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(QUIET)
    assert not reading.done()
    ends.wire.restore()
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reading, 5) == b""


@pytest.mark.parametrize("how", [Wire.abort, Wire.close])
async def test_what_a_closed_wire_still_held_gets_out_nowhere(ends: Ends, how: Callable[[Wire], object]) -> None:
    ends.wire.cut()
    ends.near.write(b"an ack of the dead")
    ends.far.write(b"a job for the dead")
    await asyncio.sleep(QUIET)
    done = how(ends.wire)
    if asyncio.iscoroutine(done):
        await done
    ends.wire.restore()
    for reader in (ends.near_reader, ends.far_reader):
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_a_wire_that_is_closed_with_patience_lets_the_last_words_pass(ends: Ends) -> None:
    ends.near.write(b"goodbye")
    ends.near.close()
    await ends.wire.close(within=5)
    assert await asyncio.wait_for(ends.far_reader.read(), 5) == b"goodbye"


async def test_of_a_new_connection_the_far_side_hears_only_after_the_restore(ends: Ends) -> None:
    ends.wire.cut()
    _, writer = await asyncio.open_connection("127.0.0.1", ends.wire.port)
    writer.write(b"hello")
    await asyncio.sleep(QUIET)
    assert ends.accepted.empty()
    ends.wire.restore()
    reader, far = await asyncio.wait_for(ends.accepted.get(), 5)
    assert await asyncio.wait_for(reader.read(5), 5) == b"hello"
    for one in (writer, far):
        one.close()
        await one.wait_closed()


async def test_with_nobody_at_the_far_end_a_connection_is_closed_at_once(ends: Ends) -> None:
    ends.server.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", ends.wire.port)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_closing_does_not_wait_for_a_receiver_that_does_not_read(ends: Ends) -> None:
    ends.near.write(bytes(16_000_000))
    await eventually(lambda: any(end.transport.get_write_buffer_size() for end in ends.wire._ends))
    await asyncio.wait_for(ends.wire.close(), 5)
    with contextlib.suppress(ConnectionError):
        assert len(await asyncio.wait_for(ends.far_reader.read(), 5)) < 16_000_000


async def test_a_closed_wire_leaves_nothing_and_can_be_closed_again(ends: Ends) -> None:
    tasks = asyncio.all_tasks()
    port = ends.wire.port
    ends.wire.cut()
    waiting = socket.create_connection(("127.0.0.1", port))
    await eventually(lambda: ends.wire._connecting)
    await ends.wire.close()
    await ends.wire.close(within=5)
    waiting.close()
    assert asyncio.all_tasks() == tasks
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_much_data_in_both_directions_is_neither_lost_nor_kept_in_our_memory(ends: Ends) -> None:
    much = bytes(range(256)) * 65536  # 16 MB, more than the system holds
    written = [ends.near, ends.far]
    for writer in written:
        writer.write(much)
    await asyncio.sleep(QUIET)
    held = sum(end.transport.get_write_buffer_size() for end in ends.wire._ends)
    assert held < 2_000_000, "a receiver that doesn't read holds up its sender, not us"
    for cut in (True, False):
        ends.wire.cut() if cut else ends.wire.restore()
    read = asyncio.gather(*(reader.readexactly(len(much)) for reader in (ends.near_reader, ends.far_reader)))
    assert await asyncio.wait_for(read, 30) == [much, much]
