"""What a forecast says, held against a simulation and against real owners, standbys, pauses and kills."""

from __future__ import annotations

import asyncio
import math
import random
import time
from typing import Any

import pytest
from conftest import Connect, Run
from hypothesis import given
from hypothesis import strategies as st

from meetupq import checks
from meetupq.broker import Broker, sever
from meetupq.errors import LeaseLost, TimingError
from meetupq.forecast import LATE, PER_LOOK, Forecast
from meetupq.history import Event, History
from meetupq.leases import Lease, Leases
from meetupq.takeovers import TAKEOVERS, Takeover, takeover
from meetupq.timing import Timing

CLASS = Timing.preset("class")
TALK = Timing.preset("talk")
TAKEOVER = [*TAKEOVERS]


def test_every_takeover_has_its_figures() -> None:
    assert set(LATE) == set(TAKEOVERS)


def test_the_figures_of_a_set_of_timers() -> None:
    forecast = Forecast(CLASS, items=10)
    assert forecast.worst == pytest.approx(4.38)
    assert forecast.typical == pytest.approx(3.71)
    assert (forecast.owner_messages, forecast.standby_messages, forecast.messages) == (20, 14, 34)
    assert (forecast.survives, forecast.costs) == (2.5, 3.5)
    assert [forecast.false_alarm(pause) for pause in (0, 2.5, 2.75, 3, 3.5, 99)] == [0, 0, 0.25, 0.5, 1, 1]


def test_each_takeover_is_as_late_as_what_it_waits_for() -> None:
    worst = {how: Forecast(CLASS, 10, how).worst for how in TAKEOVER}
    assert worst == pytest.approx({"poll": 4.88, "marker": 4.38, "key_ttl": 4.28, "observe": 4.03})
    assert Forecast(CLASS, 1, "key_ttl").worst == pytest.approx(4.04)  # no other lease keeps the broker's timer busy
    assert Forecast(CLASS, 10, "poll", 9).typical == pytest.approx(4 - 0.5 + 0.2 + 0.5 / 10 + 0.01)


def test_more_standbys_cost_more_messages_and_pollers_cost_most() -> None:
    assert Forecast(CLASS, 10, standbys=3).messages == 20 + 3 * 14
    assert Forecast(CLASS, 10, "poll").standby_messages == 120


def test_it_says_all_that_in_sentences() -> None:
    assert str(Forecast(CLASS, items=500)) == (
        "500 items, TTL 4 s, renewed every 1 s, margin 0.5 s, 1 standby by marker.\n"
        "After its owner's death an item has a new one in 3.7 s as a rule, in 4.38 s at worst.\n"
        "The broker passes on 1504 messages per second: 1000 of the owners (each renewal, and its ack), 504 of each "
        "standby.\n"
        "An owner that pauses for 2.5 s or less keeps its lease; one that pauses for more than 3.5 s loses it, "
        "although it lives."
    )
    few = str(Forecast(TALK, standbys=2))
    assert few.startswith("1 item, TTL 15 s, renewed every 5 s, margin 1 s, 2 standbys by marker.\n")
    assert (
        "passes on 4.8 messages per second: 0.4 of the owners (each renewal, and its ack), 2.2 of each standby" in few
    )


def test_timers_fit_or_not() -> None:
    forecast = Forecast(CLASS, items=10)
    assert forecast.fits(within=4.5, messages=34)
    assert not forecast.fits(within=4.3, messages=34)
    assert not forecast.fits(within=4.5, messages=33)


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"items": 0}, "items is 0, but a forecast takes a whole number from 1 to 1000000"),
    ({"items": 2.0}, "items is 2.0"),
    ({"items": True}, "items is True"),
    ({"items": 10**7}, "items is 10000000"),
    ({"standbys": 0}, "standbys is 0"),
    ({"standbys": None}, "standbys is None"),
    ({"takeover": "magic"}, "no takeover is called 'magic': choose 'poll', 'marker', 'key_ttl', 'observe'"),
    ({"timing": "class"}, "a forecast is made for a Timing, not for 'class'"),
    (
        {"takeover": "key_ttl", "timing": CLASS.but(lease_ttl=4.5)},
        "lease_ttl is 4.5 s, but a key's TTL takes whole seconds: the broker would make it 4 s",
    ),
]


@pytest.mark.parametrize(("changes", "told"), IMPOSSIBLE)
def test_an_impossible_forecast_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(TimingError) as caught:
        Forecast(**{"timing": CLASS} | changes)
    assert told in str(caught.value)


@pytest.mark.parametrize("pause", [-1, math.nan, math.inf, "1", None, True])
def test_a_pause_takes_seconds(pause: Any) -> None:
    with pytest.raises(TimingError, match="a pause takes seconds, 0 or more"):
        Forecast(CLASS).false_alarm(pause)


SECONDS = st.floats(0.001, 1000)


@st.composite
def timers(draw: st.DrawFn) -> Timing:
    renew, margin = draw(SECONDS), draw(SECONDS)
    ttl = max(2 * renew + margin, 1) + draw(st.floats(0, 1000))
    return CLASS.but(lease_ttl=ttl + 1e-9 * ttl, renew=renew, margin=margin, lobby=draw(SECONDS))


FORECASTS: dict[str, Any] = {
    "timing": timers(),
    "items": st.integers(1, 1_000_000),
    "how": st.sampled_from(TAKEOVER),
    "standbys": st.integers(1, 1000),
    "pause": st.floats(0, 5000),
    "more": st.integers(1, 1000),
}


@given(**FORECASTS)
def test_whatever_the_timers_no_figure_is_nonsense_and_a_longer_ttl_pulls_one_way(
    timing: Timing, items: int, how: str, standbys: int, pause: float, more: int
) -> None:
    if how == "key_ttl":
        timing = timing.but(lease_ttl=math.ceil(timing.lease_ttl))
    one = Forecast(timing, items, how, standbys)
    longer = Forecast(timing.but(lease_ttl=timing.lease_ttl + more), items, how, standbys)
    for forecast in (one, longer):
        figures = [forecast.worst, forecast.typical, forecast.messages, forecast.survives, forecast.costs]
        assert all(math.isfinite(figure) and figure > 0 for figure in figures)
        assert forecast.typical <= forecast.worst
        assert forecast.survives < forecast.costs < forecast.timing.lease_ttl < forecast.worst
        assert 0 <= forecast.false_alarm(pause) <= 1
        assert "nan" not in str(forecast)
    assert longer.worst > one.worst
    assert longer.typical > one.typical
    assert longer.messages == one.messages
    assert longer.false_alarm(pause) <= one.false_alarm(pause) <= one.false_alarm(pause + more)


@given(timing=timers(), share=st.floats(0, 1), seed=st.integers(0, 999))
def test_the_chance_of_a_false_alarm_is_that_of_a_simulation(timing: Timing, share: float, seed: int) -> None:
    """An owner that renews at every multiple of `renew` is paused at a random moment; its deadline passes or not."""
    forecast = Forecast(timing)
    pause = share * (timing.lease_ttl + timing.renew)
    moments, tries, lost = random.Random(seed), 2000, 0
    for _ in range(tries):
        begin = moments.uniform(0, 100 * timing.renew)
        last_renewal = begin // timing.renew * timing.renew
        lost += begin + pause > last_renewal + timing.lease_ttl - timing.margin
    chance = forecast.false_alarm(pause)
    assert lost / tries == pytest.approx(chance, abs=0.06)  # more than five standard deviations
    assert (lost == 0) if chance == 0 else (lost == tries) if chance == 1 else True


# --- against the real thing ------------------------------------------------------------------------


async def standby_of(how: str, connect: Connect, timing: Timing, history: History | None = None) -> Takeover:
    standby = takeover(how, await connect(how), timing, history)
    standby.leases.marker = None if how == "poll" else timing.marker
    await standby.leases.ensure()
    return standby


async def owned(owner: Takeover, key: str) -> Lease:
    lease = await owner.claim(key, "ada")
    assert lease is not None
    return lease


@pytest.mark.parametrize("how", TAKEOVER)
async def test_the_broker_passes_on_as_many_messages_as_forecast(
    how: str, connect: Connect, timing: Timing, history: History, run: Run
) -> None:
    """Each renewal is one message out and one in; counted by nats-py, of an owner of 20 leases and of one standby."""
    items = 20
    owner, standby = await standby_of(how, connect, timing, history), await standby_of(how, connect, timing)
    forecast = Forecast(timing, items, how)
    run(standby.run())
    for number in range(items):
        run((await owned(owner, f"item-{number}")).hold(asyncio.Event().wait()))
        run(standby.take_over(f"item-{number}", "bo"))
    await history.until("renewed", count=2 * items)

    def passed(who: Takeover) -> int:
        stats = who.leases.client.stats
        return int(stats["in_msgs"] + stats["out_msgs"])

    owners, standbys, renewals, begin = passed(owner), passed(standby), len(history.where("renewed")), time.monotonic()
    await history.until("renewed", count=renewals + 5 * items, within=30)
    seconds, renewals = time.monotonic() - begin, len(history.where("renewed")) - renewals
    owners, standbys = passed(owner) - owners, passed(standby) - standbys

    # By the renewal, whatever the machine's speed; those that are under way at either end may count half.
    per_renewal = forecast.owner_messages / forecast.renewals
    assert abs(owners - per_renewal * renewals) <= per_renewal * items
    # By the second, no more than forecast: a busy machine does less.
    assert 0 < owners / seconds <= forecast.owner_messages * 1.1 + per_renewal * items / seconds
    if how == "poll":
        assert 0 < standbys / seconds <= forecast.standby_messages * 1.1
    else:
        expected = forecast.standby_messages * renewals / forecast.renewals
        assert abs(standbys - expected) <= items + 2 * PER_LOOK * seconds / timing.lobby


@pytest.mark.parametrize("how", TAKEOVER)
async def test_no_takeover_after_a_kill_takes_longer_than_forecast(
    how: str, connect: Connect, timing: Timing, history: History, run: Run
) -> None:
    """The owner is killed as soon as it has renewed: the worst moment."""
    owner, standby = await standby_of(how, connect, timing, history), await standby_of(how, connect, timing)
    forecast = Forecast(timing, 2, how)
    run(standby.run())
    keeper = await standby_of(how, connect, timing)
    run((await owned(keeper, "other")).hold(asyncio.Event().wait()))
    holding = asyncio.ensure_future((await owned(owner, "import-eu")).hold(asyncio.Event().wait()))
    taking = asyncio.ensure_future(standby.take_over("import-eu", "bo"))
    await history.until("renewed", "import-eu", count=2)
    killed = time.monotonic()
    holding.cancel()
    await sever(owner.leases.client)
    await asyncio.wait_for(taking, forecast.worst + 10)
    delay = time.monotonic() - killed
    assert delay > timing.lease_ttl - timing.renew
    assert checks.within_bound([delay], forecast.worst, kills=1).status == "HELD", delay


class Pausing:
    """An owner on a thread and a loop of its own, which stands still once, at a known moment after a renewal."""

    def __init__(self, broker: Broker, timing: Timing, key: str, *, phase: float, pause: float) -> None:
        self.broker, self.timing, self.key = broker, timing, key
        self.phase, self.pause = phase, pause
        self._renewals = 0

    async def run(self) -> bool:
        """Whether it has kept its lease."""
        return await asyncio.to_thread(lambda: asyncio.run(self._own()))

    async def _own(self) -> bool:
        client = await self.broker.connect(self.key)
        history = History()
        history.subscribe(self._stand_still)
        leases = Leases(client, self.timing, history)
        await leases.ensure()
        lease = await leases.claim(self.key, "ada")
        assert lease is not None
        try:
            await lease.hold(history.until("renewed", count=3, within=60))
        except LeaseLost:
            return False
        finally:
            await sever(client)
        return True

    def _stand_still(self, event: Event) -> None:
        self._renewals += event.kind == "renewed"
        if event.kind == "renewed" and self._renewals == 1:
            asyncio.get_running_loop().call_later(self.phase, time.sleep, self.pause)


@pytest.mark.parametrize("phase", [0.0, 0.8])
async def test_a_pause_just_over_the_limit_costs_a_real_owner_its_lease_and_one_just_under_it_does_not(
    broker: Broker, leases: Leases, phase: float
) -> None:
    """The limit is TTL minus margin, less what has passed since the last renewal: from `survives` to `costs`."""
    timing = Timing.preset("ci").but(lease_ttl=4, renew=1, margin=0.5)
    await leases.jetstream.delete_key_value(leases.name)
    forecast = Forecast(timing)
    limit = forecast.costs - phase * timing.renew
    assert forecast.false_alarm(limit) == pytest.approx(1 - phase)
    under, over = (
        Pausing(broker, timing, name, phase=phase * timing.renew, pause=limit + change)
        for name, change in (("under", -0.6), ("over", 0.1))
    )
    assert await asyncio.gather(under.run(), over.run()) == [True, False]
