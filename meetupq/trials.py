"""Takeovers, measured: many owners are killed, and each time it is written down how late the next one came."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import secrets
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from nats.aio.client import Client

from meetupq.broker import Broker, asking, sever
from meetupq.errors import BrokerUnreachable, LeaseError
from meetupq.history import History
from meetupq.leases import Lease
from meetupq.subjects import is_seconds
from meetupq.takeovers import Takeover, takeover
from meetupq.tasks import drop
from meetupq.timing import Timing


@dataclass(frozen=True)
class Trial:
    """What came of it.

    Attributes:
        how: the kind of takeover.
        delays: seconds from the nominal expiry (the last renewal's sending, and one TTL) to the moment when the next
            owner knew that the lease was its own; one for each kill, in the order of the kills.
        after_note: seconds from the moment when the first standby saw the broker's note of the end to the same moment;
            only where there was a note.
        timing: in force.
        standbys, others: how many waited for each lease; how many other leases were alive in the bucket.
    """

    how: str
    delays: tuple[float, ...]
    after_note: tuple[float, ...]
    timing: Timing
    standbys: int
    others: int

    @property
    def median(self) -> float:
        """Half of the takeovers came within so many seconds after the nominal expiry."""
        return self.percentile(50)

    @property
    def worst(self) -> float:
        """All of them did."""
        return max(self.delays)

    def percentile(self, share: float) -> float:
        """`share` per cent of the takeovers came within so many seconds after the nominal expiry (nearest rank)."""
        return sorted(self.delays)[max(math.ceil(len(self.delays) * share / 100) - 1, 0)]

    def __str__(self) -> str:
        late = ", ".join(f"{1000 * value:.0f}" for value in (self.median, self.percentile(95), self.worst))
        return f"{self.how}: {len(self.delays)} kills, later than the TTL by {late} ms (median, 95 %, worst)"


async def measure(
    broker: Broker,
    how: str,
    timing: Timing,
    *,
    kills: int = 20,
    standbys: int = 3,
    others: int = 20,
    spread: float | None = None,
    seed: int = 1,
) -> Trial:
    """Kill owners, each at another moment between two renewals, and time who comes next. Takes `spread` and 2 TTLs.

    Args:
        broker: where; the trial has a bucket of its own, which is removed in the end.
        how: "poll", "marker", "key_ttl" or "observe".
        timing: `lease_ttl`, `renew`, `margin`, and `lobby` for the poller.
        kills: how many owners die; one lease each.
        standbys: how many wait for all of these leases, each on a connection of its own.
        others: how many more leases are alive in the bucket.
        spread: the seconds within which the owners begin; None: one TTL.
        seed: of the moments.

    Raises:
        LeaseError: an unknown kind, no kill or nobody to stand by; or a takeover that did not come, or was none.
    """
    if not isinstance(timing, Timing):
        raise LeaseError(f"timing is {timing!r}, but a trial takes a Timing, such as Timing.preset('ci')")
    for what, value, least in (("kills", kills, 1), ("standbys", standbys, 1), ("others", others, 0)):
        if type(value) is not int or not least <= value <= 1000:
            raise LeaseError(f"{what} is {value!r}, but a trial takes {least} to 1000")
    if spread is not None and not is_seconds(spread):
        raise LeaseError(f"spread is {spread!r}, but a trial takes seconds, from 0 on, or None for one TTL")
    async with AsyncExitStack() as stack:
        trial = _Trial(broker, how, timing, stack)
        await trial.open(standbys, others)
        moments = random.Random(seed)
        step = (timing.lease_ttl if spread is None else spread) / kills
        dying = [trial.kill(f"item-{n}", n * step, moments.uniform(0.05, 0.9)) for n in range(kills)]
        delays = await trial.all_of(dying)
    return Trial(how, tuple(delays), tuple(trial.after_note), timing, standbys, others)


class _Trial:
    def __init__(self, broker: Broker, how: str, timing: Timing, stack: AsyncExitStack) -> None:
        self.broker, self.how, self.timing = broker, how, timing
        self.bucket = f"trial_{how}_{secrets.token_hex(4)}"
        self._stack = stack
        self._standbys: list[Takeover] = []
        self._removes = False
        self.after_note: list[float] = []

    async def _connect(self) -> Client:
        client = await self.broker.connect("trial")
        self._stack.push_async_callback(sever, client)
        return client

    async def _worker(self) -> Takeover:
        worker = takeover(self.how, await self._connect(), self.timing, History(), self.bucket)
        worker.leases.marker = None if self.how == "poll" else self.timing.marker
        if not self._removes:
            self._removes = True
            self._stack.push_async_callback(self._remove, worker)  # first: it may be refused when it is made already
        await worker.leases.ensure()
        return worker

    async def _remove(self, worker: Takeover) -> None:
        # If the broker is away the bucket stays, and what went wrong is not to be covered by that.
        with contextlib.suppress(LeaseError, BrokerUnreachable), asking("remove the trial's bucket", LeaseError):
            await worker.leases.jetstream.delete_key_value(self.bucket)

    async def all_of(self, dying: list[Coroutine[Any, Any, float]]) -> list[float]:
        """What they return, in their order. If one fails the others are ended before anything is taken down."""
        tasks = [asyncio.ensure_future(one) for one in dying]
        try:
            return await asyncio.gather(*tasks)
        finally:
            await drop(*tasks)

    def _background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._stack.push_async_callback(drop, task)
        return task

    async def open(self, standbys: int, others: int) -> None:
        owner = await self._worker()
        for number in range(others):
            self._background(_mine(await owner.claim(f"other-{number}", "owner")).hold(asyncio.Event().wait()))
        for _ in range(standbys):
            self._standbys.append(await self._worker())
            self._background(self._standbys[-1].run())

    async def kill(self, key: str, start: float, phase: float) -> float:
        """Let an owner live for a while, kill it, and return how late the next one came."""
        renew = self.timing.renew
        await asyncio.sleep(start)  # so that neither renewals nor deaths come all at once
        owner = await self._worker()
        lease = _mine(await owner.claim(key, "owner"))
        holding = self._background(lease.hold(asyncio.Event().wait()))
        standing_by = [self._background(self._stand_by(standby, key)) for standby in self._standbys]
        await owner.leases.history.until("renewed", within=10 * renew)
        # Never while a renewal is under way: it may arrive or not, and then nobody knows the nominal expiry.
        await asyncio.sleep(phase * renew)
        await sever(owner.leases.client)
        await drop(holding)
        expiry = lease.valid_until + self.timing.margin
        patience = expiry - time.monotonic() + 2 * self.timing.lease_ttl + 5
        done, waiting = await asyncio.wait(standing_by, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise LeaseError(f"nobody took {key} over within {patience:.0f} s")
        await drop(*waiting)
        moment, heir = min((task.result() for task in done), key=itemgetter(0))
        if len(done) > 1 or heir.token <= lease.token:
            raise LeaseError(f"{key} had {len(done)} owners at once, or one with an older token")
        if heard := [standby.heard[key] for standby in self._standbys if key in standby.heard]:
            self.after_note.append(moment - min(heard))
        return float(moment - expiry)

    async def _stand_by(self, standby: Takeover, key: str) -> tuple[float, Lease]:
        lease = await standby.take_over(key, "standby")
        return time.monotonic(), lease


def _mine(lease: Lease | None) -> Lease:
    if lease is None:
        raise LeaseError("somebody else writes into the bucket of this trial")
    return lease
