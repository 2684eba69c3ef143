"""The roster: what one observer shows of the claims, how it knows, and what it says of deaths and of polite ends."""

from __future__ import annotations

import asyncio
import time

import pytest
from conftest import Connect, Run, eventually

from meetupq.broker import Broker, sever
from meetupq.history import History
from meetupq.leases import Lease, Leases
from meetupq.roster import Claim, Roster
from meetupq.timing import Timing


@pytest.fixture
async def roster(connect: Connect, timing: Timing, history: History) -> Roster:
    """On a connection of its own; it writes into the history of the test."""
    leases = Leases(await connect("roster"), timing, history)
    await leases.ensure()
    return Roster(leases)


def claim_of(roster: Roster, item: str = "import-eu") -> Claim | None:
    return next((claim for claim in roster.claims() if claim.item == item), None)


async def shown(roster: Roster, state: str, item: str = "import-eu", within: float = 5.0) -> Claim:
    """Wait until the roster shows an item in a state."""
    await eventually(lambda: (claim := claim_of(roster, item)) and claim.state == state, within)
    claim = claim_of(roster, item)
    assert claim is not None
    return claim


async def claimed(leases: Leases, owner: str = "ada", item: str = "import-eu") -> Lease:
    lease = await leases.claim(item, owner)
    assert lease is not None
    return lease


async def test_nothing_claimed_nothing_shown(roster: Roster) -> None:
    await roster.refresh()
    assert roster.claims() == []


async def test_a_claim_is_shown_with_all_that_is_known(
    roster: Roster, leases: Leases, history: History, timing: Timing, run: Run
) -> None:
    run(roster.run())
    before = history.now()
    lease = await claimed(leases)
    await shown(roster, "held")
    for _ in range(3):
        await lease.renew()
    await eventually(lambda: (claim := claim_of(roster)) and claim.renewals >= 2)
    claim = claim_of(roster)
    assert claim is not None
    assert (claim.owner, claim.token) == ("ada", lease.token.revision)
    assert lease.token.revision < claim.revision <= lease.revision
    assert before <= claim.since <= history.now()
    assert 0 < claim.expires_in <= timing.lease_ttl
    assert claim.evidence in ("watch", "list")
    assert 0 <= claim.evidence_age < 5
    assert claim.past_owners == ()


async def test_the_list_is_sorted_by_item(roster: Roster, leases: Leases) -> None:
    for item in ("reindex", "import-eu", "import-us"):
        await claimed(leases, item=item)
    await roster.refresh()
    assert [claim.item for claim in roster.claims()] == ["import-eu", "import-us", "reindex"]


async def test_the_watch_alone_is_enough_and_so_is_the_list_alone(
    roster: Roster, leases: Leases, run: Run, connect: Connect, timing: Timing
) -> None:
    lister = Roster(Leases(await connect(), timing))
    await lister.leases.ensure()
    run(roster._observer._watch())
    run(lister._observer._list())
    await claimed(leases)
    assert (await shown(roster, "held")).evidence == "watch"
    assert (await shown(lister, "held")).evidence == "list"


async def test_without_renewals_a_claim_becomes_suspect_then_expires(
    roster: Roster, leases: Leases, run: Run, history: History
) -> None:
    run(roster.run())
    lease = await claimed(leases)
    await shown(roster, "held")
    suspect = await shown(roster, "suspect")
    assert suspect.expires_in > 0
    gone = await shown(roster, "expired")
    assert (gone.owner, gone.expires_in) == ("ada", 0.0)
    [event] = history.where("expired")
    assert (event.job, event.worker, event.revision) == ("import-eu", "ada", lease.token.revision)
    assert event.source == "broker"


async def test_a_death_is_told_once(roster: Roster, leases: Leases, run: Run, history: History) -> None:
    """Not by the watch and the list both, nor again when the marker itself ages away a second later."""
    run(roster.run())
    await claimed(leases)
    await history.until("expired")
    await asyncio.sleep(leases.timing.marker + 1.0)
    await roster.refresh()
    assert len(history.where("expired")) == 1
    await claimed(leases, "bo")
    await history.until("expired", worker="bo")
    assert len(history.where("expired")) == 2


async def test_a_release_is_no_death_not_even_when_its_note_ages_away(
    roster: Roster, leases: Leases, run: Run, history: History, timing: Timing
) -> None:
    """The tombstone of a release has the bucket's TTL too, and leaves a marker like that of an expiry."""
    run(roster.run())
    lease = await claimed(leases)
    await shown(roster, "held")
    await lease.release()
    released = await shown(roster, "released")
    assert (released.owner, released.expires_in) == ("ada", 0.0)
    await asyncio.sleep(timing.lease_ttl + 0.5)
    await roster.refresh()
    assert claim_of(roster).state == "released"  # type: ignore[union-attr]
    await asyncio.sleep(timing.marker + 0.5)
    await roster.refresh()
    assert not history.where("expired")


async def test_owners_follow_one_another(roster: Roster, leases: Leases, run: Run) -> None:
    run(roster.run())
    tokens = []
    for owner in ("ada", "bo", "ada"):
        lease = await claimed(leases, owner)
        await eventually(lambda owner=owner: (c := claim_of(roster)) and (c.state, c.owner) == ("held", owner))
        claim = claim_of(roster)
        assert claim is not None
        tokens.append(claim.token)
        await lease.release()
        await shown(roster, "released")
    assert tokens == sorted(set(tokens))
    claim = claim_of(roster)
    assert claim is not None
    assert claim.past_owners == ("ada", "bo")


async def test_who_comes_when_only_a_marker_is_left_shows_nothing_and_tells_of_no_death(
    roster: Roster, leases: Leases, connect: Connect, timing: Timing, run: Run
) -> None:
    newcomer = Roster(Leases(await connect(), timing))
    await newcomer.leases.ensure()
    run(roster.run())
    await claimed(leases)
    await shown(roster, "expired")
    await newcomer.refresh()
    claim = claim_of(newcomer)
    assert claim is None
    assert not newcomer.history.where("expired")


@pytest.mark.parametrize("rubbish", [b"", b"rubbish", b"[]", b"\xff", b'{"owner": "x"}', b'{"token": null}'])
async def test_rubbish_in_the_bucket_is_nobodys_claim(roster: Roster, leases: Leases, rubbish: bytes) -> None:
    await leases.keys.put("import-eu", rubbish)
    await claimed(leases, item="import-us")
    await roster.refresh()
    assert [(claim.item, claim.owner) for claim in roster.claims()] == [("import-us", "ada")]


async def test_after_a_kill_of_the_broker_the_list_catches_up_soon(
    broker: Broker, roster: Roster, leases: Leases, run: Run
) -> None:
    """The watcher may be blind for many seconds then; the list is not."""
    run(roster.run())
    lease = await claimed(leases)
    await shown(roster, "held")
    await broker.kill()
    await broker.start()
    await eventually(lambda: leases.jetstream._nc.is_connected)
    await lease.renew()
    await claimed(leases, "bo", "import-us")
    await shown(roster, "held", "import-us", within=3)
    await eventually(lambda: (claim := claim_of(roster)) and claim.revision >= lease.revision, within=3)


async def test_an_expiry_during_an_outage_is_told_afterwards(
    broker: Broker, roster: Roster, leases: Leases, run: Run, history: History, timing: Timing
) -> None:
    run(roster.run())
    await claimed(leases)
    await shown(roster, "held")
    await broker.stop()
    await asyncio.sleep(timing.lease_ttl + 0.2)
    assert claim_of(roster).state == "suspect"  # type: ignore[union-attr]
    await broker.start()
    await history.until("expired", "import-eu", within=timing.marker + 5)
    assert len(history.where("expired")) == 1


async def test_what_was_missed_altogether_is_inferred_from_the_own_clock(
    roster: Roster, leases: Leases, history: History, timing: Timing
) -> None:
    """Neither watch nor list ran while the key and its marker came and went."""
    await claimed(leases)
    await roster.refresh()
    await asyncio.sleep(timing.lease_ttl + timing.marker + 1)
    await roster.refresh()
    assert claim_of(roster).state == "expired"  # type: ignore[union-attr]
    await roster.refresh()
    assert len(history.where("expired")) == 1


async def test_without_the_broker_what_is_known_grows_old(broker: Broker, roster: Roster, leases: Leases) -> None:
    await claimed(leases)
    await roster.refresh()
    await broker.kill()
    first = claim_of(roster)
    moment = time.monotonic()
    await asyncio.sleep(0.1)
    second = claim_of(roster)
    assert first is not None
    assert second is not None
    assert second.evidence_age - first.evidence_age == pytest.approx(time.monotonic() - moment, abs=0.05)
    assert second.expires_in < first.expires_in


async def test_the_roster_ends_when_it_is_cancelled(roster: Roster, leases: Leases, run: Run) -> None:
    """Also in the middle of its watch, and on a connection that is gone."""
    for gone in (False, True):
        task = run(roster.run())
        await claimed(leases, item=f"item-{gone}")
        await shown(roster, "held", f"item-{gone}")
        if gone:
            await sever(roster.leases.jetstream._nc)
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        assert task.done()
