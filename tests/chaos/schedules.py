"""Seeded schedules of kill, freeze, thaw, cut and restore over 6 workers and 8 items, and what must hold in each.

python tests/chaos/schedules.py [--seeds 300] [--first 1] [--together 3] [--mutant NAME]

Each schedule opens a stage of its own, lets six workers (three of them processes) lobby for eight items, breaks them at
random some two dozen times, mends everything, and waits until the work is done. Then it looks at the history, the list
of work, and the ledger. `--mutant` takes one safeguard away: the schedules must notice. The exit code is 1 if a
schedule broke something; with a mutant, if none did.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final
from unittest.mock import patch

from meetupq.errors import LeaseLost, MeetupqError
from meetupq.history import Event
from meetupq.leases import Lease
from meetupq.ledger import Ledger
from meetupq.stage import Stage
from meetupq.takeovers import TAKEOVERS
from meetupq.timing import Timing

TIMING: Final = Timing(lease_ttl=1.5, renew=0.3, margin=0.4, marker=1, lobby=0.2)
WORKERS: Final = ("ada", "bo", "cy", "dan", "eve", "flo")
ITEMS: Final = tuple(f"item-{number}" for number in range(8))
STEPS: Final = 8
SLACK: Final = 0.3
"""Seconds that a busy machine may take to do what is due."""
MEND_LIMIT: Final = 60.0

Problems = list[str]


@dataclass
class Schedule:
    """What is done to the workers: drawn as it goes, since what can be done depends on how they are."""

    seed: int
    frozen: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)

    def next_action(self, draw: random.Random, processes: set[str]) -> tuple[str, str]:
        """The next action and its victim."""
        name = draw.choice(WORKERS)
        if name in self.dead:
            return "relaunch", name
        choices = ["restore" if name in self.cut else "cut", "kill"]
        if name in processes:
            choices += ["thaw" if name in self.frozen else "freeze"] * 2
        return draw.choice([*choices, choices[0]]), name

    def note(self, action: str, name: str) -> None:
        """Remember how the victim is now."""
        self.done.append(f"{action} {name}")
        if action in ("kill", "relaunch"):
            for group in (self.frozen, self.cut, self.dead):
                group.discard(name)
        {"freeze": self.frozen, "cut": self.cut, "kill": self.dead}.get(action, set()).add(name)
        {"thaw": self.frozen, "restore": self.cut}.get(action, set()).discard(name)


async def play(seed: int, *, actions: int = 24, processes: bool = True) -> tuple[Stage, Problems]:
    """Run one schedule. Returns the stage, closed, with its history and ledger; and what did not hold."""
    draw = random.Random(seed)
    alone = set(WORKERS[::2]) if processes else set()
    schedule = Schedule(seed)
    async with Stage(TIMING) as stage:
        await stage.add_work(*ITEMS, seconds=draw.uniform(1.0, 2.5), steps=STEPS)
        for name in WORKERS:
            how = draw.choice(sorted(set(TAKEOVERS) - {"key_ttl"}))  # its TTL takes whole seconds
            slots = draw.choice((1, 1, 2))
            await stage.launch(name, role="leases", takeover=how, slots=slots, process=name in alone)
        for _ in range(actions):
            await asyncio.sleep(draw.expovariate(4.0))
            action, name = schedule.next_action(draw, alone)
            await getattr(stage, action)(name)
            schedule.note(action, name)
        for name in sorted(schedule.frozen):
            await stage.thaw(name)
        for name in sorted(schedule.cut):
            await stage.restore(name)
        for name in sorted(schedule.dead):
            await stage.relaunch(name)
        problems = await _until_done(stage)
        items = {item.name: item for item in await stage.items.all()}
        failures = [str(failure) for failure in stage.failures]
    problems += [f"in the background: {failure}" for failure in failures]
    problems += [f"{name} is lost" for name in ITEMS if name not in items]
    problems += [f"{item.name} has {item.done} of {item.steps} steps" for item in items.values() if not item.finished]
    problems += verdict(stage)
    return stage, [f"seed {seed}: {problem} (after {', '.join(schedule.done)})" for problem in problems]


async def _until_done(stage: Stage) -> Problems:
    limit = time.monotonic() + MEND_LIMIT
    while left := await stage.items.unfinished():
        if time.monotonic() > limit:
            return [f"after {MEND_LIMIT:g} s without faults {len(left)} items are not finished"]
        await asyncio.sleep(0.05)
    return []


def verdict(stage: Stage) -> Problems:
    """What must hold, whatever was done."""
    events = list(stage.history)
    return [
        *_ledger_goes_forward(stage.ledger.fenced),
        *_each_step_once(stage.ledger.fenced, events),
        *_tokens_grow(events),
        *_owners_stop_in_time(events),
        *_losses_are_true(events),
    ]


def _ledger_goes_forward(ledger: Ledger) -> Problems:
    """Never two accepted writes with decreasing tokens."""
    return [f"the ledger took {write}" for write in ledger.damage()]


def _each_step_once(ledger: Ledger, events: list[Event]) -> Problems:
    """Every item is finished once: the effect of each step is in the ledger, once, in order; so is its progress."""
    applied: dict[str, list[int]] = defaultdict(list)
    for write in ledger.applied:
        applied[write.item].append(write.step)
    problems = [f"{item}: effects of the steps {applied[item]}" for item in ITEMS if applied[item] != ALL_STEPS]
    for item in ITEMS:
        told = [int(event.detail.split()[0]) for event in events if event.kind == "checkpointed" and event.job == item]
        finished = sum(event.kind == "finished" and event.job == item for event in events)
        # A worker that is killed in the very moment of its success can't tell of it.
        problems += [f"{item}: progress told as {told}"] * (told != sorted(set(told)))
        problems += [f"{item} was finished {finished} times"] * (finished > 1)
    return problems


ALL_STEPS: Final = [*range(1, STEPS + 1)]


def _claims(events: list[Event]) -> dict[str, list[Event]]:
    claims: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.at):
        if event.kind in ("claimed", "reclaimed"):
            claims[event.job].append(event)
    return claims


def _tokens_grow(events: list[Event]) -> Problems:
    return [
        f"{item}: the token of {later.worker} is not larger than {earlier.worker}'s"
        for item, claims in _claims(events).items()
        for earlier, later in pairwise(claims)
        if later.revision <= earlier.revision
    ]


def _owners_stop_in_time(events: list[Event]) -> Problems:
    """An owner that can run has ended its ownership by its own deadline, and does nothing after it."""
    problems = []
    for claims in _claims(events).values():
        for claim in claims:
            if claim.source != "worker":
                continue  # it was killed before it could tell; the roster has found its claim
            mine = [
                e for e in events if e.job == claim.job and e.worker == claim.worker and e.revision == claim.revision
            ]
            own = [event for event in mine if event.source == "worker"]
            renewed = max(event.until for event in own if event.kind in ("claimed", "reclaimed", "renewed"))
            deadline = renewed - TIMING.margin
            after = [event for event in own if event.at > deadline + SLACK]
            ended = [event.at for event in own if event.kind in ("released", "lost")]
            can_run = _runs_until(events, claim, deadline + SLACK)
            if can_run and not (ended and min(ended) <= deadline + SLACK) and deadline + SLACK < events[-1].at:
                problems.append(f"{claim.worker} did not stop its work on {claim.job} at its deadline")
            if can_run and after:
                problems.append(f"{claim.worker} did something on {claim.job} after its deadline: {after[0]}")
    return problems


def _runs_until(events: list[Event], claim: Event, end: float) -> bool:
    """Whether the owner was neither frozen nor dead at any moment from its claim to the end."""
    frozen = False
    for event in sorted((e for e in events if e.worker == claim.worker), key=lambda event: event.at):
        if event.at > end:
            break
        if event.kind in ("frozen", "thawed", "started"):
            frozen = event.kind == "frozen"
        if event.at >= claim.at and event.kind in ("frozen", "killed"):
            return False
    return not frozen


def _losses_are_true(events: list[Event]) -> Problems:
    """Nobody says that somebody else holds its lease while nobody does: it would give up work for its own ghost."""
    problems = []
    for event in events:
        if event.kind == "lost" and "somebody else" in event.detail:
            later = [claim for claim in _claims(events)[event.job] if claim.revision > event.revision]
            if not any(claim.at <= event.at + SLACK for claim in later):
                problems.append(f"{event.worker} gave {event.job} up for somebody else, but nobody had claimed it")
    return problems


# --- mutants ---------------------------------------------------------------------------------------


async def _renew_without_deadline(lease: Lease) -> None:
    while True:
        await asyncio.sleep(lease._leases.timing.renew)
        try:
            await lease.renew()
        except LeaseLost:
            raise
        except MeetupqError:
            pass


async def _adopt_nothing(lease: Lease) -> None:
    raise lease.lost("somebody else holds it now")


@contextmanager
def mutant(name: str) -> Iterator[None]:
    """Take one safeguard away, in this process."""
    with ExitStack() as stack:
        if name == "deadline":
            stack.enter_context(patch.object(Lease, "_renew_until_lost", _renew_without_deadline))
        elif name == "nonce":  # who can't tell its own ghost from somebody else's claim gives up for it
            stack.enter_context(patch.object(Lease, "_adopt", _adopt_nothing))
        elif name == "fencing":
            stack.enter_context(patch("meetupq.ledger.Ledger.__init__", _unfenced(Ledger.__init__)))
        yield


def _unfenced(make: Callable[..., None]) -> Callable[..., None]:
    def unfenced(self: Ledger, **options: Any) -> None:
        make(self, fenced=False)

    return unfenced


MUTANTS: Final = ("deadline", "fencing", "nonce")


def run_one(job: tuple[int, str]) -> tuple[int, Problems]:
    """One schedule, from a process of a pool."""
    seed, name = job
    try:
        with mutant(name):
            # A worker in a process of its own has all its safeguards: only tasks can be mutated.
            return seed, asyncio.run(play(seed, processes=name not in ("deadline", "nonce")))[1]
    except Exception as error:
        return seed, [f"seed {seed}: {type(error).__name__}: {error}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--together", type=int, default=3, help="how many at once")
    parser.add_argument("--mutant", choices=MUTANTS, default="")
    options = parser.parse_args()
    jobs = [(seed, options.mutant) for seed in range(options.first, options.first + options.seeds)]
    broken = 0
    with multiprocessing.get_context("spawn").Pool(options.together) as pool:
        for number, (seed, problems) in enumerate(pool.imap_unordered(run_one, jobs), start=1):
            broken += bool(problems)
            for problem in problems:
                print(problem, flush=True)
            if number % 10 == 0 or problems:
                print(f"{number} of {len(jobs)} schedules, {broken} broke something (last: seed {seed})", flush=True)
            if options.mutant and broken:
                break
    print(f"{broken} of {number} schedules broke something")
    return int(broken == 0) if options.mutant else int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
