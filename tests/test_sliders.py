"""The sliders: what they say is the forecast of where they stand; what contradicts itself is said in one sentence."""

from __future__ import annotations

import pytest

from meetupq.errors import TimingError
from meetupq.forecast import Forecast
from meetupq.sliders import TimerSliders
from meetupq.timing import Timing


@pytest.fixture
def sliders(timing: Timing) -> TimerSliders:
    return TimerSliders(timing)


def told(sliders: TimerSliders) -> str:
    return str(sliders._told.value)


def test_they_begin_where_the_timing_stands(sliders: TimerSliders, timing: Timing) -> None:
    assert (sliders.ttl.value, sliders.renew.value) == (timing.lease_ttl, timing.renew)
    assert sliders.forecast == Forecast(sliders.timing, items=20, takeover="observe", standbys=3)
    assert sliders.timing.margin == timing.margin


def test_every_slider_changes_what_is_told_at_once(sliders: TimerSliders) -> None:
    for control, value in (
        (sliders.ttl, 6.0), (sliders.renew, 1.5), (sliders.items, 300), (sliders.standbys, 7), (sliders.pause, 4.0),
        (sliders.takeover, "poll"),
    ):  # fmt: skip
        before = told(sliders)
        control.value = value
        assert told(sliders) != before, control.description
    forecast = Forecast(sliders.timing, 300, "poll", 7)
    assert f"<b>{forecast.worst:.2f} s</b>" in told(sliders)
    assert f"<b>{forecast.messages:,.0f} /s</b>" in told(sliders)
    assert f"<b>{100 * forecast.false_alarm(4.0):.0f} %</b>" in told(sliders)


def test_the_text_twin_is_the_forecast_in_sentences(sliders: TimerSliders) -> None:
    assert str(sliders.forecast).split(".")[0] in sliders._twin.value
    sliders.items.value = 777
    assert "777 items" in sliders._twin.value


def test_what_contradicts_itself_is_refused_in_a_sentence_and_can_be_mended(sliders: TimerSliders) -> None:
    sliders.ttl.value, sliders.renew.value = 2.0, 1.9
    assert "renew is 1.9 s but lease_ttl is 2 s" in told(sliders)
    with pytest.raises(TimingError, match=r"renew is 1\.9 s but lease_ttl is 2 s"):
        _ = sliders.forecast
    sliders.renew.value = 0.5
    assert "refused" not in told(sliders)


def test_a_ttl_that_no_key_can_have_is_refused_too(sliders: TimerSliders) -> None:
    sliders.takeover.value = "key_ttl"
    sliders.ttl.value = 2.5
    assert "a key&#x27;s TTL takes whole seconds" in told(sliders)


def test_every_control_says_what_it_is_for(sliders: TimerSliders) -> None:
    controls = [sliders.ttl, sliders.renew, sliders.items, sliders.standbys, sliders.pause, sliders.takeover]
    assert all(control.description and control.tooltip for control in controls)
    assert repr(sliders) == "<TimerSliders>"


@pytest.mark.parametrize("name", ["talk", "class", "ci"])
def test_every_preset_fits_on_the_sliders(name: str) -> None:
    timing = Timing.preset(name)
    sliders = TimerSliders(timing)
    assert (sliders.timing.lease_ttl, sliders.timing.renew) == (timing.lease_ttl, timing.renew)
