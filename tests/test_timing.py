"""Durations: the presets, what the constructor refuses and how it says so, and the broker's own measure of them."""

from __future__ import annotations

import pytest
from conftest import Run

from meetupq.dead_letters import DeadLetters
from meetupq.errors import TimingError
from meetupq.history import History
from meetupq.timing import PRESETS, Timing
from meetupq.work_queue import WorkQueue
from meetupq.workers import QueueWorker, job_payload


@pytest.mark.parametrize("name", ["talk", "class", "ci"])
def test_presets_are_found_by_name_and_carry_it(name: str) -> None:
    assert Timing.preset(name) is PRESETS[name]
    assert Timing.preset(name).name == name


def test_the_talks_durations_are_those_of_the_talk() -> None:
    talk = Timing.preset("talk")
    assert (talk.backoff, talk.max_deliver, talk.lease_ttl) == ((5, 10, 15), 4, 15)


def test_the_class_presets_lease_and_heartbeat_suit_a_slow_machine() -> None:
    assert Timing.preset("class").lease_ttl >= 3
    assert Timing.preset("class").heartbeat == 1


def test_an_unknown_preset_is_refused_with_the_choice() -> None:
    with pytest.raises(TimingError, match="no timing is called 'slow': choose 'talk', 'class', 'ci'"):
        Timing.preset("slow")


def test_chosen_takes_an_object_a_name_the_environment_or_class(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Timing(ack_wait=9)
    assert Timing.chosen(own) is own
    assert Timing.chosen("ci").name == "ci"
    assert Timing.chosen().name == "class"
    monkeypatch.setenv("MEETUPQ_TIMING", "talk")
    assert Timing.chosen().name == "talk"
    assert Timing.chosen("ci").name == "ci"
    monkeypatch.setenv("MEETUPQ_TIMING", "")
    assert Timing.chosen().name == "class"
    monkeypatch.setenv("MEETUPQ_TIMING", "fast")
    with pytest.raises(TimingError, match="'fast'"):
        Timing.chosen()


# Each impossible set, and both numbers that its refusal must name.
IMPOSSIBLE = [
    ({"backoff": (3, 3, 3, 3), "max_deliver": 3}, "4 entries", "max_deliver is 3"),
    ({"ack_wait": 2.0, "heartbeat": 1.2}, "1.2 s", "2 s"),
    ({"ack_wait": 9.0, "backoff": (9, 1.5), "heartbeat": 1.0}, "heartbeat is 1 s", "1.5 s"),
    ({"lease_ttl": 3.0, "renew": 1.4, "margin": 0.5}, "renew is 1.4 s", "lease_ttl is 3 s"),
    ({"lease_ttl": 3.0, "renew": 1.0, "margin": 1.25}, "margin of 1.25 s", "lease_ttl is 3 s"),
    ({"lease_ttl": 0.9, "renew": 0.2, "margin": 0.1}, "lease_ttl is 0.9 s", "1 s"),
]


@pytest.mark.parametrize(("changes", "one", "other"), IMPOSSIBLE)
def test_an_impossible_set_is_refused_and_names_both_numbers(changes: dict[str, object], one: str, other: str) -> None:
    with pytest.raises(TimingError) as caught:
        Timing(**changes)  # type: ignore[arg-type]
    assert one in str(caught.value)
    assert other in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"ack_wait": 2.0, "heartbeat": 1.0},
        {"lease_ttl": 3.0, "renew": 1.25, "margin": 0.5},
        {"backoff": (3, 3, 3), "max_deliver": 3},
        {"lease_ttl": 1, "renew": 0.3, "margin": 0.2},
    ],
)
def test_a_set_at_its_very_limit_is_accepted(changes: dict[str, object]) -> None:
    Timing(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "3", None, True, 1e7])
@pytest.mark.parametrize(
    "name", ["ack_wait", "heartbeat", "work", "lease_ttl", "renew", "margin", "marker", "sweep", "lobby", "max_deliver"]
)
def test_a_duration_is_a_number_above_zero(name: str, value: object) -> None:
    with pytest.raises(TimingError, match=name):
        Timing(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("backoff", [(0,), (3, -1), ("3",), (3, None), 3, "33"])
def test_a_backoff_is_a_row_of_such_numbers(backoff: object) -> None:
    with pytest.raises(TimingError, match="backoff"):
        Timing(backoff=backoff)  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"max_deliver": 2.5}, {"marker": 1.5}])
def test_counts_are_whole(changes: dict[str, float]) -> None:
    with pytest.raises(TimingError, match="takes a whole number"):
        Timing(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "low", ["class", 3, {"ack_wait": 3}, Timing, Timing(low=Timing())], ids=["name", "number", "dict", "type", "nested"]
)
def test_the_durations_of_low_are_a_timing_without_a_low_of_its_own(low: object) -> None:
    with pytest.raises(TimingError, match=r"low is .*, but it takes a Timing, one without a `low` of its own"):
        Timing(low=low)  # type: ignore[arg-type]


def test_each_priority_has_its_durations() -> None:
    low = Timing(ack_wait=9, max_deliver=5)
    timing = Timing(low=low)
    assert (timing.of("high"), timing.of("low")) == (timing, low)
    assert Timing().of("low") == Timing().of("high") == Timing()
    assert timing.but(ack_wait=4).of("low") is low
    assert timing.but(low=None).of("low").ack_wait == timing.ack_wait


def test_but_changes_some_and_names_what_it_does_not_know() -> None:
    ci = Timing.preset("ci")
    assert ci.but(sweep=9.0).sweep == 9.0
    assert ci.but(sweep=9.0).backoff == ci.backoff
    assert ci.but(sweep=9.0).name == "own"
    with pytest.raises(TimingError, match="no duration is called 'ackwait': choose from name, ack_wait"):
        ci.but(ackwait=1)
    with pytest.raises(TimingError):
        ci.but(renew=1.9)


def test_a_changed_ack_wait_is_not_overruled_by_an_old_backoff() -> None:
    changed = Timing.preset("ci").but(ack_wait=2.0)
    assert changed.effective_ack_wait == changed.patience(1) == 2.0
    assert Timing.preset("ci").but(ack_wait=2.0, backoff=(1, 2)).effective_ack_wait == 1


def test_patience_follows_the_backoff_and_repeats_its_last_entry() -> None:
    timing = Timing(backoff=(5, 10, 15), max_deliver=5)
    assert [timing.patience(attempt) for attempt in range(1, 6)] == [5, 10, 15, 15, 15]
    assert timing.time_to_dead == 60
    assert timing.effective_ack_wait == 5


def test_without_a_backoff_patience_is_ack_wait() -> None:
    timing = Timing(ack_wait=3, max_deliver=4)
    assert [timing.patience(attempt) for attempt in range(1, 5)] == [3, 3, 3, 3]
    assert timing.time_to_dead == 12


async def test_a_silent_poison_job_dies_when_the_timing_says(
    queue: WorkQueue, dead_letters: DeadLetters, timing: Timing, history: History, run: Run
) -> None:
    """From its first delivery to the broker's advisory, with a worker that always waits for work."""
    run(dead_letters.run(sweeps=lambda: False))
    run(QueueWorker("ada", queue).run())
    await queue.publish("poison-1", job_payload(seconds=0, ending="silence"))
    first = await history.until("delivered", "poison-1")
    death = await history.until("exhausted", "poison-1", within=timing.time_to_dead + 5)
    assert death.source == "broker"
    assert timing.time_to_dead <= death.at - first.at + 0.02 < timing.time_to_dead + 1
    assert [event.attempt for event in history.where("delivered", "poison-1")] == [1, 2, 3]
