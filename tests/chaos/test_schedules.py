"""Some of the seeded schedules, and that each mutant is caught by them; all 300: `python tests/chaos/schedules.py`."""

from __future__ import annotations

import asyncio

import pytest
from schedules import MUTANTS, mutant, play

TOGETHER = 3


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 4])
async def test_whatever_is_broken_nothing_is_lost_done_twice_or_overwritten(first: int) -> None:
    played = await asyncio.gather(*(play(seed) for seed in range(first, first + TOGETHER)))
    assert [problem for _, problems in played for problem in problems] == []
    kinds = {event.kind for stage, _ in played for event in stage.history}
    assert {"killed", "frozen", "thawed", "cut", "restored", "lost", "reclaimed", "finished"} <= kinds, (
        "it saw too little"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
async def test_a_missing_safeguard_is_noticed(name: str) -> None:
    with mutant(name):
        for first in range(1, 30, TOGETHER):
            seeds = range(first, first + TOGETHER)
            played = await asyncio.gather(*(play(seed, processes=name == "fencing") for seed in seeds))
            if any(problems for _, problems in played):
                return
    pytest.fail(f"without {name} 30 schedules went well")
