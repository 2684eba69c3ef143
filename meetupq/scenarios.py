"""What happens on the stage when nobody presses a button: the talk's workload as data, and who performs it.

    async with Stage("talk") as stage:
        await perform(stage, seconds=60)

Which jobs fail, and when somebody is killed, depends on a seed only: it is the same in every run. Whom a kill hits is
seen on the spot, since only the broker decides who works: as a presenter would, it takes somebody with a job in hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from meetupq.errors import NotSeen
from meetupq.stage import Stage
from meetupq.tasks import together
from meetupq.timeline import Timeline

Moment = Callable[[float], Awaitable[bool]]
"""Waits until so many seconds after the beginning, or for the end; says whether the show goes on."""


@dataclass(frozen=True)
class Traffic:
    """Jobs of one kind, published at a steady pace to a crew of their own; two in every ten always fail.

    Attributes:
        kind, priority: the subject is jobs.PRIORITY.KIND.
        name: jobs are called NAME-1, NAME-2, ...
        every: seconds from one job to the next.
        workers: who takes them.
    """

    kind: str
    priority: str
    name: str
    every: float
    workers: tuple[str, ...]

    def jobs(self, seconds: float, seed: int) -> Iterator[tuple[float, str, bool]]:
        """When each job is published, its name, and whether it fails at every attempt."""
        for number in range(math.ceil(seconds / self.every)):
            block, place = divmod(number, 10)
            poison = random.Random(f"{seed} {self.kind} {block}").sample(range(10), 2)
            yield number * self.every, f"{self.name}-{number + 1}", place in poison


TRAFFIC: Final = (
    Traffic("send_email", "high", "email", 1.0, tuple("ada bo cy dan eve flo gus hal ida jo".split())),
    Traffic("calc_stats", "low", "stats", 5.0, ("kim", "lou")),
)
LOBBYISTS: Final = ("mia", "ned", "oto")
LONG_WORK: Final = {"import-eu": math.inf, "import-us": 3.0, "reindex": 0.6}
"""How long each item takes, in TTLs of the lease. The short one leaves its worker without work, and so somebody stands
by when the owner of the endless one dies."""
WIDOWED: Final = "import-eu"
KILL_EVERY: Final = (4.0, 8.0)  # seconds from one kill of a queue worker to the next, drawn between these two
ABSENCE: Final = 3.0  # seconds that a killed queue worker stays away; an owner stays away for two TTLs


def kills(seconds: float, seed: int) -> Iterator[tuple[float, float]]:
    """When a queue worker dies, and which: a share (0 to 1) of those who have a job in hand then."""
    dice = random.Random(str(seed))  # as a number, -1 would be 1
    at = dice.uniform(*KILL_EVERY) / 2
    while at < seconds:
        yield at, dice.random()
        at += dice.uniform(*KILL_EVERY)


def owner_deaths(seconds: float, ttl: float) -> Iterator[float]:
    """When the owner of the endless item dies."""
    return itertools.takewhile(lambda at: at < seconds, itertools.count(0.4 * ttl, 2.4 * ttl))


async def perform(stage: Stage, *, seconds: float, seed: int = 1) -> None:
    """Launch the crew, put up the long work, publish and kill, and return when the time is over.

    Nothing is waited for at the end: the crew is still at work then.

    Raises:
        MeetupqError: the broker refuses or is gone.
    """
    for flow in TRAFFIC:
        await stage.launch(*flow.workers, priority=flow.priority)
    await stage.launch(*LOBBYISTS, role="leases")
    ttl = stage.timing.lease_ttl
    for item, ttls in LONG_WORK.items():
        takes = min(ttls * ttl, seconds + 2 * ttl)
        await stage.add_work(item, seconds=takes, steps=max(10, round(takes / (0.4 * ttl))))
    clock = asyncio.get_running_loop().time
    beginning = clock()

    async def moment(at: float) -> bool:
        await asyncio.sleep(beginning + min(at, seconds) - clock())
        return at < seconds

    await together(
        **{flow.name: _publish(stage, flow, seconds, seed, moment) for flow in TRAFFIC},
        kills=_kill_workers(stage, seconds, seed, moment),
        owner_deaths=_kill_owners(stage, seconds, moment),
    )
    await moment(seconds)


async def _publish(stage: Stage, flow: Traffic, seconds: float, seed: int, moment: Moment) -> None:
    for at, job, poison in flow.jobs(seconds, seed):
        await moment(at)
        await stage.publish(job, kind=flow.kind, priority=flow.priority, ending="silence" if poison else "ack")


async def _kill_workers(stage: Stage, seconds: float, seed: int, moment: Moment) -> None:
    for at, draw in kills(seconds, seed):
        await moment(at)
        crew = [w for w in Timeline(stage.history).workers.values() if stage.crew.is_at_work(w.name, "queue")]
        if chosen := [worker for worker in crew if worker.holds] or crew:
            await _send_away(stage, chosen[int(draw * len(chosen))].name, at + ABSENCE, moment)


async def _kill_owners(stage: Stage, seconds: float, moment: Moment) -> None:
    ttl = stage.timing.lease_ttl
    for at in owner_deaths(seconds, ttl):
        await moment(at)
        with contextlib.suppress(NotSeen):
            await stage.history.until("claimed", job=WIDOWED, within=ttl)
        if owner := Timeline(stage.history).items[WIDOWED].owner:
            await _send_away(stage, owner.worker, at + 2 * ttl, moment)


async def _send_away(stage: Stage, worker: str, until: float, moment: Moment) -> None:
    await stage.kill(worker)
    if await moment(until):
        await stage.relaunch(worker)
