"""Leases: one winner, renewals over one's own revision only, an owner that stops in time, takeovers that do come."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from conftest import Connect, Run, eventually
from nats.js.api import KeyValueConfig

from meetupq.broker import Broker, sever
from meetupq.buckets import entries, has_expired, is_free, last_entry
from meetupq.crew import Crew
from meetupq.errors import BrokerUnreachable, LeaseError, LeaseLost, NameInvalid, TimingError
from meetupq.hiring import Job
from meetupq.history import History
from meetupq.leases import Lease, Leases
from meetupq.takeovers import takeover
from meetupq.timing import Timing
from meetupq.work_items import WorkItems
from meetupq.workers import LeaseWorker


async def claimed(leases: Leases, key: str = "import-eu", owner: str = "ada") -> Lease:
    lease = await leases.claim(key, owner)
    assert lease is not None
    return lease


async def expired(leases: Leases, key: str = "import-eu") -> None:
    """Wait until the broker has replaced the claim by its marker."""
    limit = time.monotonic() + leases.ttl + 3
    while (entry := await last_entry(leases.jetstream, "leases", key)) is None or not has_expired(entry):
        assert time.monotonic() < limit
        await asyncio.sleep(0.02)


async def others(connect: Connect, leases: Leases, count: int) -> list[Leases]:
    """The same bucket, each through a connection of its own, as each worker has."""
    found = [Leases(await connect(f"w{number}"), leases.timing, History()) for number in range(count)]
    for one in found:
        await one.ensure()
    return found


# --- claim, renew, release -------------------------------------------------------------------------


async def test_a_claim_is_a_key_that_says_whose_it_is(leases: Leases, history: History, timing: Timing) -> None:
    before = time.monotonic()
    lease = await claimed(leases)
    entry = await last_entry(leases.jetstream, "leases", "import-eu")
    assert entry is not None
    assert entry.data is not None
    assert json.loads(entry.data)["owner"] == "ada"
    assert (lease.revision, lease.token.revision, lease.token.bucket) == (entry.seq, entry.seq, leases.bucket)
    assert before + timing.lease_ttl - timing.margin <= lease.valid_until <= time.monotonic() + timing.lease_ttl
    assert timing.lease_ttl - timing.margin - 1 < lease.remaining() <= timing.lease_ttl - timing.margin
    [event] = history.snapshot()
    assert (event.kind, event.job, event.worker, event.revision) == ("claimed", "import-eu", "ada", entry.seq)
    assert event.until == pytest.approx(history.from_clock(lease.valid_until + timing.margin))


async def test_what_is_held_can_not_be_claimed_not_even_under_the_same_name(leases: Leases) -> None:
    await claimed(leases)
    assert await leases.claim("import-eu", "bo") is None
    assert await leases.claim("import-eu", "ada") is None
    assert await leases.claim("import-us", "bo") is not None


async def test_a_renewal_moves_the_end_and_the_revision_but_not_the_token(leases: Leases, history: History) -> None:
    lease = await claimed(leases)
    end, token, revision = lease.valid_until, lease.token, lease.revision
    await asyncio.sleep(0.05)
    await lease.renew()
    assert lease.valid_until >= end + 0.05
    assert lease.revision > revision
    assert lease.token == token
    [event] = history.where("renewed")
    assert (event.revision, event.worker) == (token.revision, "ada")


async def test_a_lease_that_is_renewed_outlives_its_ttl(leases: Leases, timing: Timing) -> None:
    lease = await claimed(leases)
    for _ in range(6):
        await asyncio.sleep(timing.renew)
        await lease.renew()
    assert await leases.claim("import-eu", "bo") is None
    assert lease.remaining() > 0


async def test_what_is_released_can_be_claimed_at_once(leases: Leases, history: History) -> None:
    lease = await claimed(leases)
    await lease.renew()
    await lease.release()
    assert lease.remaining() <= 0
    second = await claimed(leases, owner="bo")
    assert second.token > lease.token
    assert [event.kind for event in history] == ["claimed", "renewed", "released", "claimed"]


async def test_a_marker_that_ages_away_in_the_middle_of_a_claim_is_no_obstacle(
    leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim meets the marker, and when it reads it the marker is gone: the key is free all the same."""
    await claimed(leases)
    await expired(leases)

    async def too_late(*where: Any) -> Any:
        limit = time.monotonic() + 5
        while await last_entry(*where) is not None:
            assert time.monotonic() < limit
            await asyncio.sleep(0.02)

    monkeypatch.setattr("meetupq.leases.last_entry", too_late)
    assert (await claimed(leases, owner="bo")).owner == "bo"


async def test_what_has_expired_can_be_claimed_over_the_marker_at_once(leases: Leases, history: History) -> None:
    """nats-py's own create() is refused there, until the marker itself has died."""
    lease = await claimed(leases)
    await expired(leases)
    second = await claimed(leases, owner="bo")
    assert second.token > lease.token
    assert [event.kind for event in history] == ["claimed", "reclaimed"]


async def test_a_purged_key_can_be_claimed_too(leases: Leases) -> None:
    await claimed(leases)
    await leases.keys.purge("import-eu")
    await claimed(leases, owner="bo")


async def test_tokens_only_grow_and_tell_a_bucket_from_its_successor(leases: Leases) -> None:
    tokens = []
    for owner in ("ada", "bo", "ada"):
        lease = await claimed(leases, owner=owner)
        tokens.append(lease.token)
        await lease.release()
    await leases.jetstream.delete_key_value("leases")
    await leases.ensure()
    tokens.append((await claimed(leases)).token)
    assert tokens == sorted(set(tokens))
    assert tokens[-1].revision < tokens[-2].revision, "otherwise nothing was shown"


async def test_of_20_workers_one_wins_each_round(leases: Leases, connect: Connect) -> None:
    """On 20 connections; over fresh keys, and over keys that were released."""
    workers = await others(connect, leases, 20)
    for number in range(50):
        won = await asyncio.gather(*(one.claim(f"item-{number}", f"w{i}") for i, one in enumerate(workers)))
        [winner] = [lease for lease in won if lease]
        if number < 25:
            await winner.release()
            won = await asyncio.gather(*(one.claim(f"item-{number}", f"w{i}") for i, one in enumerate(workers)))
            [second] = [lease for lease in won if lease]
            assert second.token > winner.token


async def test_of_20_workers_one_wins_each_expired_lease(leases: Leases, connect: Connect) -> None:
    workers = await others(connect, leases, 20)
    keys = [f"item-{number}" for number in range(10)]
    first = [await claimed(leases, key) for key in keys]
    for key in keys:
        await expired(leases, key)
    for key, old in zip(keys, first, strict=True):
        won = await asyncio.gather(*(one.claim(key, f"w{number}") for number, one in enumerate(workers)))
        [winner] = [lease for lease in won if lease]
        assert winner.token > old.token
        with pytest.raises(LeaseLost):
            await old.renew()


async def test_the_moment_of_expiry_has_one_winner_too(leases: Leases, connect: Connect, timing: Timing) -> None:
    """All try without a pause, from before the expiry until somebody has it."""
    workers = await others(connect, leases, 8)
    old = await claimed(leases)
    winners: list[Lease] = []

    async def hammer(one: Leases, name: str) -> None:
        while not winners:
            if lease := await one.claim("import-eu", name):
                winners.append(lease)

    await asyncio.sleep(timing.lease_ttl - 0.3)
    await asyncio.gather(*(hammer(one, f"w{number}") for number, one in enumerate(workers)))
    assert len(winners) == 1
    assert winners[0].token > old.token


# --- loss ------------------------------------------------------------------------------------------


async def test_after_the_loss_no_renewal_and_no_release_succeeds(leases: Leases, history: History) -> None:
    old = await claimed(leases)
    await expired(leases)
    with pytest.raises(LeaseLost, match="ada lost import-eu: it has expired; stop the work on it"):
        await old.renew()
    new = await claimed(leases, owner="bo")
    for call in (old.renew, old.release):
        with pytest.raises(LeaseLost, match="ada lost import-eu: somebody else holds it"):
            await call()
    assert old.remaining() <= 0
    await new.renew()
    assert [event.worker for event in history.where("lost")] == ["ada"] * 3


async def test_a_renewal_after_a_release_is_a_loss(leases: Leases) -> None:
    lease = await claimed(leases)
    await lease.release()
    with pytest.raises(LeaseLost):
        await lease.renew()


async def test_another_worker_of_the_same_name_is_somebody_else(leases: Leases) -> None:
    old = await claimed(leases)
    await leases.keys.delete("import-eu")
    await claimed(leases)
    with pytest.raises(LeaseLost, match="somebody else holds it"):
        await old.renew()


@pytest.mark.parametrize("rubbish", [b"", b"rubbish", b"[1]", b"\xff", b'{"nonce": 7}'])
async def test_rubbish_over_our_claim_is_a_loss(leases: Leases, rubbish: bytes) -> None:
    lease = await claimed(leases)
    await leases.keys.put("import-eu", rubbish)
    with pytest.raises(LeaseLost):
        await lease.renew()


@pytest.mark.parametrize("then", ["renew", "release"])
async def test_a_renewal_that_we_did_not_hear_of_is_adopted(leases: Leases, connect: Connect, then: str) -> None:
    """The same claim, written over our revision through another connection: the broker has it, we don't know."""
    [elsewhere] = await others(connect, leases, 1)
    lease = await claimed(leases)
    entry = await last_entry(leases.jetstream, "leases", "import-eu")
    assert entry is not None
    ghost = await elsewhere.keys.update("import-eu", entry.data or b"", last=entry.seq)
    await getattr(lease, then)()
    assert lease.revision == ghost if then == "release" else lease.revision > ghost
    assert (await leases.claim("import-eu", "bo") is None) == (then == "renew")


async def test_a_renewal_sent_while_the_broker_was_away_arrives_later_and_is_adopted(
    broker: Broker, leases: Leases, history: History
) -> None:
    """It failed for us, and yet the client sends it once it is connected again."""
    lease = await claimed(leases)
    known = lease.revision
    await broker.stop()
    await eventually(lambda: not leases.jetstream._nc.is_connected)  # from now on the client keeps what it is given
    with pytest.raises(BrokerUnreachable, match="can't renew import-eu"):
        await lease.renew()
    await broker.start()
    await eventually(lambda: leases.jetstream._nc.is_connected)
    await lease.renew()
    assert lease.revision > known + 1, "otherwise the ghost did not arrive"
    assert len(history.where("renewed")) == 1
    assert not history.where("lost")


# --- hold ------------------------------------------------------------------------------------------


async def test_hold_renews_while_it_works_and_returns_the_result(
    leases: Leases, timing: Timing, history: History
) -> None:
    lease = await claimed(leases)

    async def work() -> str:
        await history.until("renewed", count=5)
        return "done"

    started = time.monotonic()
    assert await lease.hold(work()) == "done"
    assert time.monotonic() - started > timing.lease_ttl, "longer than one TTL, otherwise nothing was shown"
    assert lease.remaining() > 0
    await lease.release()


async def test_works_own_error_passes_through(leases: Leases) -> None:
    lease = await claimed(leases)

    async def work() -> None:
        raise ZeroDivisionError("my own")

    with pytest.raises(ZeroDivisionError, match="my own"):
        await lease.hold(work())
    await lease.release()


async def test_a_hold_that_is_cancelled_cancels_the_work_and_ends_the_renewals(
    leases: Leases, history: History, timing: Timing
) -> None:
    lease = await claimed(leases)
    stopped = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    holding = asyncio.ensure_future(lease.hold(work()))
    await history.until("renewed")
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert stopped.is_set()
    renewals = len(history.where("renewed"))
    await asyncio.sleep(2 * timing.renew)
    assert len(history.where("renewed")) == renewals


def steps(into: list[float]) -> Callable[[], Awaitable[None]]:
    """Work that writes down when it ran."""

    async def work() -> None:
        while True:
            into.append(time.monotonic())
            await asyncio.sleep(0.01)

    return work


@pytest.mark.parametrize("way", ["stop", "kill"])
async def test_without_the_broker_the_work_ends_before_the_lease_can(
    broker: Broker, leases: Leases, history: History, timing: Timing, way: str
) -> None:
    lease = await claimed(leases)
    ran: list[float] = []
    holding = asyncio.ensure_future(lease.hold(steps(ran)()))  # type: ignore[arg-type]
    await history.until("renewed")
    await getattr(broker, way)()
    with pytest.raises(LeaseLost, match="no renewal was confirmed in time"):
        await asyncio.wait_for(holding, timing.lease_ttl + 3)
    end_of_the_lease = history.where("renewed")[-1].until
    assert history.from_clock(ran[-1]) < end_of_the_lease - timing.margin + 0.2
    assert history.where("lost")[-1].at < end_of_the_lease


async def test_an_outage_shorter_than_the_lease_is_survived(broker: Broker, leases: Leases, history: History) -> None:
    lease = await claimed(leases)
    ran: list[float] = []
    holding = asyncio.ensure_future(lease.hold(steps(ran)()))  # type: ignore[arg-type]
    await history.until("renewed", count=2)
    await broker.kill()
    await broker.start()
    renewed = len(history.where("renewed"))
    await history.until("renewed", count=renewed + 4)
    assert not holding.done()
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding


async def test_a_renewal_that_failed_is_tried_again_soon(
    leases: Leases, history: History, timing: Timing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after another whole interval only, by which the deadline would have come too near."""
    lease = await claimed(leases)
    renew, failures = lease.renew, 2

    async def renew_at_last() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise BrokerUnreachable
        await renew()

    monkeypatch.setattr(lease, "renew", renew_at_last)
    holding = asyncio.ensure_future(lease.hold(asyncio.sleep(60)))
    event = await history.until("renewed")
    assert event.at - history.where("claimed")[0].at < 2 * timing.renew
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding


async def test_an_owner_that_is_cut_off_stops_before_the_next_one_starts(
    leases: Leases, connect: Connect, history: History
) -> None:
    """Its connection goes dead without a word, as when a cable is pulled; the broker lives on."""
    client = await connect("cut off")
    ada = Leases(client, leases.timing, history)
    await ada.ensure()
    lease = await claimed(ada)
    hers: list[float] = []
    holding = asyncio.ensure_future(lease.hold(steps(hers)()))  # type: ignore[arg-type]
    await history.until("renewed")
    client._transport._io_writer.transport.pause_reading()
    client._transport.writelines = lambda _: None
    while (successor := await leases.claim("import-eu", "bo")) is None:
        await asyncio.sleep(0.01)
    his = time.monotonic()
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(holding, 5)
    assert hers[-1] < his
    assert history.where("lost")[-1].worker == "ada"
    assert successor.token > lease.token


async def test_an_owner_whose_key_was_taken_away_stops_with_its_next_renewal(
    leases: Leases, connect: Connect, history: History, timing: Timing
) -> None:
    """Nobody can stop sooner than it asks; that is why work is fenced by its token as well."""
    lease = await claimed(leases)
    ran: list[float] = []
    holding = asyncio.ensure_future(lease.hold(steps(ran)()))  # type: ignore[arg-type]
    await history.until("renewed")
    await leases.keys.delete("import-eu")
    taken = time.monotonic()
    await claimed(leases, owner="bo")
    with pytest.raises(LeaseLost, match="somebody else holds it now"):
        await asyncio.wait_for(holding, timing.lease_ttl + 3)
    assert ran[-1] < taken + timing.renew + 0.5


# --- workers and takeovers -------------------------------------------------------------------------


async def test_ten_killed_owners_are_followed_within_the_ttl_and_a_little(
    broker: Broker, leases: Leases, items: WorkItems, history: History, timing: Timing
) -> None:
    """No earlier than the last renewal's TTL, no later than one whole TTL and the broker's step after the death.
    Five owners are killed, and then the five that have followed them."""
    crew = Crew(broker, timing, history)
    names = [f"item-{number}" for number in range(5)]
    for item in names:
        await items.add(item, seconds=60, steps=60)
        await crew.launch(f"first-{item}", Job("leases"))
    await history.until("claimed", count=5)
    delays = []
    for generation in ("second", "third"):
        owners = {item: history.where(lambda e: e.kind in ("claimed", "reclaimed"), item)[-1] for item in names}
        for item, claim in owners.items():
            await history.until("renewed", item, claim.worker)
            await crew.launch(f"{generation}-{item}", Job("leases"))
        for claim in owners.values():
            await crew.kill(claim.worker)
        for item, claim in owners.items():
            successor = await history.until(
                lambda e, after=claim.at: e.kind == "reclaimed" and e.at > after, item, within=timing.worst_reclaim + 5
            )
            [killed] = history.where("killed", worker=claim.worker)
            last = history.where(lambda e: e.kind in ("claimed", "reclaimed", "renewed"), item, claim.worker)[-1]
            assert successor.at >= last.until - 0.05
            assert successor.worker.startswith(generation)
            delays.append(successor.at - killed.at)
    await crew.close()
    print(f"reclaimed after {min(delays):.2f} to {max(delays):.2f} s, TTL {timing.lease_ttl:g} s")
    assert len(delays) == 10
    assert max(delays) <= timing.lease_ttl + 0.6


async def test_a_worker_goes_on_where_the_dead_one_stopped(
    broker: Broker, leases: Leases, items: WorkItems, history: History, timing: Timing
) -> None:
    crew = Crew(broker, timing, history)
    await items.add("import-eu", seconds=2.0, steps=10)
    await crew.launch("ada", Job("leases"))
    await history.until("checkpointed", worker="ada", count=3)
    await crew.kill("ada")
    await crew.launch("bo", Job("leases"))
    done = await history.until("finished", worker="bo", within=timing.worst_reclaim + 10)
    await history.until("released", worker="bo")
    assert done.detail == "10 of 10 steps"
    counted = [int(event.detail.split()[0]) for event in history.where("checkpointed")]
    assert counted == sorted(counted)
    assert len(counted) in (9, 10), "one step may have been written and not heard of"
    await crew.close()


async def test_a_worker_that_is_stopped_hands_its_lease_over_at_once(
    leases: Leases, items: WorkItems, connect: Connect, history: History, timing: Timing, run: Run
) -> None:
    workers = {}
    for name in ("ada", "bo"):
        client = await connect(name)
        standby, its_items = takeover("marker", client, timing, history), WorkItems(client)
        await standby.leases.ensure()
        await its_items.ensure()
        workers[name] = LeaseWorker(name, standby, its_items)
    await items.add("import-eu", seconds=20, steps=100)
    run(workers["ada"].run())
    await history.until("checkpointed", worker="ada")
    run(workers["bo"].run())
    workers["ada"].stop()
    released = await history.until("released", worker="ada")
    claimed_again = await history.until("claimed", worker="bo")
    assert claimed_again.at - released.at < timing.lease_ttl / 2
    assert not history.where("reclaimed")
    workers["bo"].stop()
    await history.until("released", worker="bo")


async def test_two_owners_of_one_item_can_not_both_write_its_progress(items: WorkItems, connect: Connect) -> None:
    await items.add("import-eu", seconds=1, steps=5)
    zombie = await items.get("import-eu")
    assert zombie is not None
    elsewhere = WorkItems(await connect())
    await elsewhere.ensure()
    successor = await elsewhere.get("import-eu")
    assert successor is not None
    successor = await elsewhere.checkpoint(successor)
    with pytest.raises(LeaseLost, match="import-eu was written by somebody else"):
        await items.checkpoint(zombie)
    assert (await elsewhere.checkpoint(successor)).done == 2


async def test_items_are_added_once_and_listed_until_they_are_finished(items: WorkItems) -> None:
    assert await items.add("b", seconds=1, steps=2)
    assert await items.add("a", seconds=1, steps=1)
    assert not await items.add("a", seconds=9, steps=9)
    assert [item.name for item in await items.unfinished()] == ["a", "b"]
    item = await items.get("a")
    assert item is not None
    assert (await items.checkpoint(item)).finished
    assert [item.name for item in await items.unfinished()] == ["b"]
    assert await items.get("nothing") is None
    for wrong in ({"seconds": 0}, {"seconds": 1, "steps": 0}, {"seconds": -1}):
        with pytest.raises(LeaseError, match="give 1 step or more"):
            await items.add("c", **wrong)
    with pytest.raises(NameInvalid):
        await items.add("a b", seconds=1)


# --- the bucket ------------------------------------------------------------------------------------


async def test_ensuring_twice_changes_nothing(leases: Leases) -> None:
    lease = await claimed(leases)
    bucket = leases.bucket
    await leases.ensure()
    assert leases.bucket == bucket
    await lease.renew()


async def test_the_ttl_of_a_bucket_that_exists_is_taken_over(leases: Leases, connect: Connect, timing: Timing) -> None:
    late = Leases(await connect(), timing.but(lease_ttl=9))
    await late.ensure()
    assert late.ttl == timing.lease_ttl
    lease = await claimed(late)
    assert lease.remaining() <= timing.lease_ttl


async def test_a_ttl_that_does_not_fit_is_refused(leases: Leases, connect: Connect, timing: Timing) -> None:
    with pytest.raises(TimingError, match="renew is 3 s but lease_ttl is 2 s"):
        await Leases(await connect(), timing.but(lease_ttl=9, renew=3)).ensure()


async def test_a_bucket_without_a_ttl_is_refused(connect: Connect, timing: Timing) -> None:
    """A dead owner's claim would stand in it for ever."""
    client = await connect()
    await client.jetstream().create_key_value(KeyValueConfig(bucket="leases"))
    with pytest.raises(LeaseError, match="no TTL"):
        await Leases(client, timing).ensure()


async def test_the_raw_view_tells_claims_from_notes(leases: Leases) -> None:
    await claimed(leases, "held")
    await (await claimed(leases, "released")).release()
    found = await entries(leases.jetstream, "leases")
    assert {key: (is_free(entry), has_expired(entry)) for key, entry in found.items()} == {
        "held": (False, False),
        "released": (True, False),
    }
    await expired(leases, "held")
    found = await entries(leases.jetstream, "leases")
    assert (is_free(found["held"]), has_expired(found["held"])) == (True, True)


# --- when it can't be done -------------------------------------------------------------------------


async def test_before_ensure_it_says_so(connect: Connect, timing: Timing) -> None:
    client = await connect()
    with pytest.raises(LeaseError, match=r"run ensure\(\) first"):
        await Leases(client, timing).claim("import-eu", "ada")
    with pytest.raises(LeaseError, match=r"run ensure\(\) first"):
        await WorkItems(client).add("import-eu", seconds=1)
    with pytest.raises(LeaseError):
        await WorkItems(client).unfinished()


@pytest.mark.parametrize("key", ["", "a.b", "a b", ">", "x" * 41])
async def test_bad_names_are_refused(leases: Leases, key: str) -> None:
    with pytest.raises(NameInvalid, match="the work item"):
        await leases.claim(key, "ada")


async def test_without_the_broker_only_our_errors_come(broker: Broker, leases: Leases) -> None:
    lease = await claimed(leases)
    await broker.kill()
    for call in (lease.renew, lease.release, lambda: leases.claim("other", "ada"), leases.ensure):
        with pytest.raises(BrokerUnreachable):
            await call()
    await sever(leases.jetstream._nc)
    for call in (lease.renew, lease.release, lambda: leases.claim("other", "ada"), leases.ensure):
        with pytest.raises(BrokerUnreachable):
            await call()


async def test_a_bucket_that_was_deleted_is_a_refusal(leases: Leases) -> None:
    lease = await claimed(leases)
    await leases.jetstream.delete_key_value("leases")
    for call in (lease.renew, lease.release, lambda: leases.claim("other", "ada")):
        with pytest.raises(LeaseError):
            await call()
