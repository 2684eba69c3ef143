"""Taking over: four ways to learn of an end, each safe; and why an observer's own clock is enough."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import pytest
from conftest import Connect, Run
from hypothesis import given, settings
from hypothesis import strategies as st

from meetupq import observer, takeovers
from meetupq.broker import Broker, sever
from meetupq.errors import LeaseError, TimingError
from meetupq.history import History
from meetupq.leases import Lease, Leases
from meetupq.observer import Sight
from meetupq.takeovers import TAKEOVERS, Observe, Takeover, takeover
from meetupq.timing import Timing
from meetupq.trials import Trial, measure

ALL = sorted(TAKEOVERS)
MakeStandby = Callable[..., Awaitable[Takeover]]


@pytest.fixture
async def standby(connect: Connect, timing: Timing, run: Run) -> MakeStandby:
    """Makes standbys that watch, on connections of their own: `await standby("observe")`."""

    async def standby(how: str, *, watching: bool = True, history: History | None = None) -> Takeover:
        made = takeover(how, await connect(), timing, history)
        await made.leases.ensure()
        if watching:
            run(made.run())
        return made

    return standby


def mine(lease: Lease | None) -> Lease:
    assert lease is not None
    return lease


async def seen(standby: Takeover, key: str, revision: int) -> Sight:
    async with asyncio.timeout(5):
        while (sight := standby._observer.sights.get(key)) is None or sight.revision < revision:
            await asyncio.sleep(0.002)
    return sight


# --- all four --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ALL)
async def test_a_dead_owner_is_followed_by_one_of_five_and_not_before_its_deadline(
    how: str, standby: MakeStandby, connect: Connect, timing: Timing
) -> None:
    owner = await standby(how, watching=False)
    five = [await standby(how) for _ in range(5)]
    lease = mine(await owner.claim("import-eu", "ada"))
    waiting = [asyncio.ensure_future(each.take_over("import-eu", f"standby-{n}")) for n, each in enumerate(five)]
    await lease.renew()
    deadline = lease.valid_until
    await sever(owner.leases.client)
    done, rest = await asyncio.wait(waiting, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    assert time.monotonic() >= deadline
    heir = done.pop().result()
    assert heir.token > lease.token
    await heir.renew()
    done, rest = await asyncio.wait(rest, timeout=timing.lease_ttl / 2)
    assert not done
    for task in rest:
        task.cancel()


@pytest.mark.parametrize("how", ALL)
async def test_what_is_renewed_is_not_taken_over(how: str, standby: MakeStandby, timing: Timing) -> None:
    owner, other = await standby(how), await standby(how)
    lease = mine(await owner.claim("import-eu", "ada"))
    waiting = asyncio.ensure_future(other.take_over("import-eu", "bo"))
    holding = asyncio.ensure_future(lease.hold(asyncio.Event().wait()))
    done, _ = await asyncio.wait({waiting, holding}, timeout=2 * timing.lease_ttl)
    assert not done
    for task in (waiting, holding):
        task.cancel()
    await asyncio.wait({waiting, holding})


@pytest.mark.parametrize("how", ALL)
async def test_what_is_released_is_taken_over_without_waiting_for_the_ttl(
    how: str, standby: MakeStandby, timing: Timing
) -> None:
    owner, other = await standby(how), await standby(how)
    lease = mine(await owner.claim("import-eu", "ada"))
    waiting = asyncio.ensure_future(other.take_over("import-eu", "bo"))
    expiry = time.monotonic() + timing.lease_ttl
    await lease.release()
    await asyncio.wait_for(waiting, 5)
    assert time.monotonic() < expiry


@pytest.mark.parametrize("how", ["marker", "key_ttl", "observe"])
async def test_a_takeover_from_a_dead_owner_is_told_as_a_reclaim(how: str, standby: MakeStandby) -> None:
    history = History()
    owner, other = await standby(how, watching=False), await standby(how, history=history)
    mine(await owner.claim("import-eu", "ada"))
    await asyncio.wait_for(other.take_over("import-eu", "bo"), 10)
    assert [event.kind for event in history] == ["reclaimed"]


async def test_without_markers_the_poller_still_takes_over(connect: Connect, timing: Timing) -> None:
    """As in the talk: the key is simply gone, and whoever creates it next has it."""
    standbys = [takeover("poll", await connect(), timing) for _ in range(2)]
    for each in standbys:
        each.leases.marker = None
        await each.leases.ensure()
    lease = mine(await standbys[0].claim("import-eu", "ada"))
    heir = await asyncio.wait_for(standbys[1].take_over("import-eu", "bo"), 10)
    assert heir.token > lease.token


async def test_an_unknown_kind_is_refused(connect: Connect, timing: Timing) -> None:
    with pytest.raises(LeaseError, match="choose 'poll', 'marker', 'key_ttl', 'observe'"):
        takeover("luck", await connect(), timing)


async def test_the_ttl_of_a_key_takes_whole_seconds(connect: Connect, timing: Timing) -> None:
    standby = takeover("key_ttl", await connect(), timing.but(lease_ttl=2.5))
    with pytest.raises(TimingError, match=r"lease_ttl is 2\.5 s, but the TTL of a key takes whole seconds"):
        await standby.leases.ensure()


async def test_a_key_of_its_own_ttl_lives_on_while_it_is_renewed(standby: MakeStandby, timing: Timing) -> None:
    """nats-py's `update` would have dropped the TTL, and the key would stay for ever once the bucket has none."""
    owner = await standby("key_ttl")
    lease = mine(await owner.claim("import-eu", "ada"))
    for _ in range(3):
        await asyncio.sleep(timing.lease_ttl / 2)
        await lease.renew()
    message = await owner.leases.jetstream.get_last_msg("KV_leases", "$KV.leases.import-eu")
    assert message.headers["Nats-TTL"] == f"{timing.lease_ttl}s"


# --- an observer's own clock -----------------------------------------------------------------------


async def test_an_observer_that_missed_a_renewal_fails_and_counts_anew(
    standby: MakeStandby, timing: Timing, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, blind = await standby("observe"), await standby("observe", watching=False)
    lease = mine(await owner.claim("import-eu", "ada"))
    await blind._observer.look("import-eu")
    await asyncio.sleep(timing.lease_ttl / 2)
    await lease.renew()
    later = time.monotonic() + 0.6 * timing.lease_ttl
    monkeypatch.setattr(takeovers, "time", Clock(lambda: later))
    assert blind.ended("import-eu") == (lease.token.revision, True), "as far as it knows, nobody has renewed it"
    monkeypatch.setattr(observer, "time", Clock(lambda: later))
    assert await blind.claim("import-eu", "bo") is None
    assert blind.ended("import-eu") is None, "it has seen the renewal now, and waits a whole TTL from there"
    await lease.renew()


async def test_a_newcomer_waits_a_whole_ttl_from_its_own_first_sight(standby: MakeStandby, timing: Timing) -> None:
    owner = await standby("observe", watching=False)
    lease = mine(await owner.claim("import-eu", "ada"))
    await asyncio.sleep(timing.lease_ttl / 2)
    newcomer = await standby("observe")
    first = await seen(newcomer, "import-eu", lease.revision)
    assert newcomer._observer.sights["import-eu"].at + timing.lease_ttl > lease.valid_until + timing.lease_ttl / 3
    assert first.note == ""
    # Unless the broker has removed the key by then: that is certain knowledge.
    await asyncio.wait_for(newcomer.take_over("import-eu", "bo"), 10)
    assert time.monotonic() < first.at + timing.lease_ttl + 0.1


class Clock:
    """In the place of the module `time`."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic


class Renewal:
    """Sent, applied by the broker, confirmed to the owner, seen by the observer: moments of true time."""

    def __init__(self, sent: float, delays: tuple[float, float, float]) -> None:
        self.sent = sent
        self.applied = sent + delays[0]
        self.confirmed = self.applied + delays[1]
        self.seen = self.applied + delays[2]


def overlap(ttl: float, margin: float, owner_rate: float, observer_rate: float, renewals: list[Renewal]) -> float:
    """By how much an owner may believe beyond the moment at which the observer becomes the owner; negative: not at all.

    The observer claims a TTL of its own clock after it saw a renewal, over the revision of that renewal; the broker
    refuses unless that is still the last one. The owner believes until its deadline: the sending of the last renewal
    that was confirmed, and TTL - margin of its own clock.
    """
    worst = -float("inf")
    for number, last_seen in enumerate(renewals):
        claim = last_seen.seen + ttl / observer_rate
        if any(later.applied <= claim for later in renewals[number + 1 :]):
            continue  # a newer revision: the compare-and-set fails
        confirmed = [each.sent for each in renewals[: number + 1] if each.confirmed <= claim]
        believes = max(confirmed, default=renewals[0].sent) + (ttl - margin) / owner_rate
        worst = max(worst, believes - claim)
    return worst


@st.composite
def lives(draw: st.DrawFn) -> list[Renewal]:
    """The renewals of one owner: late, slow, unconfirmed or unseen; in the order in which they are applied."""
    delay = st.floats(0, 3) | st.just(0.0)
    gaps = draw(st.lists(st.floats(0.01, 3), min_size=1, max_size=12))
    renewals, at = [], 0.0
    for gap in gaps:
        renewals.append(Renewal(at, (draw(delay), draw(delay), draw(delay))))
        at = max(at + gap, renewals[-1].applied)
    return renewals


@given(lives(), st.floats(1, 15), st.floats(0.05, 0.4), st.floats(0.9, 1.1), st.floats(0.9, 1.1))
@settings(deadline=None, max_examples=500)
def test_an_observers_clock_is_safe_as_long_as_the_margin_covers_the_drift(
    renewals: list[Renewal], ttl: float, share: float, owner_rate: float, observer_rate: float
) -> None:
    margin = share * ttl
    drift = max(1 - owner_rate / observer_rate, 0.0)
    if drift * ttl > margin:
        margin = drift * ttl
    assert overlap(ttl, margin, owner_rate, observer_rate, renewals) <= 1e-9


def test_the_model_shows_an_overlap_where_the_margin_does_not_cover_the_drift() -> None:
    """Or else the test above could not fail."""
    assert overlap(10, 0.5, owner_rate=0.9, observer_rate=1.0, renewals=[Renewal(0.0, (0, 0, 0))]) > 0.5
    assert overlap(10, 1.2, owner_rate=0.9, observer_rate=1.0, renewals=[Renewal(0.0, (0, 0, 0))]) < 0


async def test_the_model_counts_as_the_code_does(standby: MakeStandby, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner from before the sending, the observer from the seeing, both by their own clocks."""
    owner, other = await standby("observe", watching=False), await standby("observe", watching=False)
    before = time.monotonic()
    lease = mine(await owner.claim("import-eu", "ada"))
    timing = owner.leases.timing
    assert before <= lease.valid_until - (owner.leases.ttl - timing.margin) <= time.monotonic()
    await other._observer.look("import-eu")
    at = other._observer.sights["import-eu"].at
    assert at >= lease.valid_until - (owner.leases.ttl - timing.margin)
    for moment, ended in ((at + other.leases.ttl - 0.001, None), (at + other.leases.ttl, (lease.revision, True))):
        monkeypatch.setattr(takeovers, "time", Clock(lambda moment=moment: moment))  # type: ignore[misc]
        assert other.ended("import-eu") == ended


async def test_twenty_observers_never_take_over_from_an_owner_that_renews_late(
    standby: MakeStandby, timing: Timing, run: Run
) -> None:
    """Renewals at random moments up to the deadline, against three observers, on a real broker."""
    owner = await standby("observe", watching=False)
    others = [await standby("observe") for _ in range(3)]
    lease = mine(await owner.claim("import-eu", "ada"))
    for number, each in enumerate(others):
        run(each.take_over("import-eu", f"standby-{number}"))
    moments = random.Random(3)
    for _ in range(6):
        await asyncio.sleep(moments.uniform(0.5, 1.0) * (timing.lease_ttl - timing.margin))
        assert lease.remaining() > -0.2
        await lease.renew()  # raises LeaseLost if anybody has it


# --- watching --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["marker", "observe"])
async def test_after_a_restart_of_the_broker_a_death_is_noticed_in_time(
    how: str, broker: Broker, standby: MakeStandby, timing: Timing
) -> None:
    """nats-py's watcher is blind then for many seconds; a standby gets a new one with its new connection."""
    owner, other = await standby(how, watching=False), await standby(how)
    await broker.kill()
    await broker.start()
    async with asyncio.timeout(5):
        while not (owner.leases.client.is_connected and other.leases.client.is_connected):
            await asyncio.sleep(0.01)
    lease = mine(await owner.claim("import-eu", "ada"))
    await seen(other, "import-eu", lease.revision)
    await asyncio.wait_for(other.take_over("import-eu", "bo"), timing.worst_reclaim + 3)


async def test_a_standby_has_one_watcher_also_after_many_reconnects(
    broker: Broker, standby: MakeStandby, leases: Leases
) -> None:
    other = await standby("marker")
    for _ in range(3):
        await broker.kill()
        await broker.start()
        async with asyncio.timeout(5):
            while not other.leases.client.is_connected or not leases.client.is_connected:
                await asyncio.sleep(0.01)
        lease = mine(await leases.claim("import-eu", "ada"))
        await seen(other, "import-eu", lease.revision)
        await lease.release()
    alive = [task for task in asyncio.all_tasks() if "watch" in task.get_name()]
    assert len(alive) == 1
    subscriptions = [sub for sub in other.leases.client._subs.values() if sub._cb is not None]
    assert len(subscriptions) <= 2, "one for the watch, one for the answers to requests"


# --- a trial ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ALL)
async def test_a_trial_measures_each_kill(how: str, broker: Broker, timing: Timing) -> None:
    trial = await measure(broker, how, timing, kills=3, standbys=2, others=3)
    assert len(trial.delays) == 3
    assert all(-timing.margin < delay < 5 for delay in trial.delays)
    assert len(trial.after_note) == (3 if how in ("marker", "key_ttl") else 0) or how == "observe"
    assert all(0 <= delay < 5 for delay in trial.after_note)
    client = await broker.connect()
    assert not [name for name in await client.jetstream().streams_info() if "trial" in name.config.name]
    await client.close()


async def test_an_observer_is_faster_than_the_brokers_own_step(broker: Broker, timing: Timing) -> None:
    """In one run, so that a slow machine slows both."""
    trials = [await measure(broker, how, timing, kills=6, standbys=2, others=5) for how in ("observe", "marker")]
    assert trials[0].median < trials[1].median


def test_a_trial_says_what_it_found(timing: Timing) -> None:
    trial = Trial("observe", tuple(n / 1000 for n in range(1, 21)), (), timing, 3, 20)
    assert (trial.median, trial.percentile(95), trial.worst) == (0.010, 0.019, 0.020)
    assert str(trial) == "observe: 20 kills, later than the TTL by 10, 19, 20 ms (median, 95 %, worst)"


@pytest.mark.parametrize("wrong", [{"kills": 0}, {"standbys": 0}, {"others": -1}, {"kills": 2.5}, {"kills": 10**6}])
async def test_a_trial_of_nothing_is_refused(broker: Broker, timing: Timing, wrong: dict[str, int]) -> None:
    with pytest.raises(LeaseError, match=f"{next(iter(wrong))} is .*, but a trial takes"):
        await measure(broker, "observe", timing, **wrong)  # type: ignore[arg-type]
    with pytest.raises(LeaseError, match="no takeover is called 'luck'"):
        await measure(broker, "luck", timing, kills=1)


def test_observe_is_one_of_the_four() -> None:
    assert TAKEOVERS["observe"] is Observe
    assert ALL == ["key_ttl", "marker", "observe", "poll"]
