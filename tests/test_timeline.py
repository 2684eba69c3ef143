"""The fold of a history: hand-made stories for each state, and random ones that must never raise or lose a job."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meetupq.history import KINDS, SOURCES, Event
from meetupq.timeline import JOB_STATES, Progress, Timeline


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
        ([PUBLISHED, FIRST, "terminated a ada 1"], "terminated"),
        ([PUBLISHED, FIRST, SECOND, "terminated a ada 1"], "terminated"),
        ([PUBLISHED, FIRST, "acked a ada 1", "terminated a ada 1"], "done"),
        ([PUBLISHED, FIRST, "dead_lettered a ada 1", "terminated a ada 1"], "dead"),
        ([PUBLISHED, FIRST, "dead_lettered a ada 1", "terminated a ada 1", "redriven a"], "waiting"),
        ([PUBLISHED, FIRST, "dead_lettered a ada 1", "redriven a", "terminated a ada 1"], "waiting"),
        ([PUBLISHED, FIRST, "terminated a ada 1", "redriven a", "delivered a bo 1"], "in flight"),
        ([PUBLISHED, FIRST, "exhausted a - 1", "escalated a ada 1"], "waiting"),
        ([PUBLISHED, FIRST, "exhausted a - 1", "escalated a ada 1", "delivered a zoe 1"], "in flight"),
        ([PUBLISHED, FIRST, "escalated a ada 1", "delivered a zoe 1", "timed_out a zoe 1"], "retrying"),
        ([PUBLISHED, FIRST, "escalated a ada 1", "delivered a zoe 1", "dead_lettered a zoe 1"], "dead"),
        ([PUBLISHED, FIRST, "escalated a ada 1", "delivered a zoe 1", "acked a zoe 1"], "done"),
        ([PUBLISHED, "duplicate a"], "waiting"),
        ([PUBLISHED, FIRST, "acked a ada 1", "duplicate a"], "done"),
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


def test_an_escalated_job_goes_on_with_attempt_1_of_another_consumer() -> None:
    events = [
        Event(1.0, "published", "a", detail="jobs.high.stats"),
        Event(2.0, "delivered", "a", "ada", 1, until=3.0),
        Event(3.5, "exhausted", "a", attempt=1, source="broker"),
        Event(3.6, "escalated", "a", "ada", 1, detail="jobs.low.stats"),
    ]
    job = Timeline(events).jobs["a"]
    assert (job.subject, job.escalated, job.exhausted, job.put_back) == ("jobs.low.stats", [3.6], None, [3.6])
    # A fast worker of the other consumer has it before the keeper can say so.
    fast = Event(3.7, "delivered", "a", "zoe", 1, until=9.0)
    job = Timeline([*events[:3], fast, events[3]]).jobs["a"]
    assert job.state == "in flight" and [(x.worker, x.open) for x in job.attempts] == [("ada", False), ("zoe", True)]
    done = Event(3.8, "acked", "a", "zoe", 1)
    assert Timeline([*events[:3], fast, done, events[3]]).jobs["a"].done == 3.8


def test_all_times_that_a_job_was_put_back_are_in_order() -> None:
    job = told(PUBLISHED, FIRST, "dead_lettered a ada 1", "redriven a", "escalated a", "redriven a").jobs["a"]
    assert (job.redriven, job.escalated, job.put_back) == ([4.0, 6.0], [5.0], [4.0, 5.0, 6.0])


def test_a_rejected_attempt_ends_by_its_term_not_by_the_letter_that_came_first() -> None:
    [attempt] = told(PUBLISHED, FIRST, "dead_lettered a ada 1", "terminated a ada 1").jobs["a"].attempts
    assert (attempt.how, attempt.end, attempt.closed) == ("terminated", 4.0, 4.0)
    late = told(PUBLISHED, FIRST, "timed_out a ada 1", "dead_lettered a ada 1", "terminated a ada 1").jobs["a"]
    assert (late.attempts[0].closed, late.attempts[0].end) == (3.0, 5.0), "the broker had given up before that"


# --- jobs that are pulled together ----------------------------------------------------------------

THREE = [Event(0.1, "started", worker="ada", detail="queue high, heartbeats on, prefetch 3")]
THREE += [Event(1.0, "delivered", job, "ada", 1, until=11.0) for job in "abc"]


def in_hand(timeline: Timeline, now: float) -> dict[str, float]:
    """How long each job has waited in its worker's hands."""
    return {name: job.attempts[-1].in_hand_until(now) - job.attempts[-1].start for name, job in timeline.jobs.items()}


def test_a_job_waits_in_hand_until_the_work_on_it_begins() -> None:
    timeline = Timeline([*THREE, Event(1.0, "begun", "a", "ada", 1)])
    assert in_hand(timeline, 2.0) == {"a": 0.0, "b": 1.0, "c": 1.0}
    assert (timeline.workers["ada"].holds, timeline.workers["ada"].state) == ("a", "working")
    timeline.feed([Event(3.0, "acked", "a", "ada", 1), Event(3.0, "begun", "b", "ada", 1)])
    assert in_hand(timeline, 5.0) == {"a": 0.0, "b": 2.0, "c": 4.0}
    assert timeline.workers["ada"].holds == "b"
    timeline.feed([Event(5.0, "killed", worker="ada")])
    assert in_hand(timeline, 9.0) == {"a": 0.0, "b": 2.0, "c": 4.0}
    assert [timeline.jobs[name].attempts[0].how for name in "abc"] == ["acked", "killed", "killed"]


def test_a_single_job_is_begun_at_once() -> None:
    alone = Timeline(THREE[:2])
    assert in_hand(alone, 9.0) == {"a": 0.0}
    alone.feed([Event(2.0, "acked", "a", "ada", 1), Event(3.0, "delivered", "b", "ada", 1, until=13)])
    assert in_hand(alone, 9.0) == {"a": 0.0, "b": 0.0}
    # One that pulls one at a time has no hand to keep jobs in, whatever the events look like.
    other = [Event(1.0, "delivered", job, "bo", 1, until=11.0) for job in "abc"]
    assert set(in_hand(Timeline(other), 9.0).values()) == {0.0}


def test_who_goes_on_with_a_job_that_was_given_up() -> None:
    def still(*more: str) -> list[str]:
        timeline = told("started - ada", "started - bo", PUBLISHED, FIRST, "timed_out a ada 1", SECOND, *more)
        job = timeline.jobs["a"]
        return [attempt.worker for attempt in job.attempts if timeline.still_at_it(job, attempt)]

    assert still() == ["ada"]
    assert still("timed_out a bo 2") == ["ada", "bo"]
    assert still("acked a bo 2") == ["ada"]
    assert still("acked a ada 1") == []
    assert still("killed - ada") == []
    assert still("delivered b ada 1") == []


def test_a_workers_settings_are_those_that_it_was_started_with_or_tuned_to() -> None:
    timeline = Timeline([Event(1.0, "started", worker="ada", detail="queue low, heartbeats off, prefetch 7")])
    ada = timeline.workers["ada"]
    assert (ada.role, ada.priority, ada.heartbeats, ada.prefetch) == ("queue", "low", False, 7)
    timeline.feed([Event(2.0, "tuned", worker="ada", detail="queue low, heartbeats on, prefetch 1")])
    assert (ada.state, ada.since, ada.heartbeats, ada.prefetch) == ("waiting", 1.0, True, 1)
    timeline.feed([Event(3.0, "tuned", worker="ada", detail="anything else")])
    assert (ada.priority, ada.heartbeats, ada.prefetch) == ("low", True, 1)
    assert (Timeline([Event(1.0, "started", worker="bo", detail="leases")]).workers["bo"].priority) == ""


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
    assert (first.how, first.lost) == ("expired", 4.0)
    assert (second.worker, second.end) == ("bo", None)


def test_a_worker_that_reclaims_from_itself_is_told_apart_by_its_tokens() -> None:
    first, second = told(ADDED, CLAIM, "reclaimed w ada 9", "lost w ada 5").items["w"].ownerships
    assert (first.token, first.how, first.lost, first.is_zombie) == (5, "superseded", 4.0, False)
    assert (second.token, second.end, second.lost) == (9, None, None)


def test_a_word_without_a_token_is_about_the_workers_latest_ownership() -> None:
    [ownership] = told(ADDED, CLAIM, "lost w ada").items["w"].ownerships
    assert (ownership.how, ownership.end) == ("lost", 3.0)


def test_progress_is_told_in_numbers_and_by_owner() -> None:
    events = [
        Event(1.0, "claimed", "w", "ada", revision=1),
        Event(2.0, "checkpointed", "w", "ada", revision=1, detail="3 of 10 steps"),
        Event(4.0, "reclaimed", "w", "bo", revision=5),
        Event(3.0, "checkpointed", "w", "ada", revision=1, detail="4 of 10 steps"),  # told late, by another process
        Event(5.0, "checkpointed", "w", "bo", revision=5, detail="7 of 10 steps"),
        Event(6.0, "checkpointed", "w", "ada", revision=1, detail="5 of 10 steps"),  # a zombie
    ]
    item = Timeline(events).items["w"]
    assert item.progress == (7, 10) and str(item.progress) == "7 of 10 steps" and item.progress.percent == 70
    ada, bo = item.ownerships
    assert (ada.progress_from, ada.progress_to) == (None, (5, 10))
    assert (bo.progress_from, bo.progress_to) == ((4, 10), (7, 10))
    assert Timeline([Event(1.0, "checkpointed", "w", "ada", detail="0 of 0 steps")]).items["w"].progress is None
    assert Progress(199, 200).percent == 99


# --- who believes what -----------------------------------------------------------------------------

ADA = Event(0.5, "started", worker="ada", detail="leases, process")
BO = Event(0.5, "started", worker="bo", detail="leases, 2 slots")


def claimed(worker: str = "ada", at: float = 1.0, token: int = 5, until: float = 5.0, **facts: str) -> Event:
    return Event(at, facts.get("kind", "claimed"), facts.get("item", "w"), worker, revision=token, until=until)


def heard(kind: str, at: float, worker: str = "ada", token: int = 5, **facts: str) -> Event:
    return Event(at, kind, facts.get("item", "w"), worker, revision=token, detail=facts.get("detail", ""))


FROZEN = Event(3.0, "frozen", worker="ada")
THAWED = Event(8.0, "thawed", worker="ada")
EXPIRED = heard("expired", 5.0)
HEIR = claimed("bo", at=5.2, token=9, until=9.2, kind="reclaimed")
LOST = heard("lost", 8.5)


def test_a_frozen_owner_believes_until_it_finds_out_whatever_the_order_in_which_that_is_told() -> None:
    for late in permutations([EXPIRED, HEIR, THAWED, LOST]):
        timeline = Timeline([ADA, BO, claimed(), FROZEN, *late])
        ada, bo = timeline.items["w"].ownerships
        assert (ada.end, ada.how, ada.gone, ada.cause) == (5.0, "expired", 3.0, "frozen"), late
        assert (ada.lost, ada.believed, ada.is_zombie) == (8.5, 8.5, False), late
        assert (bo.start, bo.end, bo.believed) == (5.2, None, None)
        assert timeline.workers["ada"].leases == {} and timeline.workers["ada"].holds == ""
        assert timeline.workers["bo"].leases == {"w": bo}


def test_a_zombie_believes_as_long_as_it_is_frozen_and_until_it_has_found_out() -> None:
    timeline = Timeline([ADA, BO, claimed(), FROZEN, EXPIRED, HEIR])
    ada = timeline.items["w"].ownerships[0]
    assert ada.is_zombie and ada.believed_until(7.0) == 7.0
    assert timeline.workers["ada"].leases == {"w": ada} and timeline.moving
    timeline.feed([THAWED])
    assert ada.is_zombie and ada.believed_until(8.3) == 8.3 and timeline.workers["ada"].state == "working"
    assert (ada.gone, ada.cause) == (3.0, "frozen"), "it came back too late"
    timeline.feed([LOST])
    assert (ada.is_zombie, ada.believed_until(99)) == (False, 8.5)
    assert timeline.workers["ada"].state == "waiting"


@pytest.mark.parametrize("kind", ["killed", "stopped", "started"])
def test_who_is_dead_or_begins_anew_believes_in_nothing(kind: str) -> None:
    timeline = Timeline([ADA, claimed(), Event(3.0, kind, worker="ada"), EXPIRED])
    [own] = timeline.items["w"].ownerships
    assert (own.believed, own.is_zombie, timeline.workers["ada"].leases) == (3.0, False, {})


def test_of_an_outsider_nobody_knows_what_it_believes_until_it_says_so() -> None:
    timeline = Timeline([claimed("guest"), heard("expired", 5.0, "guest")])
    [own] = timeline.items["w"].ownerships
    assert (own.believed, timeline.workers["guest"].state, timeline.moving) == (5.0, "waiting", False)
    timeline.feed([heard("written", 6.0, "guest")])
    assert own.believed == 6.0


def test_an_owner_that_was_cut_off_gives_up_in_time_and_its_lease_stands_on() -> None:
    timeline = Timeline([ADA, BO, claimed(), Event(2.0, "cut", worker="ada"), heard("lost", 4.5)])
    item, ada = timeline.items["w"], timeline.workers["ada"]
    assert (item.state, item.ownerships[0].end, item.ownerships[0].believed) == ("suspect", None, 4.5)
    assert (ada.state, ada.leases, ada.holds) == ("cut off", {}, "")
    timeline.feed([Event(4.8, "restored", worker="ada")])
    assert item.state == "suspect", "it has given up, network or not"
    timeline.feed([heard("expired", 5.0)])
    assert (item.state, item.ownerships[0].how, item.ownerships[0].end) == ("free", "expired", 5.0)


def test_who_is_back_before_the_lease_ends_keeps_it_and_the_stretch_is_remembered() -> None:
    timeline = Timeline([ADA, claimed(), FROZEN, Event(4.0, "thawed", worker="ada")])
    [own], ada = timeline.items["w"].ownerships, timeline.workers["ada"]
    assert (own.gone, own.cause, timeline.items["w"].state) == (None, "", "held")
    assert [(a.start, a.cause, a.end) for a in ada.absences] == [(3.0, "frozen", 4.0)]


def test_a_worker_may_be_cut_off_and_frozen_at_once() -> None:
    timeline = Timeline([ADA, claimed(until=20), Event(2.0, "cut", worker="ada"), FROZEN])
    ada, [own] = timeline.workers["ada"], timeline.items["w"].ownerships
    assert ada.absence("cut") and ada.absence("frozen") and ada.state == "frozen"
    timeline.feed([THAWED])
    assert (ada.state, ada.absence("frozen"), own.cause, own.gone) == ("cut off", None, "cut", 2.0)
    timeline.feed([Event(9.0, "restored", worker="ada")])
    assert (ada.state, own.cause, own.gone) == ("working", "", None)


@pytest.mark.parametrize(("kind", "cause"), [("frozen", "frozen"), ("cut", "cut"), ("killed", "killed")])
def test_a_claim_told_after_its_owner_is_gone_has_no_living_owner(kind: str, cause: str) -> None:
    timeline = Timeline([ADA, Event(3.0, kind, worker="ada"), claimed(at=2.9)])
    [own] = timeline.items["w"].ownerships
    assert (own.gone, own.cause, timeline.items["w"].state) == (3.0, cause, "suspect")
    assert own.believed == (3.0 if kind == "killed" else None)
    assert (timeline.workers["ada"].leases == {}) == (kind == "killed")


def test_a_renewal_told_after_the_freeze_still_moves_the_expiry() -> None:
    timeline = Timeline([ADA, claimed(), FROZEN, Event(2.99, "renewed", "w", "ada", revision=5, until=6.9)])
    [own] = timeline.items["w"].ownerships
    assert (own.until, own.renewals, own.gone) == (6.9, [2.99], 3.0)


def test_ownerships_stand_in_the_order_of_their_tokens_whoever_is_heard_first() -> None:
    timeline = Timeline([ADA, BO, claimed("bo", at=2.0, token=9), claimed(at=1.0), heard("released", 1.9)])
    ada, bo = timeline.items["w"].ownerships
    assert [(own.worker, own.how, own.end) for own in (ada, bo)] == [("ada", "released", 1.9), ("bo", "", None)]
    assert timeline.workers["ada"].state == "waiting"


def test_a_worker_may_hold_several_leases_and_works_until_it_has_none() -> None:
    timeline = Timeline([BO, claimed("bo"), claimed("bo", item="v", token=6)])
    bo = timeline.workers["bo"]
    assert (list(bo.leases), bo.holds, bo.state) == (["w", "v"], "v", "working")
    timeline.feed([heard("released", 3.0, "bo", 6, item="v")])
    assert (list(bo.leases), bo.holds, bo.state) == (["w"], "w", "working")
    timeline.feed([Event(4.0, "killed", worker="bo")])
    assert [item.state for item in timeline.items.values()] == ["suspect", "free"]


def test_what_was_written_is_remembered_with_what_each_ledger_made_of_it() -> None:
    def write(kind: str, at: float, worker: str, token: int, step: int, detail: str = "") -> Event:
        return Event(at, kind, "w", worker, step, token, detail=detail)

    stale = [write("written", 8.1, "ada", 5, 4, "stale: 9"), write("fenced", 8.2, "ada", 5, 4, "5 is older than 9")]
    for told_in in (stale, stale[::-1]):
        events = [ADA, claimed(), write("written", 2.0, "ada", 5, 3), HEIR, write("written", 6.0, "bo", 9, 4), *told_in]
        writes = Timeline(events).items["w"].writes
        assert [(w.at, w.worker, w.token, w.step, w.stale, w.refused) for w in writes] == [
            (2.0, "ada", 5, 3, False, ""), (6.0, "bo", 9, 4, False, ""), (8.1, "ada", 5, 4, True, "5 is older than 9")
        ]  # fmt: skip


def test_cancelled_work_is_over_until_it_is_added_again() -> None:
    timeline = Timeline([ADA, Event(0.6, "added", "w"), claimed(), Event(2.0, "cancelled", "w")])
    item = timeline.items["w"]
    assert (item.state, item.ended) == ("cancelled", 2.0)
    timeline.feed([heard("released", 2.5)])
    assert (item.state, item.ownerships[0].how) == ("cancelled", "released")
    timeline.feed([Event(4.0, "added", "w")])
    assert (item.state, item.ended, item.progress) == ("free", None, None)
    assert Timeline([heard("finished", 1.0), Event(2.0, "cancelled", "w")]).items["w"].state == "done"


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


@pytest.mark.parametrize(
    ("hired", "role", "process"),
    [
        ("leases", "leases", False),
        ("leases, process", "leases", True),
        ("leases by observe, 2 slots, process", "leases", True),
        ("queue high, heartbeats off, prefetch 3, process", "queue", True),
        ("queue high, heartbeats off, prefetch 3", "queue", False),
    ],
)
def test_what_a_worker_was_hired_for(hired: str, role: str, process: bool) -> None:
    ada = Timeline([Event(1.0, "started", worker="ada", detail=hired)]).workers["ada"]
    assert (ada.role, ada.process, ada.hired) == (role, process, hired)
    assert ada.prefetch == (3 if role == "queue" else 1)


def test_who_has_lobbied_in_vain_stands_by_until_it_has_a_lease() -> None:
    timeline = Timeline([ADA, Event(2.0, "lobbied", worker="ada")])
    assert (timeline.workers["ada"].state, timeline.workers["ada"].stands_by) == ("waiting", True)
    timeline.feed([claimed()])
    assert not timeline.workers["ada"].stands_by


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
    assert told(PUBLISHED, FIRST, "exhausted a - 1").moving, "ada is still at it"
    assert not told(PUBLISHED, FIRST, "exhausted a - 1", "killed - ada").moving
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


def test_what_was_heard_of_last_stands_at_the_end_but_a_queue_keeps_its_order() -> None:
    timeline = told("published a", "published b", "published c", "delivered a ada 1", "delivered b bo 1", "published c")
    assert list(timeline.by_state["in flight"]) == ["a", "b"] and list(timeline.by_state["waiting"]) == ["c"]
    timeline.feed([Event(7.0, "progressed", "a", "ada", 1), Event(8.0, "published", "d"), Event(9.0, "published", "c")])
    assert list(timeline.by_state["in flight"]) == ["b", "a"] and list(timeline.by_state["waiting"]) == ["c", "d"]
    assert [job.place for job in timeline.jobs.values()] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("story", "kind"),
    [
        ([PUBLISHED], "fresh"),
        ([PUBLISHED, FIRST], "flying"),
        ([PUBLISHED, FIRST, "acked a ada 1"], "smooth"),
        ([PUBLISHED, FIRST, "failed a ada 1"], "eventful"),
        ([PUBLISHED, FIRST, SECOND], "eventful"),
        ([PUBLISHED, FIRST, SECOND, "acked a bo 2"], "eventful"),
        ([PUBLISHED, FIRST, "exhausted a - 1", "acked a ada 1"], "eventful"),
        ([PUBLISHED, FIRST, "terminated a ada 1"], "eventful"),
        ([PUBLISHED, "dead_lettered a", "redriven a"], "eventful"),
        ([PUBLISHED, "dead_lettered a", "redriven a", FIRST, "acked a ada 1"], "eventful"),
        ([PUBLISHED, "escalated a", FIRST], "eventful"),
    ],
)
def test_what_there_is_to_tell_of_a_job(story: list[str], kind: str) -> None:
    timeline = told(*story)
    assert timeline.jobs["a"].story == kind and list(timeline.by_story[kind]) == ["a"]  # type: ignore[index]


def test_a_kill_makes_the_jobs_of_that_worker_eventful() -> None:
    timeline = told("published a", "published b", "delivered a ada 1", "delivered b bo 1")
    assert list(timeline.by_story["flying"]) == ["a", "b"]
    timeline.feed([Event(5.0, "killed", worker="ada")])
    assert list(timeline.by_story["flying"]) == ["b"] and list(timeline.by_story["eventful"]) == ["a"]


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
    detail=st.sampled_from(["", "queue high", "queue high, heartbeats on, prefetch 3", "leases", "3 of 10 steps"]),
)


def assert_filed(timeline: Timeline) -> None:
    """What is kept from event to event is what a look at all jobs would find."""
    jobs = list(timeline.jobs.values())
    for state, filed in timeline.by_state.items():
        assert filed == {job.name: job for job in jobs if job.state == state}
        assert timeline.counts[state] == len(filed)
    for story, told_of in timeline.by_story.items():
        assert told_of == {job.name: job for job in jobs if job.story == story}
    assert [job.place for job in jobs] == list(range(len(jobs)))
    letters = [(at, "dead", job.name) for job in jobs for at in job.deaths]
    letters += [(at, "redriven", job.name) for job in jobs for at in job.redriven]
    assert sorted(letters) == sorted((at, kind, job.name) for at, kind, job in timeline.letters)
    assert [at for at, _, _ in timeline.letters] == sorted(at for at, _, _ in letters)


def assert_beliefs(timeline: Timeline, now: float) -> None:
    """A worker's leases are the ownerships in which it believes, and no others."""
    owned = [own for item in timeline.items.values() for own in item.ownerships]
    believed = {id(own) for own in owned if own.believed is None}
    assert believed == {id(own) for worker in timeline.workers.values() for own in worker.leases.values()}
    for item in timeline.items.values():
        tokens = [own.token for own in item.ownerships if own.token]
        assert tokens == sorted(tokens) or 0 in [own.token for own in item.ownerships]
        assert all(own.end is not None for own in item.ownerships[:-1])
        assert all(own.believed_until(now) >= own.start for own in item.ownerships)


@settings(max_examples=400, deadline=None)
@given(events=st.lists(ANYTHING, max_size=40))
def test_no_order_of_events_raises_or_loses_a_job(events: list[Event]) -> None:
    """At every moment each job that was heard of is in exactly one state, and everything can be asked for."""
    timeline = Timeline()
    for event in events:
        timeline.feed([event])
        assert sum(timeline.counts.values()) == len(timeline.jobs)
        assert_filed(timeline)
        assert {item.state for item in timeline.items.values()} <= {"free", "held", "suspect", "done", "cancelled"}
        assert_beliefs(timeline, event.at)
        timeline.overdue(event.at)
        for job in timeline.jobs.values():
            for attempt in job.attempts:
                assert attempt.in_hand_until(event.at) >= attempt.start
                assert timeline.still_at_it(job, attempt) in (True, False)
        assert timeline.moving in (True, False)


# Jobs that are put back and forth, so that it happens often.
TURNS = st.builds(
    Event,
    at=st.integers(0, 20).map(float),
    kind=st.sampled_from(
        "published delivered acked naked killed exhausted dead_lettered dead_lettered redriven redriven escalated "
        "terminated late_success".split()
    ),
    job=st.sampled_from(["a", "b"]),
    worker=st.sampled_from(["ada", "bo"]),
    attempt=st.integers(1, 2),
    until=st.integers(0, 20).map(float),
)


@settings(max_examples=200, deadline=None)
@given(events=st.lists(TURNS, min_size=5, max_size=25))
def test_what_is_kept_from_event_to_event_is_what_a_look_at_all_jobs_finds(events: list[Event]) -> None:
    timeline = Timeline()
    for event in events:
        timeline.feed([event])
        assert_filed(timeline)


@settings(max_examples=200, deadline=None)
@given(events=st.lists(ANYTHING.filter(lambda event: event.job != "")), published=st.sets(st.sampled_from("abcde")))
def test_the_counts_add_up_to_the_jobs_published(events: list[Event], published: set[str]) -> None:
    story = [Event(0.0, "published", job) for job in sorted(published)]
    story += [event for event in events if event.job in published]
    assert sum(Timeline(story).counts.values()) == len(published)


@pytest.mark.parametrize("kind", ["acked", "terminated", "exhausted"])
def test_what_is_said_of_an_earlier_life_does_not_end_the_new_one(kind: str) -> None:
    """A zombie of the time before the redrive speaks up: its message is not the one that is at work now."""
    timeline = Timeline(
        [
            Event(0, "published", "p", revision=1, detail="jobs.high.p"),
            Event(1, "delivered", "p", "ada", 1, revision=1, until=4),
            Event(4, "dead_lettered", "p", "ada", 1, revision=1),
            Event(5, "published", "p", revision=2, detail="jobs.high.p"),
            Event(5, "redriven", "p", revision=1),
            Event(6, "delivered", "p", "bo", 1, revision=2, until=9),
            Event(7, kind, "p", "ada", 1, revision=1, source="broker"),
        ]
    )
    assert timeline.jobs["p"].state == "in flight"
    timeline.feed([Event(8, "acked", "p", "bo", 1, revision=2)])
    assert timeline.jobs["p"].state == "done"
    assert timeline.counts["done"] == 1


def test_a_fast_worker_may_be_done_before_the_redrive_is_written_down() -> None:
    timeline = Timeline(
        [
            Event(0, "published", "p", revision=1, detail="jobs.high.p"),
            Event(1, "delivered", "p", "ada", 1, revision=1, until=4),
            Event(4, "dead_lettered", "p", "ada", 1, revision=1),
            Event(5.1, "delivered", "p", "bo", 1, revision=2, until=9),
            Event(5.2, "acked", "p", "bo", 1, revision=2),
            Event(5, "published", "p", revision=2, detail="jobs.high.p"),
            Event(5, "redriven", "p", revision=1),
        ]
    )
    assert timeline.jobs["p"].state == "done"
    assert timeline.counts["done"] == 1
    assert timeline.counts["dead"] == 0
