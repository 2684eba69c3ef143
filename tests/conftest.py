"""A real nats-server for every test, a fresh one each, and connections to it that are gone when the test is over."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from nats.aio.client import Client

from meetupq.broker import Broker, sever
from meetupq.dead_letters import DeadLetters
from meetupq.history import History
from meetupq.leases import Leases
from meetupq.tasks import drop
from meetupq.timing import Timing
from meetupq.work_items import WorkItems
from meetupq.work_queue import WorkQueue

Connect = Callable[..., Awaitable[Client]]
Run = Callable[..., "asyncio.Task[object]"]


@pytest.fixture(autouse=True)
def no_outside_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer's shell says must not change a test. (MEETUPQ_NATS_SERVER may: it says what to test with.)"""
    for name in ("MEETUPQ_NATS_URL", "MEETUPQ_TIMING"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def timing() -> Timing:
    return Timing.preset("ci")


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        yield broker


@pytest.fixture
async def connect(broker: Broker) -> AsyncIterator[Connect]:
    """Makes connections: `await connect("ada")`."""
    clients: list[Client] = []

    async def connect(name: str = "test") -> Client:
        clients.append(await broker.connect(name))
        return clients[-1]

    yield connect
    for client in clients:
        await sever(client)


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    """Runs something in the background until the test is over; what fails there fails the test."""
    tasks: list[asyncio.Task[object]] = []

    def run(work: Awaitable[object]) -> asyncio.Task[object]:
        tasks.append(asyncio.ensure_future(work))
        return tasks[-1]

    yield run
    failed = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    await drop(*tasks)
    for error in failed:
        if error is not None:
            raise error


@pytest.fixture
async def queue(connect: Connect, timing: Timing, history: History) -> WorkQueue:
    """The work queue, set up, on a connection of its own."""
    queue = WorkQueue(await connect("queue"), timing, history)
    await queue.ensure()
    return queue


@pytest.fixture
async def dead_letters(queue: WorkQueue) -> DeadLetters:
    """The dead letters of `queue`, set up; nobody keeps them until a test does."""
    dead_letters = DeadLetters(queue)
    await dead_letters.ensure()
    return dead_letters


@pytest.fixture
async def leases(connect: Connect, timing: Timing, history: History) -> Leases:
    """The bucket of leases, set up, on a connection of its own."""
    leases = Leases(await connect("leases"), timing, history)
    await leases.ensure()
    return leases


@pytest.fixture
async def items(connect: Connect) -> WorkItems:
    """The list of long work, set up, on a connection of its own."""
    items = WorkItems(await connect("items"))
    await items.ensure()
    return items


async def eventually(condition: Callable[[], object], within: float = 5.0) -> None:
    """Wait for something that no event tells about, such as the end of a process."""
    limit = time.monotonic() + within
    while not condition():
        assert time.monotonic() < limit, f"not within {within:g} s: {condition}"
        await asyncio.sleep(0.01)


async def jobs_in_stream(client: Client) -> int:
    """How many jobs the broker holds, dead or alive."""
    info = await client.jetstream().stream_info("jobs")
    return info.state.messages


@contextlib.contextmanager
def measured() -> Iterator[Callable[[], float]]:
    """`with measured() as seconds: ...` then `seconds()`."""
    start = time.monotonic()
    end: list[float] = []
    yield lambda: (end[0] if end else time.monotonic()) - start
    end.append(time.monotonic())
