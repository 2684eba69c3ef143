"""The fold of a history: hand-made stories for each state, and random ones that must never raise or lose a job."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meetupq.history import KINDS, SOURCES, Event
from meetupq.timeline import JOB_STATES, Timeline


def told(*lines: str, until: float = 0.0) -> Timeline:
    """A timeline of one job per line: "kind job worker attempt", one second apart; "-" leaves a word out.

    The broker's patience with a delivery is 10 s; `until` is the expiry of all leases.
    """
    events = []
    for second, line in enumerate(lines, start=1):
        kind, job, worker, number = (*line.split(), "-", "-", "-")[:4]
        lease = kind in ("claimed", "reclaimed", "renewed", "released", "lost", "expired", "finished", "checkpointed")
        count = 0 if number == "-" else int(number)
        events.append(
            Event(
                at=float(second),
                kind=kind,
                job="" if job == "-" else job,
                worker="" if worker == "-" else worker,
                attempt=0 if lease else count,
                revision=count if lease else 0,
                until=until if lease else second + 10.0,
            )
        )
    return Timeline(events)


# --- jobs ------------------------------------------------------------------------------------------

PUBLISHED = "published a"
FIRST = "delivered a ada 1"
SECOND = "delivered a bo 2"


@pytest.mark.parametrize(
    ("story", "state"),
    [
        ([PUBLISHED], "waiting"),
        ([PUBLISHED, FIRST], "in flight"),
        ([PUBLISHED, FIRST, "progressed a ada 1"], "in flight"),
        ([PUBLISHED, FIRST, "failed a ada 1"], "in flight"),
        ([PUBLISHED, FIRST, "killed - ada"], "in flight"),
        ([PUBLISHED, FIRST, "timed_out a ada 1"], "retrying"),
        ([PUBLISHED, FIRST, "naked a ada 1"], "retrying"),
        ([PUBLISHED, FIRST, "naked a ada 1", SECOND], "in flight"),
        ([PUBLISHED, FIRST, "acked a ada 1"], "done"),
        ([FIRST, PUBLISHED, "acked a ada 1"], "done"),
        ([FIRST, "acked a ada 1", PUBLISHED], "done"),
        ([PUBLISHED, FIRST, SECOND, "acked a ada 1"], "done"),
        ([PUBLISHED, FIRST, "timed_out a ada 1", "exhausted a - 1"], "stuck"),
        ([PUBLISHED, FIRST, "exhausted a - 1", "exhausted a - 1"], "stuck"),
        ([PUBLISHED, FIRST, "exhausted a - 1", "dead_lettered a ada 1"], "dead"),
        ([PUBLISHED, FIRST, "dead_lettered a ada 1", "exhausted a - 1"], "dead"),
        ([PUBLISHED, FIRST, "exhausted a - 1", "late_success a"], "done"),
        ([PUBLISHED, FIRST, "dead_lettered a ada 1", "late_success a"], "done"),
        ([PUBLISHED, FIRST, "exhausted a - 1", "acked a ada 1"], "done"),
        ([PUBLISHED, FIRST, "dead_lettered a ada 1", "acked a ada 1"], "dead"),
        ([PUBLISHED, FIRST, "acked a ada 1", "dead_lettered a ada 1"], "dead"),
        ([PUBLISHED, FIRST, "dead_lettered a ada 1", "redriven a"], "waiting"),
        ([PUBLISHED, FIRST, "dead_lettered a ada 1", "redriven a", "published a", FIRST], "in flight"),
        ([PUBLISHED, FIRST, "dead_lettered a ada 1", "redriven a", FIRST, "acked a ada 1"], "done"),
        ([PUBLISHED, FIRST, "dead_lettered a ada 1", "redriven a", FIRST, "dead_lettered a ada 1"], "dead"),
    ],
)
def test_the_state_of_a_job(story: list[str], state: str) -> None:
    """An ack that comes when the letter is written doesn't undo it: the broker has said that the job is dead."""
    timeline = told(*story)
    assert timeline.jobs["a"].state == state
    assert timeline.counts == {name: int(name == state) for name in JOB_STATES}


def test_an_attempt_that_was_killed_ends_there_but_the_broker_still_waits() -> None:
    [attempt] = told(PUBLISHED, FIRST, "killed - ada").jobs["a"].attempts
    assert (attempt.how, attempt.end, attempt.closed) == ("killed", 3.0, None)
    assert attempt.open


def test_a_second_worker_that_is_killed_after_the_first_ones_late_ack_does_not_work_for_ever() -> None:
    _, second = told(PUBLISHED, FIRST, SECOND, "acked a ada 1", "killed - bo").jobs["a"].attempts
    assert (second.how, second.end) == ("killed", 5.0)


def test_a_killed_workers_attempt_is_closed_by_the_next_delivery() -> None:
    first, second = told(PUBLISHED, FIRST, "killed - ada", SECOND).jobs["a"].attempts
    assert (first.how, first.end, first.closed) == ("killed", 3.0, 4.0)
    assert (second.worker, second.open) == ("bo", True)


def test_an_attempt_whose_patience_ran_out_is_closed_at_that_moment_not_when_it_was_noticed() -> None:
    events = [
        Event(1.0, "published", "a"),
        Event(2.0, "delivered", "a", "ada", 1, until=3.0),
        Event(9.0, "delivered", "a", "bo", 2, until=10.0),
    ]
    first = Timeline(events).jobs["a"].attempts[0]
    assert (first.how, first.end, first.closed) == ("timed_out", 3.0, 3.0)


def test_heartbeats_move_the_patience() -> None:
    [attempt] = told(PUBLISHED, FIRST, "progressed a ada 1").jobs["a"].attempts
    assert attempt.beats == [3.0]
    assert attempt.until == 13.0


def test_a_failed_attempt_ends_for_the_worker_only() -> None:
    timeline = told(PUBLISHED, FIRST, "failed a ada 1")
    [attempt] = timeline.jobs["a"].attempts
    assert (attempt.how, attempt.end, attempt.open) == ("failed", 3.0, True)
    assert timeline.workers["ada"].state == "waiting"


def test_overdue_are_the_attempts_that_nobody_has_spoken_of() -> None:
    timeline = told(PUBLISHED, FIRST)
    assert timeline.overdue(11.9) == []
    assert [(job.name, attempt.number) for job, attempt in timeline.overdue(12.0)] == [("a", 1)]
    assert told(PUBLISHED, FIRST, "timed_out a ada 1").overdue(99) == []
    assert told(PUBLISHED, FIRST, "acked a ada 1").overdue(99) == []


def test_a_late_ack_is_marked_and_stays_so() -> None:
    """Ada was given up, bo has the job, ada acks all the same: the broker takes it. Then bo acks too."""
    job = told(PUBLISHED, FIRST, SECOND, "acked a ada 1").jobs["a"]
    assert (job.late, job.done) == (True, 4.0)
    job = told(PUBLISHED, FIRST, SECOND, "acked a ada 1", "acked a bo 2").jobs["a"]
    assert (job.late, job.done) == (True, 4.0)
    assert not told(PUBLISHED, FIRST, "acked a ada 1").jobs["a"].late


def test_a_redriven_job_keeps_its_past_and_starts_at_1_again() -> None:
    job = told(
        PUBLISHED, FIRST, SECOND, "exhausted a - 2", "dead_lettered a bo 2", "redriven a", "delivered a cy 1"
    ).jobs["a"]
    assert [(attempt.worker, attempt.number) for attempt in job.attempts] == [("ada", 1), ("bo", 2), ("cy", 1)]
    assert job.redriven == [6.0]
    assert (job.dead, job.exhausted) == (None, None)


def test_the_brokers_word_on_exhaustion_counts_more_than_the_inferred_one() -> None:
    inferred, said = (Event(at, "exhausted", "a", source=source) for at, source in ((1.0, "inferred"), (2.0, "broker")))
    assert Timeline([inferred]).jobs["a"].exhausted_source == "inferred"
    job = Timeline([inferred, said]).jobs["a"]
    assert (job.exhausted, job.exhausted_source) == (1.0, "broker")
    assert Timeline([said, inferred]).jobs["a"].exhausted_source == "broker"


def test_the_holder_is_who_had_the_job_last() -> None:
    assert told(PUBLISHED, FIRST, SECOND).holder("a") == "bo"
    assert told(PUBLISHED).holder("a") == told().holder("b") == ""


# --- leases ----------------------------------------------------------------------------------------

ADDED = "added w"
CLAIM = "claimed w ada 5"


@pytest.mark.parametrize(
    ("story", "state"),
    [
        ([ADDED], "free"),
        ([ADDED, CLAIM], "held"),
        ([ADDED, CLAIM, "renewed w ada 5"], "held"),
        ([ADDED, CLAIM, "killed - ada"], "suspect"),
        ([ADDED, CLAIM, "frozen - ada"], "suspect"),
        ([ADDED, CLAIM, "cut - ada"], "suspect"),
        ([ADDED, CLAIM, "frozen - ada", "thawed - ada"], "held"),
        ([ADDED, CLAIM, "cut - ada", "restored - ada"], "held"),
        ([ADDED, CLAIM, "killed - ada", "expired w ada 5"], "free"),
        ([ADDED, CLAIM, "killed - ada", "expired w ada 5", "reclaimed w bo 9"], "held"),
        ([ADDED, CLAIM, "frozen - ada", "reclaimed w bo 9", "thawed - ada", "lost w ada 5"], "held"),
        ([ADDED, CLAIM, "released w ada 5"], "free"),
        ([ADDED, CLAIM, "lost w ada 5"], "free"),
        ([ADDED, CLAIM, "finished w ada 5", "released w ada 5"], "done"),
    ],
)
def test_the_state_of_a_work_item(story: list[str], state: str) -> None:
    assert told(*story).items["w"].state == state


def test_an_ownership_that_ran_out_is_followed_by_the_next_with_a_larger_token() -> None:
    first, second = told(ADDED, CLAIM, "killed - ada", "expired w ada 5", "reclaimed w bo 9").items["w"].ownerships
    assert (first.worker, first.gone, first.how, first.end) == ("ada", 3.0, "expired", 4.0)
    assert (second.worker, second.token, second.reclaimed, second.end) == ("bo", 9, True, None)


def test_a_new_claim_proves_that_the_old_one_ended_at_its_expiry() -> None:
    first, _ = told(ADDED, CLAIM, "killed - ada", "reclaimed w bo 9", until=3.5).items["w"].ownerships
    assert (first.how, first.end) == ("superseded", 3.5)


def test_a_late_word_about_the_old_ownership_leaves_the_new_one_alone() -> None:
    first, second = told(ADDED, CLAIM, "reclaimed w bo 9", "lost w ada 5", "expired w ada 5").items["w"].ownerships
    assert first.how == "lost"
    assert (second.worker, second.end) == ("bo", None)


def test_a_worker_that_reclaims_from_itself_is_told_apart_by_its_tokens() -> None:
    first, second = told(ADDED, CLAIM, "reclaimed w ada 9", "lost w ada 5").items["w"].ownerships
    assert (first.token, first.how) == (5, "lost")
    assert (second.token, second.end) == (9, None)


def test_a_word_without_a_token_is_about_the_workers_latest_ownership() -> None:
    [ownership] = told(ADDED, CLAIM, "lost w ada").items["w"].ownerships
    assert (ownership.how, ownership.end) == ("lost", 3.0)


def test_progress_is_the_last_word_of_a_checkpoint() -> None:
    events = [Event(1.0, "added", "w"), Event(2.0, "checkpointed", "w", "ada", detail="3 of 10 steps")]
    assert Timeline(events).items["w"].progress == "3 of 10 steps"


# --- workers and broker ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("story", "state", "holds"),
    [
        (["started - ada"], "waiting", ""),
        (["started - ada", PUBLISHED, FIRST], "working", "a"),
        (["started - ada", PUBLISHED, FIRST, "acked a ada 1"], "waiting", ""),
        (["started - ada", PUBLISHED, FIRST, "killed - ada"], "killed", "a"),
        (["started - ada", PUBLISHED, FIRST, "killed - ada", "started - ada"], "waiting", ""),
        (["started - ada", PUBLISHED, FIRST, "frozen - ada"], "frozen", "a"),
        (["started - ada", PUBLISHED, FIRST, "frozen - ada", "thawed - ada"], "working", "a"),
        (["started - ada", "cut - ada"], "cut off", ""),
        (["started - ada", "cut - ada", "restored - ada"], "waiting", ""),
        (["started - ada", PUBLISHED, FIRST, "stopped - ada"], "stopped", ""),
        (["started - ada", ADDED, CLAIM], "working", "w"),
        (["started - ada", ADDED, CLAIM, "released w ada 5"], "waiting", ""),
    ],
)
def test_the_state_of_a_worker(story: list[str], state: str, holds: str) -> None:
    worker = told(*story).workers["ada"]
    assert (worker.state, worker.holds) == (state, holds)


def test_a_workers_role_is_what_it_was_started_as() -> None:
    events = [
        Event(1.0, "started", worker="ada", detail="queue high"),
        Event(2.0, "started", worker="bo", detail="leases"),
    ]
    assert {worker.name: worker.role for worker in Timeline(events).workers.values()} == {
        "ada": "queue",
        "bo": "leases",
    }


def test_outages_begin_and_end_with_the_broker() -> None:
    outages = told("broker_started", "broker_stopped", "broker_started", "broker_killed").outages
    assert [(outage.how, outage.start, outage.end) for outage in outages] == [
        ("stopped", 2.0, 3.0),
        ("killed", 4.0, None),
    ]


def test_the_picture_moves_only_while_something_is_open() -> None:
    assert not told(PUBLISHED).moving
    assert told(PUBLISHED, FIRST).moving
    assert not told(PUBLISHED, FIRST, "acked a ada 1").moving
    assert told(ADDED, CLAIM).moving
    assert not told(ADDED, CLAIM, "released w ada 5").moving


def test_feeding_bit_by_bit_gives_the_same_as_all_at_once() -> None:
    story = told(PUBLISHED, FIRST, "killed - ada", SECOND, "acked a bo 2", ADDED, CLAIM)
    events = [
        Event(1.0, "published", "a"),
        Event(2.0, "delivered", "a", "ada", 1, until=3.0),
        Event(4.0, "acked", "a", "ada", 1),
    ]
    bit_by_bit = Timeline()
    for event in events:
        bit_by_bit.feed([event])
    whole = Timeline(events)
    assert bit_by_bit.jobs == whole.jobs
    assert (bit_by_bit.seen, bit_by_bit.last) == (whole.seen, whole.last) == (3, 4.0)
    assert story.seen == 7


# --- anything at all -------------------------------------------------------------------------------

ANYTHING = st.builds(
    Event,
    at=st.floats(0, 100),
    kind=st.sampled_from(sorted(KINDS)),
    job=st.sampled_from(["", "a", "b", "c"]),
    worker=st.sampled_from(["", "ada", "bo"]),
    attempt=st.integers(0, 4),
    revision=st.integers(0, 4),
    until=st.floats(0, 120),
    source=st.sampled_from(sorted(SOURCES)),
    detail=st.sampled_from(["", "queue high", "leases", "3 of 10 steps"]),
)


@settings(max_examples=400, deadline=None)
@given(events=st.lists(ANYTHING, max_size=40))
def test_no_order_of_events_raises_or_loses_a_job(events: list[Event]) -> None:
    """At every moment each job that was heard of is in exactly one state, and everything can be asked for."""
    timeline = Timeline()
    for event in events:
        timeline.feed([event])
        assert sum(timeline.counts.values()) == len(timeline.jobs)
        assert {item.state for item in timeline.items.values()} <= {"free", "held", "suspect", "done"}
        timeline.overdue(event.at)
        assert timeline.moving in (True, False)


@settings(max_examples=200, deadline=None)
@given(events=st.lists(ANYTHING.filter(lambda event: event.job != "")), published=st.sets(st.sampled_from("abcde")))
def test_the_counts_add_up_to_the_jobs_published(events: list[Event], published: set[str]) -> None:
    story = [Event(0.0, "published", job) for job in sorted(published)]
    story += [event for event in events if event.job in published]
    assert sum(Timeline(story).counts.values()) == len(published)
