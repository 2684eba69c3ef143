"""What was thrown at the lease half: rubbish in its buckets, buckets made anew, trials that fail, lost answers."""

from __future__ import annotations

import asyncio
import json

import pytest
from conftest import Connect, Run, eventually

from meetupq.broker import Broker
from meetupq.errors import BrokerUnreachable, LeaseError, MeetupqError, TimingError, WorkCancelled
from meetupq.history import History
from meetupq.leases import Leases, Token
from meetupq.roster import Roster
from meetupq.stage import Stage
from meetupq.takeovers import takeover
from meetupq.timing import Timing
from meetupq.trials import measure
from meetupq.work_items import WorkItem, WorkItems

CLAIM = {"owner": "x", "nonce": "n", "token": 0, "renewals": 0}


# --- rubbish ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"token": float("inf")}, {"renewals": float("inf")}, {"token": float("nan")}, {"token": -1}, {"token": 2**63},
     {"token": True}, {"renewals": "3"}, {"owner": ""}, {"owner": None}, {"owner": "\ud800"}, {"owner": "x" * 100_000},
     {"nonce": None}, {"nonce": "x" * 100_000}],
)  # fmt: skip
async def test_no_number_and_no_name_in_the_bucket_stops_the_roster(
    leases: Leases, connect: Connect, timing: Timing, run: Run, wrong: dict[str, object]
) -> None:
    """Whatever ends `run` fails the test."""
    watching = Leases(await connect(), timing, History())
    await watching.ensure()
    roster = Roster(watching)
    run(roster.run())
    await leases.keys.put("rubbish", json.dumps({**CLAIM, **wrong}).encode())
    await leases.claim("import-eu", "ada")
    await eventually(lambda: roster.claims())
    await roster.refresh()
    assert [(claim.item, claim.owner) for claim in roster.claims()] == [("import-eu", "ada")]


async def test_a_claim_that_somebody_overwrites_with_rubbish_is_nobodys(leases: Leases) -> None:
    roster = Roster(leases)
    await leases.claim("import-eu", "ada")
    await roster.refresh()
    await leases.keys.put("import-eu", b"rubbish")
    await roster.refresh()
    assert roster.claims() == []


async def test_a_key_that_is_no_name_is_nobodys_claim(leases: Leases, connect: Connect) -> None:
    """The broker stores "a.b" and "*" as they are, and a look at "*" would find some other key."""
    roster = Roster(leases)
    other = (await connect()).jetstream()
    for key in ("a.b", "x=y", "*"):
        await other.publish(f"$KV.leases.{key}", json.dumps(CLAIM).encode())
    await roster.refresh()
    assert roster.claims() == []


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 10**30}, {"steps": 0}, {"steps": True}, {"steps": "3"}, {"done": -1}, {"done": 4}, {"done": 0.5},
     {"step_seconds": 0}, {"step_seconds": "1"}, {"token": "ab"}, {"token": ["", -1]}, {"token": ["", 2**70]},
     {"token": ["", True]}, {"token": [5, 0]}],
)  # fmt: skip
async def test_work_that_could_never_be_done_is_no_work(items: WorkItems, wrong: dict[str, object]) -> None:
    """A worker would lose its lease at every attempt, for ever."""
    assert items._keys is not None
    good = {"steps": 3, "done": 0, "step_seconds": 1, "token": ["", 0]}
    await items._keys.put("good", json.dumps(good).encode())
    await items._keys.put("rubbish", json.dumps(good | wrong).encode())
    assert [item.name for item in await items.all()] == ["good"]


# --- the list of work ------------------------------------------------------------------------------


async def test_the_list_is_as_the_bucket_is_whoever_writes_and_removes(items: WorkItems, connect: Connect) -> None:
    other = WorkItems(await connect())
    await other.ensure()

    async def both() -> list[tuple[str, int, bool]]:
        seen, fresh = await items.all(), WorkItems(items._client)
        assert seen == await fresh.all()
        return [(item.name, item.done, item.cancelled) for item in seen]

    assert await both() == []
    for name in ("c", "a", "b"):
        await other.add(name, seconds=1, steps=3)
    assert await both() == [("a", 0, False), ("b", 0, False), ("c", 0, False)]
    taken = await other.take("b", Token("x", 1))
    assert taken is not None
    await other.checkpoint(taken)
    await other.cancel("c")
    assert await both() == [("a", 0, False), ("b", 1, False), ("c", 0, True)]
    assert other._keys is not None
    await other._keys.delete("a")
    assert await both() == [("b", 1, False), ("c", 0, True)]
    await items._jetstream.purge_stream("KV_work", subject="$KV.work.c")
    assert await both() == [("b", 1, False)]
    await items._jetstream.delete_key_value("work")
    with pytest.raises(LeaseError, match="can't read the list of work"):
        await items.all()
    await other.ensure()
    assert await both() == []
    await other.add("anew", seconds=1)
    assert await both() == [("anew", 0, False)]


async def test_a_list_that_is_as_it_was_costs_one_question(items: WorkItems, connect: Connect) -> None:
    for number in range(30):
        await items.add(f"item-{number}", seconds=1)
    await items.all()
    before = items._client.stats["out_msgs"]
    assert len(await items.all()) == 30
    assert items._client.stats["out_msgs"] - before == 1


async def test_a_step_whose_answer_was_lost_counts_once(items: WorkItems, connect: Connect) -> None:
    await items.add("import-eu", seconds=1, steps=5)
    item = await items.take("import-eu", Token("b", 1))
    assert item is not None
    elsewhere = WorkItems(await connect())
    await elsewhere.ensure()
    await elsewhere.checkpoint(item)  # the same write, by the same owner: it has arrived, but nobody told us
    again = await items.checkpoint(item)
    assert again.done == 1
    assert (await items.checkpoint(again)).done == 2
    await items.cancel("import-eu")
    with pytest.raises(WorkCancelled):
        await items.checkpoint(again)


async def test_an_outage_in_a_last_step_neither_loses_the_lease_nor_the_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is written, its answer is lost: the owner asks again, and tells once that the work is finished."""
    checkpoint, lost_answers = WorkItems.checkpoint, iter([True, True])

    async def checkpoint_without_answer(items: WorkItems, item: WorkItem) -> WorkItem:
        written = await checkpoint(items, item)
        if written.finished and next(lost_answers, False):
            raise BrokerUnreachable
        return written

    monkeypatch.setattr(WorkItems, "checkpoint", checkpoint_without_answer)
    async with Stage("ci") as stage:
        await stage.launch("ada", role="leases")
        await stage.add_work("import-eu", seconds=0.2, steps=2)
        await stage.history.until("released", "import-eu")
        assert len(stage.history.where("finished", "import-eu")) == 1
        assert not stage.history.where("lost")
        assert [write.step for write in stage.ledger.fenced.applied] == [1, 2]
        assert not stage.failures


# --- a bucket made anew ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["marker", "observe"])
async def test_a_bucket_made_anew_is_seen_and_its_leases_are_claimed_under_its_name(
    leases: Leases, connect: Connect, timing: Timing, run: Run, how: str
) -> None:
    """Its revisions begin at 1 again: whoever compares them with the earlier ones sees nothing any more."""
    standby = takeover(how, await connect(), timing)
    roster = Roster(Leases(await connect(), timing, History()))
    for each in (standby.leases, roster.leases):
        await each.ensure()
    run(standby.run())
    run(roster.run())
    first = await leases.claim("import-eu", "ada")
    assert first is not None
    for _ in range(3):
        await first.renew()
    await eventually(lambda: standby.ended("import-eu") is None)
    await leases.jetstream.delete_key_value("leases")
    await leases.ensure()
    second = await leases.claim("import-eu", "bo")
    assert second is not None
    await eventually(lambda: [claim.owner for claim in roster.claims() if claim.state == "held"] == ["bo"])
    await second.release()
    async with asyncio.timeout(5):
        third = await standby.take_over("import-eu", "cy")
    assert third.token > second.token > first.token


# --- trials ----------------------------------------------------------------------------------------


async def buckets(connect: Connect) -> list[str]:
    names = [info.config.name for info in await (await connect()).jetstream().streams_info()]
    return [str(name) for name in names if str(name).startswith("KV_trial")]


def connections() -> int:
    """Tasks that read from a connection, of which each has one."""
    return sum("_read_loop" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_a_trial_that_fails_leaves_neither_connections_nor_its_bucket(
    broker: Broker, connect: Connect, timing: Timing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kill fails, the others are under way, and may still want connections of their own."""
    before = connections()
    until = History.until

    async def until_it_fails(self: History, *args: object, **options: object) -> object:
        await until(self, *args, **options)  # type: ignore[arg-type]
        raise LeaseError("this one has failed")

    monkeypatch.setattr(History, "until", until_it_fails)
    with pytest.raises(LeaseError, match="this one has failed"):
        await measure(broker, "observe", timing, kills=12, standbys=1, others=1)
    await asyncio.sleep(0.5)  # whoever goes on would connect within that time: a kill begins every 0.17 s
    assert connections() == before
    assert await buckets(connect) == []


async def test_a_trial_that_loses_its_broker_says_so_and_not_that_its_bucket_stays(
    broker: Broker, timing: Timing
) -> None:
    trial = asyncio.create_task(measure(broker, "observe", timing, kills=4, standbys=1, others=0))
    await asyncio.sleep(0.3)
    await broker.kill()
    with pytest.raises(MeetupqError) as raised:
        await trial
    assert "trial's bucket" not in str(raised.value)


async def test_a_ttl_that_no_key_can_have_leaves_no_bucket(broker: Broker, connect: Connect, timing: Timing) -> None:
    with pytest.raises(TimingError, match="takes whole seconds"):
        await measure(broker, "key_ttl", timing.but(lease_ttl=2.5), kills=1)
    assert await buckets(connect) == []


@pytest.mark.parametrize("wrong", [{"timing": "ci"}, {"spread": float("nan")}, {"spread": -1}, {"spread": "1"}])
async def test_a_trial_of_no_durations_is_refused(broker: Broker, timing: Timing, wrong: dict[str, object]) -> None:
    with pytest.raises(LeaseError, match="a trial takes"):
        await measure(broker, "poll", **{"timing": timing, "kills": 1, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [None, [], 5, "Poll"])
async def test_no_kind_of_takeover_is_refused_in_a_sentence(connect: Connect, timing: Timing, how: str) -> None:
    with pytest.raises(LeaseError, match="no takeover is called"):
        takeover(how, await connect(), timing)
