"""Workers that lobby for long work: who gets what, who goes on where, and what a cancelled or stolen item does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from conftest import Connect

from meetupq import checks
from meetupq.errors import JobRefused, LeaseError, LeaseLost, UnknownWorker, WorkCancelled
from meetupq.hiring import Job
from meetupq.leases import Token
from meetupq.stage import Stage
from meetupq.timing import Timing
from meetupq.work_items import WorkItem, WorkItems


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage("ci") as stage:
        yield stage
        assert not stage.failures


def steps_done(stage: Stage, item: str) -> list[tuple[str, str]]:
    return [(event.worker, event.detail.split()[0]) for event in stage.history.where("checkpointed", item)]


# --- the list of work ------------------------------------------------------------------------------


async def test_whoever_takes_an_item_shuts_out_earlier_owners_at_once(items: WorkItems, connect: Connect) -> None:
    """Also before its first step: the token is written, so the item has another revision."""
    await items.add("import-eu", seconds=1, steps=5)
    old = await items.take("import-eu", Token("b", 1))
    assert old is not None
    elsewhere = WorkItems(await connect())
    await elsewhere.ensure()
    new = await elsewhere.take("import-eu", Token("b", 2))
    assert new is not None
    with pytest.raises(LeaseLost, match="import-eu was written by somebody else"):
        await items.checkpoint(old)
    with pytest.raises(LeaseLost, match="import-eu was taken by a newer owner"):
        await items.take("import-eu", Token("b", 1))
    assert (await elsewhere.checkpoint(new)).done == 1


async def test_a_bucket_made_anew_starts_its_revisions_again_but_not_its_tokens(items: WorkItems) -> None:
    await items.add("import-eu", seconds=1, steps=5)
    await items.take("import-eu", Token("20250101T000000", 900))
    taken = await items.take("import-eu", Token("20250102T000000", 1))
    assert taken is not None
    assert taken.token == Token("20250102T000000", 1)
    with pytest.raises(LeaseLost):
        await items.take("import-eu", Token("20250101T000000", 901))


async def test_the_progress_of_the_last_owner_is_kept(items: WorkItems) -> None:
    await items.add("import-eu", seconds=1, steps=5)
    item = await items.take("import-eu", Token("b", 1))
    assert item is not None
    for _ in range(3):
        item = await items.checkpoint(item)
    heir = await items.take("import-eu", Token("b", 2))
    assert heir is not None
    assert (heir.done, heir.steps, heir.token.revision) == (3, 5, 2)


async def test_a_step_of_the_last_owner_in_between_is_not_lost(
    items: WorkItems, monkeypatch: pytest.MonkeyPatch
) -> None:
    await items.add("import-eu", seconds=1, steps=5)
    item = await items.take("import-eu", Token("b", 1))
    assert item is not None
    get, moment = items.get, iter([True])

    async def look_then_someone_writes(name: str) -> WorkItem | None:
        found = await get(name)
        if next(moment, False):
            await items.checkpoint(item)
        return found

    monkeypatch.setattr(items, "get", look_then_someone_writes)
    heir = await items.take("import-eu", Token("b", 2))
    assert heir is not None
    assert heir.done == 1


async def test_what_is_cancelled_is_off_the_list_and_says_so_to_its_owner(items: WorkItems) -> None:
    await items.add("import-eu", seconds=1, steps=5)
    item = await items.take("import-eu", Token("b", 1))
    assert item is not None
    assert await items.cancel("import-eu")
    assert not await items.cancel("import-eu"), "it is cancelled already"
    assert not await items.unfinished()
    with pytest.raises(WorkCancelled, match="import-eu was cancelled"):
        await items.checkpoint(item)
    with pytest.raises(LeaseError, match="there is no work called 'nothing'"):
        await items.cancel("nothing")


@pytest.mark.parametrize(
    "rubbish",
    ["", "x", "[]", '{"steps": 3}', '{"steps": 3, "done": 0, "step_seconds": 1}',
     '{"steps": 3, "done": 0, "step_seconds": 1, "token": 5}',
     '{"steps": 1e999, "done": 0, "step_seconds": 1, "token": ["", 0]}',
     '{"steps": 3, "done": 0, "step_seconds": -1, "token": ["", 0]}'],
)  # fmt: skip
async def test_rubbish_on_the_list_is_no_work(items: WorkItems, rubbish: str) -> None:
    assert items._keys is not None
    await items._keys.put("rubbish", rubbish.encode())
    await items.add("import-eu", seconds=1)
    assert [item.name for item in await items.all()] == ["import-eu"]
    assert await items.take("rubbish", Token("b", 1)) is None


# --- lobbying --------------------------------------------------------------------------------------


async def test_each_worker_holds_as_many_items_as_it_has_slots_and_not_one_more(stage: Stage) -> None:
    await stage.add_work(*(f"work-{n}" for n in range(5)), seconds=60, steps=300)
    await stage.launch("ada", role="leases", slots=2)
    await stage.history.until("claimed", count=2)
    await stage.launch("bo", role="leases", slots=2)
    await stage.history.until("claimed", count=4)
    await stage.history.until("checkpointed", count=4, within=20)
    held: dict[str, int] = {}
    for claim in await stage.claims():
        held[claim.owner] = held.get(claim.owner, 0) + (claim.state == "held")
    assert held == {"ada": 2, "bo": 2, "": 0}
    assert [claim.state for claim in await stage.claims()].count("free") == 1


async def test_who_has_nothing_gets_a_free_item_before_who_has_one(stage: Stage) -> None:
    """Of 8 items, put up one after the other, no worker of two with 8 slots each gets all."""
    await stage.launch("ada", "bo", role="leases", slots=8)
    await stage.history.until("lobbied", count=2)
    for number in range(8):
        await stage.add_work(f"work-{number}", seconds=60)
        await stage.history.until("claimed", count=number + 1)
    owners = [event.worker for event in stage.history.where("claimed")]
    assert set(owners) == {"ada", "bo"}


async def test_work_put_up_while_all_stand_by_is_begun(stage: Stage) -> None:
    await stage.launch("ada", role="leases")
    await stage.history.until("lobbied", worker="ada")
    await stage.add_work("import-eu", seconds=0.2, steps=2)
    await stage.history.until("finished", "import-eu")
    await stage.add_work("import-us", seconds=0.2, steps=2)
    await stage.history.until("finished", "import-us")
    assert len(stage.history.where("claimed")) == 2, "what is finished is not claimed again"


async def test_work_that_is_cancelled_ends_with_its_next_step_and_its_lease_is_given_back(stage: Stage) -> None:
    await stage.add_work("import-eu", seconds=20, steps=100)
    await stage.launch("ada", role="leases")
    await stage.history.until("checkpointed", "import-eu")
    assert await stage.cancel_work("import-eu") == ["import-eu"]
    await stage.history.until("released", "import-eu")
    assert await stage.cancel_work("import-eu") == []
    assert not stage.history.where("finished")
    await stage.add_work("import-us", seconds=0.2)
    await stage.history.until("finished", "import-us", worker="ada")


async def test_without_a_name_the_newest_work_is_cancelled(stage: Stage) -> None:
    await stage.add_work("first", "second", seconds=60)
    assert await stage.cancel_work() == ["second"]
    assert await stage.cancel_work() == ["first"]
    assert await stage.cancel_work() == []


async def test_taken_over_at_60_per_cent_finished_by_another_and_no_step_twice(stage: Stage) -> None:
    await stage.add_work("import-eu", seconds=3, steps=10)
    await stage.launch("ada", role="leases")
    await stage.history.until(lambda event: event.detail == "6 of 10 steps")
    await stage.kill("ada")
    await stage.launch("bo", role="leases")
    await stage.history.until("finished", "import-eu", within=15)
    done = steps_done(stage, "import-eu")
    assert [number for _, number in done] == [str(n) for n in range(1, 11)]
    assert {worker for worker, _ in done[:6]} == {"ada"}
    assert {worker for worker, _ in done[6:]} == {"bo"}
    assert checks.resumed(stage.history, "import-eu").status == "HELD"
    assert stage.history.where("reclaimed", "import-eu", "bo")
    item = await stage.items.get("import-eu")
    assert item is not None
    assert (item.done, item.finished) == (10, True)


@pytest.mark.parametrize("how", ["poll", "marker", "key_ttl", "observe"])
async def test_workers_of_every_kind_follow_a_dead_owner(stage: Stage, how: str, timing: Timing) -> None:
    await stage.add_work("import-eu", seconds=60, steps=100)
    await stage.launch("ada", "bo", "cy", role="leases", takeover=how)
    owner = (await stage.history.until("claimed", "import-eu")).worker
    await stage.kill(owner)
    heir = await stage.history.until("reclaimed", "import-eu", within=timing.worst_reclaim + 5)
    assert heir.worker != owner
    assert checks.reclaimed_after_ttl(stage.history, "import-eu").status == "HELD"


async def test_a_stopped_worker_hands_back_all_that_it_holds(stage: Stage) -> None:
    await stage.add_work("a", "b", seconds=20, steps=100)
    await stage.launch("ada", role="leases", slots=2)
    await stage.history.until("claimed", count=2)
    await stage.stop("ada")
    await stage.history.until("stopped", worker="ada")
    assert len(stage.history.where("released")) == 2


async def test_a_worker_launched_while_it_stops_comes_back_when_it_has_finished(stage: Stage) -> None:
    """Its new job must not be lost because it still is at work on the old one."""
    await stage.add_work("a", seconds=20, steps=40)
    await stage.launch("ada", role="leases")
    await stage.history.until("claimed", "a")
    await stage.stop("ada")
    await stage.launch("ada", role="leases")
    await stage.history.until("claimed", "a", count=2)
    kinds = [event.kind for event in stage.history.where(lambda event: event.worker == "ada")]
    assert [kind for kind in kinds if kind in ("started", "released")] == ["started", "released", "started"]


async def test_a_killed_worker_releases_none_of_its_slots(stage: Stage) -> None:
    await stage.add_work("a", "b", seconds=20, steps=100)
    await stage.launch("ada", role="leases", slots=2)
    await stage.history.until("claimed", count=2)
    await stage.kill("ada")
    await asyncio.sleep(0.1)
    assert {claim.state for claim in await stage.claims()} == {"held"}
    assert not stage.history.where("released")


def test_what_no_worker_can_be_hired_for_is_refused() -> None:
    with pytest.raises(UnknownWorker, match="no worker takes leases over by 'luck'"):
        Job("leases", takeover="luck")
    for slots in (0, 101, 1.5, True):
        with pytest.raises(JobRefused, match="a worker holds 1 to 100 leases at once"):
            Job("leases", slots=slots)  # type: ignore[arg-type]
    for wrong in ({"process": "x"}, {"heartbeats": 1}, {"fixed": None}):
        with pytest.raises(JobRefused, match=f"{next(iter(wrong))} is .*, but it is True or False"):
            Job("leases", **wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownWorker):
        Job("leases", takeover=[])  # type: ignore[arg-type]
    assert str(Job("leases", takeover="observe", slots=2)) == "leases by observe, 2 slots"
    assert str(Job("leases", process=True)) == "leases by marker, process"
