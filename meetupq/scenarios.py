"""What happens on the stage when nobody presses a button: the talk's workload as data, and the one who performs it.

    async with Stage("talk") as stage:
        await perform(stage, MEETUP, seconds=60)
        balance = await balanced(stage)

A script is a list of cues that depends on the scenario, the durations and a seed only: the same jobs fail in every
run, and the kills come at the same moments. Whom a kill hits is seen on the spot, since only the broker decides who
works: as a presenter would, it takes somebody who has a job in hand.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from meetupq import subjects
from meetupq.broker import asking
from meetupq.errors import NotSeen, QueueError
from meetupq.history import Event
from meetupq.stage import Stage
from meetupq.timeline import JOB_STATES, JobState, Timeline
from meetupq.timing import Timing

# --- the data ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """Jobs of one kind, published at a steady pace to a crew of their own.

    Attributes:
        kind, priority: the subject is jobs.PRIORITY.KIND.
        name: jobs are called NAME-1, NAME-2, ...
        every: seconds from one job to the next.
        poison_in_ten: how many of every ten jobs fail in silence at every attempt.
        workers: who takes them.
    """

    kind: str
    priority: str
    name: str
    every: float
    poison_in_ten: int
    workers: tuple[str, ...]

    def poisoned(self, number: int, seed: int) -> bool:
        """Whether job `number` (from 1) fails at every attempt; depends on the seed and the number only."""
        block, place = divmod(number - 1, 10)
        return place in random.Random(f"{seed} {self.kind} {block}").sample(range(10), self.poison_in_ten)


@dataclass(frozen=True)
class Scenario:
    """A workload for both patterns.

    Attributes:
        traffic: what is published, and who works on it.
        lobbyists: the workers that lobby for long work.
        long_work: the items and how long each takes, in TTLs of the lease; None: longer than the run.
        widowed: the item whose owner is killed again and again.
        widow_every: when its owner dies first, and how long after that the next one does, in TTLs.
        kill_every: from one kill of a queue worker to the next, seconds, drawn between these two.
        absence: how long a killed queue worker stays away, seconds; a killed owner stays away for two TTLs.
    """

    traffic: tuple[Traffic, ...]
    lobbyists: tuple[str, ...]
    long_work: tuple[tuple[str, float | None], ...]
    widowed: str
    widow_every: tuple[float, float] = (0.4, 2.4)
    kill_every: tuple[float, float] = (4.0, 8.0)
    absence: float = 3.0


MEETUP: Final = Scenario(
    traffic=(
        Traffic("send_email", "high", "email", 1.0, 2, tuple("ada bo cy dan eve flo gus hal ida jo".split())),
        Traffic("calc_stats", "low", "stats", 5.0, 2, ("kim", "lou")),
    ),
    lobbyists=("mia", "ned", "oto"),
    # The short one leaves its worker without work, and so somebody stands by when the owner of the widowed one dies.
    long_work=(("import-eu", None), ("import-us", 3.0), ("reindex", 0.6)),
    widowed="import-eu",
)
"""The talk's workload: an e-mail every second, statistics every five, two jobs in ten that always fail."""


# --- the script --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Publish:
    """One job goes into the queue, `at` seconds after the beginning."""

    at: float
    job: str
    kind: str
    priority: str
    poison: bool


@dataclass(frozen=True)
class Kill:
    """A queue worker dies: the `draw`-th part (0 to 1) of those who have a job in hand then."""

    at: float
    scene: int
    draw: float


@dataclass(frozen=True)
class KillOwner:
    """The owner of an item of long work dies."""

    at: float
    scene: int
    item: str


@dataclass(frozen=True)
class Return:
    """Whoever died in this scene is launched again."""

    at: float
    scene: int


Cue = Publish | Kill | KillOwner | Return


def script(scenario: Scenario, timing: Timing, *, seconds: float, seed: int = 1) -> tuple[Cue, ...]:
    """All cues of a run, in order of time. The same arguments give the same script."""
    cues = [*_publishing(scenario, seconds, seed), *_killing(scenario, timing, seconds, seed)]
    return tuple(sorted((cue for cue in cues if cue.at < seconds), key=lambda cue: cue.at))


def _publishing(scenario: Scenario, seconds: float, seed: int) -> Iterator[Cue]:
    for flow in scenario.traffic:
        number = 1
        while (at := (number - 1) * flow.every) < seconds:
            yield Publish(at, f"{flow.name}-{number}", flow.kind, flow.priority, flow.poisoned(number, seed))
            number += 1


def _killing(scenario: Scenario, timing: Timing, seconds: float, seed: int) -> Iterator[Cue]:
    scenes = itertools.count(1)
    first, period = (ttls * timing.lease_ttl for ttls in scenario.widow_every)
    for times in range(ceil(max(0.0, seconds - first) / period)):
        at, scene = first + times * period, next(scenes)
        yield KillOwner(at, scene, scenario.widowed)
        yield Return(at + 2 * timing.lease_ttl, scene)
    dice = random.Random(seed)
    at = dice.uniform(*scenario.kill_every) / 2
    while at < seconds:
        scene = next(scenes)
        yield Kill(at, scene, dice.random())
        yield Return(at + scenario.absence, scene)
        at += dice.uniform(*scenario.kill_every)


# --- the performance ---------------------------------------------------------------------------------


async def perform(
    stage: Stage,
    scenario: Scenario = MEETUP,
    *,
    seconds: float,
    seed: int = 1,
    tick: Callable[[float], None] = lambda elapsed: None,
    tick_every: float = 0.5,
) -> None:
    """Launch the crew, put up the long work, follow the script, and return when the time is over.

    Nothing is waited for at the end: the crew is still at work then.

    Args:
        tick: called with the seconds since the beginning, every `tick_every` seconds and once at the end.

    Raises:
        MeetupqError: the broker refuses or is gone.
    """
    for flow in scenario.traffic:
        await stage.launch(*flow.workers, priority=flow.priority)
    await stage.launch(*scenario.lobbyists, role="leases")
    ttl = stage.timing.lease_ttl
    for item, ttls in scenario.long_work:
        takes = seconds + 2 * ttl if ttls is None else ttls * ttl
        await stage.add_work(item, seconds=takes, steps=max(10, round(takes / (0.4 * ttl))))
    cues = list(script(scenario, stage.timing, seconds=seconds, seed=seed))
    victims: dict[int, str] = {}
    clock = asyncio.get_running_loop().time
    beginning = clock()
    while (elapsed := clock() - beginning) < seconds:
        tick(elapsed)
        wake = min(elapsed + tick_every, seconds)
        while cues and cues[0].at <= wake:
            cue = cues.pop(0)
            await asyncio.sleep(beginning + cue.at - clock())
            await _act(stage, cue, victims)
        await asyncio.sleep(beginning + wake - clock())
    tick(seconds)


async def _act(stage: Stage, cue: Cue, victims: dict[int, str]) -> None:
    match cue:
        case Publish(job=job, kind=kind, priority=priority, poison=poison):
            await stage.publish(job, kind=kind, priority=priority, poison=poison)
        case Kill(scene=scene, draw=draw):
            timeline = Timeline(stage.history)
            at_work = [w for name, w in timeline.workers.items() if stage.crew.is_at_work(name, "queue")]
            chosen = [worker.name for worker in at_work if worker.holds] or [worker.name for worker in at_work]
            if chosen:
                victims[scene] = chosen[int(draw * len(chosen))]
                await stage.kill(victims[scene])
        case KillOwner(scene=scene, item=item):
            try:
                await stage.history.until("claimed", job=item, within=stage.timing.lease_ttl)
            except NotSeen:
                return  # nobody has ever owned it, so nobody can be killed
            owner = Timeline(stage.history).items[item].owner
            if owner and stage.crew.is_at_work(owner.worker):
                victims[scene] = owner.worker
                await stage.kill(owner.worker)
        case Return(scene=scene):
            if scene in victims and not stage.crew.is_at_work(victims[scene]):
                await stage.relaunch(victims[scene])


# --- the balance -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Balance:
    """Where the jobs are at one moment: by the history, and by the broker's own counts.

    Attributes:
        events: the history up to this moment.
        at: the moment, in seconds of the history's clock.
        published: the jobs whose receipt the broker gave.
        states: how many jobs are in each of the six states.
        stored: how many jobs the broker has ever stored since the stage was opened.
        queued: how many jobs lie in the broker's stream `jobs`.
        letters: how many letters lie in its stream `dead_letters`.
    """

    events: tuple[Event, ...]
    at: float
    published: int
    states: dict[JobState, int]
    stored: int
    queued: int
    letters: int

    @property
    def in_flight(self) -> int:
        """Jobs that are neither done nor dead: waiting, in flight, retrying or stuck."""
        return sum(count for state, count in self.states.items() if state not in ("done", "dead"))

    @property
    def rows(self) -> tuple[tuple[str, int, int], ...]:
        """What is counted, by the history, by the broker. The broker forgets a job that is done: that row is
        what is missing in its books."""
        return (
            ("published", self.published, self.stored),
            ("acked (done)", self.states["done"], self.stored - self.letters - self.queued),
            ("dead", self.states["dead"], self.letters),
            ("in flight", self.in_flight, self.queued),
        )

    @property
    def adds_up(self) -> bool:
        """Whether published = done + dead + in flight, and the broker counts the same."""
        whole = self.states["done"] + self.states["dead"] + self.in_flight
        return self.published == whole and all(ours == theirs for _, ours, theirs in self.rows)


async def balanced(stage: Stage, *, within: float = 5.0) -> Balance:
    """Compare the history with the broker while the work goes on.

    The two can't be read in one moment, and an ack is in the broker's books a little before it is in ours. So it is
    looked at again until both agree, for `within` seconds at most; then the last look is returned as it is.

    Raises:
        QueueError, BrokerUnreachable: the broker can't be asked.
    """
    client = await stage.broker.connect("balance")
    jetstream = client.jetstream(timeout=2)
    clock = asyncio.get_running_loop().time
    deadline = clock() + within
    try:
        while True:
            balance = await _look(stage, jetstream)
            if balance.adds_up or clock() > deadline:
                return balance
            await asyncio.sleep(0.1)
    finally:
        await client.close()


async def _look(stage: Stage, jetstream: Any) -> Balance:
    with asking("count the jobs and the dead letters", QueueError):
        dead = await jetstream.stream_info(subjects.DEAD)
        jobs = await jetstream.stream_info(subjects.JOBS)
    events, now = stage.history.snapshot(), stage.history.now()
    counts = Timeline(events).counts
    return Balance(
        events=events,
        at=now,
        published=len({event.job for event in events if event.kind == "published"}),
        states={state: counts[state] for state in JOB_STATES},
        stored=jobs.state.last_seq,
        queued=jobs.state.messages,
        letters=dead.state.messages,
    )
