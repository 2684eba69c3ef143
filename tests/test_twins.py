"""The text twins: what they tell is what the timeline says, in a few plain sentences."""

from __future__ import annotations

import pytest
from test_figures import (
    ENDS,
    deliver,
    each_end,
    escalated,
    history,
    ordinary,
    prefetched,
    reclaim,
    rejected,
    traffic,
    zombie,
    zombies,
)

from meetupq.history import Event
from meetupq.timeline import Timeline
from meetupq.timing import Timing
from meetupq.twins import describe_deliveries, describe_leases, post_mortem


def test_an_early_moment_of_a_recording_hides_what_came_later() -> None:
    assert describe_deliveries(ordinary(), now=3.0) == describe_deliveries(
        [event for event in ordinary() if event.at <= 3.0], now=3.0
    )
    assert "cy" not in describe_deliveries(ordinary(), now=3.0)


def test_the_twin_tells_the_killed_worker_and_the_retry() -> None:
    told = describe_deliveries(ordinary(), now=15.0)
    assert told.startswith("1 of 5 jobs was done at the first attempt.")
    assert (
        "resize-2 was delivered to bo, who was killed after 1.8 s. "
        "The broker waited until 6.0 s, then gave it to cy, who acked it at 9.0 s."
    ) in told
    assert "poison-1 failed 3 times (ada) and is in the DLQ since 13.8 s." in told
    assert told.index("poison-1") < told.index("resize-2"), "the newest first"
    assert told.endswith("In flight at 15.0 s: resize-3 with ada. resize-4 waits for a worker.")


@pytest.mark.parametrize("how", ENDS)
def test_the_twin_has_a_word_for_every_end(how: str) -> None:
    word = {
        "acked": "done at the first attempt", "naked": "handed it back", "failed": "failed without a word",
        "killed": "was killed", "timed_out": "said nothing until the broker gave up",
        "terminated": "terminated terminated",
    }[how]  # fmt: skip
    only = [event for event in each_end() if how in (event.job, event.kind)]
    assert word in describe_deliveries(only, now=3.0)


def test_the_twin_accounts_for_every_job() -> None:
    h = traffic(300)
    told, timeline = describe_deliveries(h), Timeline(h)
    first = sum(j.state == "done" and len(j.attempts) == 1 and not j.late for j in timeline.jobs.values())
    assert told.startswith(f"{first} of 300 jobs were done at the first attempt.")
    assert told.count("job-0") == 3, "three stories"
    assert told == describe_deliveries(timeline) == describe_deliveries(iter(h))
    assert "<" not in told


def poison() -> list:  # type: ignore[type-arg]
    """One job that fails silently with three workers."""
    h = history()
    h.append("published", "poison-1", at=0.2)
    for attempt, worker, at in ((1, "ada", 0.5), (2, "bo", 3.5), (3, "cy", 7.5)):
        deliver(h, "poison-1", worker, attempt, at)
        h.append("failed", "poison-1", worker, attempt=attempt, at=at + 1)
        h.append("timed_out", "poison-1", worker, attempt=attempt, at=at + 3)
    h.append("exhausted", "poison-1", at=12.6, source="broker")
    h.append("dead_lettered", "poison-1", attempt=3, at=17.7)
    h.append("redriven", "poison-1", at=20.0)
    deliver(h, "poison-1", "ada", 1, 21.0, 9)
    h.append("failed", "poison-1", "ada", attempt=1, at=22.0)
    return list(h)


@pytest.mark.parametrize(
    "now, told",
    [
        (1.0, "In flight at 1.0 s: poison-1 with ada."),
        (2.0, "poison-1 was delivered to ada, who failed without a word at 1.5 s. The broker waits until 3.5 s."),
        (4.0, "poison-1 was delivered to ada, who failed without a word at 1.5 s. "
              "The broker waited until 3.5 s, then gave it to bo, who is at work since 3.5 s."),
        (8.0, "poison-1 failed 2 times (ada, bo); then cy got it and is at work since 7.5 s."),
        (9.0, "poison-1 failed 3 times (ada, bo, cy), the last time at 8.5 s. The broker waits until 10.5 s."),
        (13.0, "poison-1 failed 3 times (ada, bo, cy) and is stuck: it has no delivery left, but stays in the queue."),
        (18.0, "poison-1 failed 3 times (ada, bo, cy) and is in the DLQ since 17.7 s."),
        (20.5, "poison-1 failed 3 times (ada, bo, cy), was redriven at 20.0 s and waits for a worker."),
        (21.5, "poison-1 failed 3 times (ada, bo, cy), was redriven at 20.0 s; then ada got it "
               "and is at work since 21.0 s."),
        (23.0, "poison-1 failed 4 times (ada, bo, cy), the last time at 22.0 s. The broker waits until 30.0 s."),
    ],
)  # fmt: skip
def test_the_life_of_a_poison_job(now: float, told: str) -> None:
    assert describe_deliveries(poison(), now=now) == told


def test_a_late_ack_is_called_late() -> None:
    h = history()
    h.append("published", "job", at=0.1)
    deliver(h, "job", "ada", 1, 0.5, 2)
    h.append("timed_out", "job", "ada", attempt=1, at=2.5)
    deliver(h, "job", "bo", 2, 2.6, 3)
    h.append("acked", "job", "ada", attempt=1, at=4.0)
    told = describe_deliveries(h, now=5.0)
    assert told == (
        "job went out 2 times; ada acked attempt 1 at 4.0 s, although the broker had given it to somebody else by then."
    )


@pytest.mark.parametrize("now", [3.0, 9.0, 14.0, 16.6, 40.0])
def test_the_twins_of_ordinary_runs_are_short(now: float) -> None:
    assert len(describe_deliveries(ordinary(), now=now)) <= 450
    assert len(describe_deliveries(each_end(), now=now)) <= 450
    assert len(describe_leases(reclaim(), now=now)) <= 450


def test_the_cause_of_a_loss_is_told_although_the_worker_is_back() -> None:
    h = reclaim()
    h.append("started", worker="ada", at=9.0, detail="leases")
    assert "ada held import-eu (r1) and was killed at 4.0 s" in describe_leases(h)
    assert "3.8 s after the kill" in describe_leases(h)
    assert "was cut off at 4.0 s" in describe_leases(reclaim(cause="cut"))


@pytest.mark.parametrize(
    ("now", "parts"),
    [
        (6.2, ["ada held import-eu (r1) and was frozen at 6.0 s; the lease still stands until 9.6 s.",
               "cy held import-us (r2) and was cut off at 5.0 s; the lease still stands until 8.7 s."]),
        (8.3, ["cy held import-us (r2) and was cut off at 5.0 s; cy gave up at 8.2 s, while the lease still stands",
               "dan held cleanup (r3), which was cancelled at 6.4 s and released it at 6.7 s.",
               "eve was frozen from 5.4 s to 8.1 s and lost nothing by it."]),
        (10.5, ["bo reclaimed it (r27) at 40 %, 4.0 s after the freeze, 0.30 s after expiry.",
                "ada still believes in it: it is frozen and can't know.",
                "dan reclaimed it (r20) at 60 %, 4.0 s after the cut, 0.30 s after expiry."]),
        (14.1, ["ada was thawed at 14.0 s and still believes in it."]),
        (16.0, ["4 work items: 2 held, 1 finished and 1 cancelled.",
                "1 stale write of import-eu by ada (r1) damaged the ledger without a fence; the one with a fence "
                "refused it.",
                "ada was thawed at 14.0 s and believed in it until 14.6 s."]),
    ],
)  # fmt: skip
def test_the_twin_tells_the_story_of_a_zombie(now: float, parts: list[str]) -> None:
    told = describe_leases(zombie(), now=now)
    for part in parts:
        assert part in told, told
    assert len(told) < 1000


def test_the_twin_counts_the_stale_writes_of_each_ledger() -> None:
    h = zombie()
    h.append("written", "import-eu", "ada", at=14.3, revision=1, attempt=6, detail="stale: token 27 wrote before")
    assert (
        "2 stale writes of import-eu by ada (r1) damaged the ledger without a fence; the one with a fence refused 1."
        in (describe_leases(h))
    )
    h = reclaim()
    h.append("fenced", "import-eu", "ada", at=8.0, revision=1, attempt=6, detail="older")
    assert "The ledger with a fence refused 1 write of import-eu by ada (r1)." in describe_leases(h)


def test_many_held_items_are_counted() -> None:
    h = history()
    for index in range(6):
        h.append("added", f"item-{index}", at=0.1)
        h.append("claimed", f"item-{index}", f"w{index}", at=0.5, revision=index + 1, until=5.0)
    told = describe_leases(h, now=4.0)
    assert told.startswith("6 work items: 6 held. w0 holds item-0 (r1, expires in 1.0 s), ")
    assert told.endswith("and 3 more.")


def test_a_job_that_several_workers_did_is_told_as_such() -> None:
    """Patience shorter than the work: nobody fails, and yet the job goes out again and again."""
    h = history()
    h.append("published", "report-1", at=0.0)
    for number, worker in enumerate(("ada", "bo", "cy"), start=1):
        h.append("delivered", "report-1", worker, at=number * 1.5, attempt=number, until=number * 1.5 + 1.5)
        h.append("timed_out", "report-1", worker, at=number * 1.5 + 1.5, attempt=number, source="inferred")
    h.append("acked", "report-1", "ada", at=5.2, attempt=1)
    h.append("acked", "report-1", "bo", at=6.7, attempt=2)
    told = describe_deliveries(h)
    assert "report-1 went out 3 times; ada acked attempt 1 at 5.2 s, although the broker had given it" in told
    assert "failed" not in told


def test_the_twin_tells_what_waits_in_whose_hands() -> None:
    now = describe_deliveries(prefetched(), now=2.0)
    assert now.startswith(
        "In flight at 2.0 s: resize-1 with ada, resize-5 with bo, resize-2 in ada's hands and 2 more."
    )
    killed = describe_deliveries(prefetched(killed=True), now=4.5)
    assert "resize-2 was delivered to ada, who was killed after 3.0 s." in killed
    assert "It waited in ada's hands until 2.5 s." in killed, "resize-2"
    assert killed.count("It was still in ada's hands.") == 2, "resize-3 and resize-4"


def test_the_twin_tells_an_escalation() -> None:
    told = describe_deliveries(escalated(), now=9.0)
    assert told == (
        "stats-1 failed 3 times (ada), moved on to the consumer of low at 6.5 s; "
        "then zoe got it and is at work since 6.5 s."
    )
    assert "moved on to the consumer of low at 6.5 s and waits for a worker." in describe_deliveries(
        escalated(gap=2), now=7.0
    )


def test_the_twin_tells_a_rejected_job_from_a_terminated_one() -> None:
    told = describe_deliveries(rejected())
    assert "bo terminated bad-2: it is gone, and there is no copy." in told
    assert "bad-1 failed once (ada), was terminated and is in the DLQ since 2.0 s." in told


def test_the_twin_names_those_who_go_on_in_vain() -> None:
    assert (
        "is stuck: it has no delivery left, but stays in the queue. ada, bo and cy are still at it, not knowing."
        in (describe_deliveries(zombies(), now=5.5))
    )
    assert "ada acked attempt 1 at 6.3 s, although the broker had given it to somebody else by then. bo and cy are" in (
        describe_deliveries(zombies(), now=7.0)
    )
    assert describe_deliveries(zombies(), now=8.0).endswith("cy is still at it, not knowing.")


def test_a_post_mortem_adds_up_only_what_was_waited_for() -> None:
    timing = Timing(ack_wait=3, backoff=(3, 4), max_deliver=2, heartbeat=1)

    def died(*ends: str) -> str:
        events = [Event(0, "published", "p", detail="jobs.high.poison")]
        for attempt, how in enumerate(ends, start=1):
            events.append(Event(attempt, "delivered", "p", "ada", attempt, until=attempt + 3.0))
            events.append(Event(attempt + 0.5, how, "p", "ada", attempt))
        return post_mortem([*events, Event(9, "dead_lettered", "p", attempt=2)], "p", timing)

    assert died("failed", "failed").endswith("dead 8.00 s after the first; the patience adds up to 3 + 4 = 7 s.")
    assert died("naked", "failed").endswith("the patience adds up to 4 = 4 s.")
    assert died("naked", "naked").endswith("none of them left anything to wait for (nak, term).")
    assert died("terminated").startswith("p: 1 delivery, ")
    assert post_mortem([], "p", timing) == "p was not delivered to anybody so far."
