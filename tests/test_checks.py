"""Every verdict can be HELD, NOT YET and, where its claim can fail, BROKEN."""

from __future__ import annotations

from typing import Any

import pytest

from meetupq import checks
from meetupq.dead_letters import DeadLetter
from meetupq.history import Event, History
from meetupq.leases import Token
from meetupq.summary import QueueSummary
from meetupq.timing import Timing
from meetupq.trials import Trial

TIMING = Timing(ack_wait=3, max_deliver=3, heartbeat=1)


def story(*lines: str) -> list[Event]:
    """Events, one a line: `at kind job worker attempt revision until`; "-" leaves a word out."""
    events = []
    for line in lines:
        at, kind, job, worker, attempt, revision, until, *detail = [*line.split(), *["-"] * 7][
            : max(7, len(line.split()))
        ]
        events.append(
            Event(
                float(at),
                kind,
                "" if job == "-" else job,
                "" if worker == "-" else worker,
                0 if attempt == "-" else int(attempt),
                0 if revision == "-" else int(revision),
                0.0 if until == "-" else float(until),
                detail=" ".join(detail),
            )
        )
    return events


ONE_JOB = story("0 published a", "1 delivered a ada 1 7 4", "2 acked a ada 1")
RETRY = [*story("0 published a", "1 delivered a ada 1 7 4", "2 killed - ada", "4 delivered a bo 2 7 7"), *ONE_JOB[:0]]
POISON = story(
    "0 published p",
    "1 delivered p ada 1 7 4",
    "2 failed p ada 1",
    "4 delivered p bo 2 7 7",
    "5 failed p bo 2",
    "7 delivered p ada 3 7 10",
    "8 failed p ada 3",
    "10 timed_out p ada 3",
)
EXHAUSTED = [*POISON, Event(10, "exhausted", "p", attempt=3, source="inferred")]
DEAD = [
    *POISON,
    Event(10.1, "exhausted", "p", attempt=3, source="broker"),
    Event(10.2, "dead_lettered", "p", attempt=3),
]
OVERLAP = story("1 claimed w ada - 1 9", "2 claimed w bo - 2 10")
POLITE = story("1 claimed w ada - 1 9", "2 released w ada - 1", "3 claimed w bo - 4 12")
KEPT = story("1 claimed w you - 1 5", "3 renewed w you - 1 7", "5 renewed w you - 1 9", "9 expired w you - 1")
LATE = story("1 claimed w ada - 1 5", "2 released w ada - 1", "6 claimed w bo - 4 9")
RETRIED = [*RETRY, *story("5 acked a bo 2")]
BOTH = [*story("0 published b", "0 delivered b cy 1 3 3", "1 acked b cy 1"), *RETRIED]
BURNT = story(
    "0 published n", "1 delivered n ada 1 7 4", "1 naked n ada 1", "1.1 delivered n bo 2 7 4", "1.1 naked n bo 2",
    "1.2 delivered n ada 3 7 4", "1.2 naked n ada 3",
)  # fmt: skip
TERMINATED = story("0 published t", "1 delivered t ada 1 7 4", "2 terminated t ada 1")
BEATING = story("0 published a", "1 delivered a ada 1 7 4", "3 progressed a ada 1 - 6", "5 acked a ada 1")
COUNTS = QueueSummary(waiting=0, in_flight=0, retrying=0, stuck=1, dead=0, acked=2, terminated=0, published=3)
MOVED = [
    *EXHAUSTED,
    *story("10.1 escalated p ada 3 9 - jobs.low.poison", "11 delivered p dan 1 9 15", "15 dead_lettered p dan 1"),
]
BACK = [*DEAD, *story("11 redriven p", "12 delivered p bo 1 9 15", "13 acked p bo 1")]
LATER = story(
    "0 published l", "1 delivered l dan 1 7 4", "1 naked l dan 1", "3 delivered l dan 2 7 7", "3 naked l dan 2"
)  # fmt: skip
AGAIN = [*BURNT, *story("1.3 dead_lettered n ada 3 7", "2 redriven n")]
ONLY_SECOND = story("0 published a", "4 delivered a bo 2 7 7", "6 progressed a bo 2 - 9", "8 acked a bo 2")
REDRIVEN_WHILE_WORKED_ON = [*RETRY[:3], *story("3 redriven a", "5 delivered a bo 1 8 8", "6 acked a bo 1")]
KILLED_IN_HAND = [
    *story("0 started - ada - - - queue high, heartbeats on, prefetch 3"),
    *story("0 published z", "0 published a", "1 delivered z ada 1 6 4", "1 delivered a ada 1 7 4"),
    *story("2 killed - ada", "4 delivered a bo 2 7 7"),
]
WAITED_IN_HAND = [*KILLED_IN_HAND[:5], KILLED_IN_HAND[-1]]
GIVEN_UP = Event(10.1, "exhausted", "p", attempt=3, revision=7, source="broker")
TAKEOVER = story(
    "0 added w",
    "1 claimed w ada - 1 5",
    "2 checkpointed w ada - 1 - 1 of 3 steps",
    "2.5 killed - ada",
    "5.1 expired w ada - 1",
    "5.2 reclaimed w bo - 9 9",
    "6 checkpointed w bo - 9 - 2 of 3 steps",
    "7 checkpointed w bo - 9 - 3 of 3 steps",
    "7 finished w bo - 9",
)
ZOMBIE = story(
    "0 added w",
    "1 claimed w ada - 5 5",
    "2 written w ada 1 5",
    "2.5 frozen - ada",
    "5.2 reclaimed w bo - 9 9",
    "6 written w bo 1 9",
    "7 written w bo 2 9",
    "8 written w ada 2 5 - stale: token 5 after 9",
    "8 fenced w ada 2 5 - w: ada wrote with token 5 after 9",
    "8.1 lost w ada - 5",
    "9 written w bo 3 9",
    "9 checkpointed w bo - 9 - 3 of 3 steps",
    "9 finished w bo - 9 - 3 of 3 steps",
)
CUT = story(
    "1 claimed w ada - 5 4",
    "2 renewed w ada - 5 5",
    "2.5 cut - ada",
    "4.5 lost w ada - 5",
    "5.2 reclaimed w bo - 9 9",
)
IN_TIME = [*ZOMBIE[:4], *story("5.1 thawed - ada", "5.1 lost w ada - 5"), *ZOMBIE[4:7]]
SMALLER = story("5.2 reclaimed w bo - 3 9", "8 lost w ada - 5")
GHOST = story("8 restored - ada", "8 written w ada 2 5 - stale: token 5 after 9")
STEP_OF_A_ZOMBIE = [*TAKEOVER[:-2], *story("7 checkpointed w ada - 1 - 3 of 3 steps"), TAKEOVER[-1]]
TWO_CUT = story("10 claimed v ada - 11 14", "11 cut - ada", "14.1 lost v ada - 11")


PAUSED = story("1 claimed w ada - 5 5", "2 renewed w ada - 5 6", "2.5 frozen - ada", "4 thawed - ada")


def says(kind: str) -> Event:
    """What ada says after its pause."""
    return Event(4.1, kind, "w", "ada", revision=5, source="worker")


def trial(how: str, *delays: float) -> Trial:
    return Trial(how=how, delays=delays, after_note=(), timing=TIMING, standbys=1, others=0)


def letter(**changes: Any) -> DeadLetter:
    facts = {
        "number": 1, "job": "p", "subject": "jobs.high.poison", "payload": b"x", "headers": {}, "reason": "not acked",
        "deliveries": 3, "last_worker": "ada", "at": None,
    }  # fmt: skip
    return DeadLetter(**{**facts, **changes})


CASES = [
    ("HELD", lambda: checks.delivered_once(ONE_JOB, "a")),
    ("NOT YET", lambda: checks.delivered_once(ONE_JOB)),
    ("NOT YET", lambda: checks.delivered_once(ONE_JOB, "a", "b")),
    ("NOT YET", lambda: checks.delivered_once(ONE_JOB[:2], "a")),
    ("BROKEN", lambda: checks.delivered_once(RETRY, "a")),
    ("BROKEN", lambda: checks.delivered_once(ONLY_SECOND, "a")),
    ("HELD", lambda: checks.retried_elsewhere(RETRY, "a")),
    ("NOT YET", lambda: checks.retried_elsewhere(REDRIVEN_WHILE_WORKED_ON, "a")),
    ("NOT YET", lambda: checks.retried_elsewhere(KILLED_IN_HAND, "a")),
    ("NOT YET", lambda: checks.retried_elsewhere(ONE_JOB, "a")),
    ("NOT YET", lambda: checks.retried_elsewhere(RETRY[:3], "a")),
    ("NOT YET", lambda: checks.retried_elsewhere([*RETRY[:3], *story("4 delivered a ada 2 7 7")], "a")),
    ("BROKEN", lambda: checks.retried_elsewhere([*RETRY[:3], *story("3 delivered a bo 2 7 7")], "a")),
    ("HELD", lambda: checks.untouched([*ONE_JOB, *POISON], "p")),
    ("NOT YET", lambda: checks.untouched(POISON, "p")),
    ("NOT YET", lambda: checks.untouched(ONE_JOB, "other")),
    ("NOT YET", lambda: checks.untouched([*BOTH[:3], *ONE_JOB], "a")),
    ("BROKEN", lambda: checks.untouched([*RETRIED, *POISON], "p")),
    ("BROKEN", lambda: checks.untouched([*ONLY_SECOND, *POISON], "p")),
    ("HELD", lambda: checks.died_after(DEAD, "p", 3)),
    ("NOT YET", lambda: checks.died_after(EXHAUSTED, "p", 3)),
    ("BROKEN", lambda: checks.died_after(DEAD, "p", 2)),
    ("HELD", lambda: checks.gaps_follow(POISON, "p", TIMING)),
    ("NOT YET", lambda: checks.gaps_follow(ONE_JOB, "a", TIMING)),
    ("NOT YET", lambda: checks.gaps_follow(REDRIVEN_WHILE_WORKED_ON, "a", TIMING)),
    ("BROKEN", lambda: checks.gaps_follow(POISON, "p", TIMING.but(ack_wait=3.5))),
    ("BROKEN", lambda: checks.gaps_follow([*RETRY[:2], *story("3 progressed a ada 1 - 6"), RETRY[-1]], "a", TIMING)),
    ("HELD", lambda: checks.silent_while_dead(EXHAUSTED, "p")),
    ("HELD", lambda: checks.silent_while_dead([*EXHAUSTED, *story("10.05 started - ada"), *DEAD[-2:]], "p")),
    ("NOT YET", lambda: checks.silent_while_dead([*story("0 started - ada"), *POISON], "p")),
    ("NOT YET", lambda: checks.silent_while_dead(POISON, "p")),
    ("BROKEN", lambda: checks.silent_while_dead(DEAD, "p")),
    ("HELD", lambda: checks.buried_once(DEAD, "p")),
    ("HELD", lambda: checks.buried_once([*DEAD, *story("11 redriven p", "20 dead_lettered p ada 3")], "p")),
    ("BROKEN", lambda: checks.buried_once([*BACK, *story("20 dead_lettered p", "21 dead_lettered p")], "p")),
    ("NOT YET", lambda: checks.buried_once(EXHAUSTED, "p")),
    ("BROKEN", lambda: checks.buried_once([*DEAD, DEAD[-1]], "p")),
    ("HELD", lambda: checks.started_again(BACK, "p")),
    ("NOT YET", lambda: checks.started_again([*DEAD, *story("11 redriven p")], "p")),
    ("BROKEN", lambda: checks.started_again([*DEAD, *story("11 redriven p", "12 delivered p bo 4 7 15")], "p")),
    ("HELD", lambda: checks.redriven_only(BACK, "p")),
    ("NOT YET", lambda: checks.redriven_only([*DEAD, *story("11 redriven p")], "p")),
    ("NOT YET", lambda: checks.redriven_only(DEAD, "p")),
    ("BROKEN", lambda: checks.redriven_only([*ONE_JOB, *DEAD, *story("11 redriven p", "12 redriven a")], "p")),
    ("HELD", lambda: checks.nothing_lost(DEAD, in_stream=0, letters=1)),
    ("NOT YET", lambda: checks.nothing_lost([])),
    ("BROKEN", lambda: checks.nothing_lost(DEAD, in_stream=1)),
    ("BROKEN", lambda: checks.nothing_lost(DEAD, letters=0)),
    ("BROKEN", lambda: checks.nothing_lost(POISON[1:] + ONE_JOB)),
    ("HELD", lambda: checks.nothing_lost([*DEAD, *story("11 acked p ada 3")], in_stream=0, letters=1)),
    ("HELD", lambda: checks.nothing_lost(BACK, in_stream=0, letters=0)),
    ("BROKEN", lambda: checks.nothing_lost([*DEAD, *story("11 late_success p")])),
    ("BROKEN", lambda: checks.nothing_lost([*POISON, *story("9 acked p ada 3"), *DEAD[-2:]])),
    ("HELD", lambda: checks.adds_up(DEAD)),
    ("HELD", lambda: checks.adds_up([*DEAD, *TERMINATED])),
    ("HELD", lambda: checks.adds_up([*DEAD, *story("11 acked p ada 3", "11 terminated p ada 3")])),
    ("HELD", lambda: checks.adds_up([*BACK, *MOVED[:-1]])),
    ("NOT YET", lambda: checks.adds_up([])),
    ("BROKEN", lambda: checks.adds_up(ONE_JOB + POISON[1:4] + story("9 acked p bo 2"))),
    ("HELD", lambda: checks.never_two_owners(TAKEOVER)),
    ("NOT YET", lambda: checks.never_two_owners(ONE_JOB)),
    ("BROKEN", lambda: checks.never_two_owners(story("1 claimed w ada - 5 9", "12 reclaimed w bo - 4 20"))),
    ("BROKEN", lambda: checks.never_two_owners([*OVERLAP, *story("3 lost w ada - 1")])),
    ("BROKEN", lambda: checks.never_two_owners(OVERLAP)),
    ("HELD", lambda: checks.never_two_owners([*OVERLAP, *story("2.01 released w ada - 1")])),
    ("HELD", lambda: checks.owners(story("1 claimed w ada - 1 9"), 1)),
    ("NOT YET", lambda: checks.owners(TAKEOVER, 1)),
    ("HELD", lambda: checks.reclaimed_after_ttl(TAKEOVER, "w")),
    ("NOT YET", lambda: checks.reclaimed_after_ttl(TAKEOVER[:5], "w")),
    ("BROKEN", lambda: checks.reclaimed_after_ttl([*TAKEOVER[:4], *story("4 reclaimed w bo - 9 9")], "w")),
    ("BROKEN", lambda: checks.reclaimed_after_ttl([*TAKEOVER[:4], *story("6 reclaimed w bo - 1 9")], "w")),
    ("NOT YET", lambda: checks.reclaimed_after_ttl([*TAKEOVER[:5], *story("6 reclaimed w ada - 9 9")], "w")),
    ("HELD", lambda: checks.handed_over(POLITE, "w")),
    ("NOT YET", lambda: checks.handed_over(TAKEOVER, "w")),
    ("BROKEN", lambda: checks.handed_over(LATE, "w")),
    ("HELD", lambda: checks.resumed(TAKEOVER, "w")),
    ("NOT YET", lambda: checks.resumed(TAKEOVER[:-1], "w")),
    ("BROKEN", lambda: checks.resumed([*TAKEOVER, *story("8 checkpointed w bo - 9 - 3 of 3 steps")], "w")),
    ("HELD", lambda: checks.one_winner([None, object(), None])),
    ("NOT YET", lambda: checks.one_winner([])),
    ("BROKEN", lambda: checks.one_winner([None, None])),
    ("BROKEN", lambda: checks.one_winner([1, 1])),
    ("HELD", lambda: checks.second_chance(MOVED, "p", 3, 1)),
    ("NOT YET", lambda: checks.second_chance(EXHAUSTED, "p", 3, 1)),
    ("BROKEN", lambda: checks.second_chance(DEAD, "p", 3, 1)),
    ("BROKEN", lambda: checks.owners(OVERLAP, 0)),
    ("HELD", lambda: checks.letter_is_whole([letter()], b"x")),
    ("NOT YET", lambda: checks.letter_is_whole([], b"x")),
    ("BROKEN", lambda: checks.letter_is_whole([letter(payload=b"")], b"x")),
    ("BROKEN", lambda: checks.letter_is_whole([letter(reason="")], b"x")),
    ("HELD", lambda: checks.only_a_pointer({"stream": "jobs", "stream_seq": 1}, b"payload")),
    ("NOT YET", lambda: checks.only_a_pointer({}, b"payload")),
    ("BROKEN", lambda: checks.only_a_pointer({"stream": "jobs", "stream_seq": 1, "data": "payload"}, b"payload")),
    ("HELD", lambda: checks.dropped_as_duplicate(story("0 published a", "1 duplicate a"), "a")),
    ("HELD", lambda: checks.dropped_as_duplicate(story("0 published a", "1 duplicate a", "2 published a"), "a")),
    ("NOT YET", lambda: checks.dropped_as_duplicate(ONE_JOB, "a")),
    ("BROKEN", lambda: checks.dropped_as_duplicate(story("0 published a", "1 published a"), "a")),
    ("HELD", lambda: checks.reads(RETRIED, "a", attempts=2, kills=1)),
    ("NOT YET", lambda: checks.reads(RETRIED, "a", attempts=None, kills=1)),
    ("NOT YET", lambda: checks.reads(RETRY, "a", attempts=2, kills=1)),
    ("BROKEN", lambda: checks.reads(RETRIED, "a", attempts=2, kills=0)),
    ("HELD", lambda: checks.counted(COUNTS, stuck=1, in_flight=0)),
    ("NOT YET", lambda: checks.counted(COUNTS, stuck=1, dead=1)),
    ("BROKEN", lambda: checks.counted(COUNTS, stuck=0)),
    ("HELD", lambda: checks.burnt_at_once(BURNT, "n", TIMING)),
    ("NOT YET", lambda: checks.burnt_at_once(BURNT[:5], "n", TIMING)),
    ("HELD", lambda: checks.burnt_at_once([*LATER, *BURNT], "n", TIMING)),
    ("NOT YET", lambda: checks.burnt_at_once([*BURNT[:-1]], "n", TIMING)),
    ("NOT YET", lambda: checks.burnt_at_once([*AGAIN, *story("2.1 delivered n bo 1 8 5")], "n", TIMING)),
    ("BROKEN", lambda: checks.burnt_at_once(POISON, "p", TIMING)),
    ("BROKEN", lambda: checks.burnt_at_once([*BURNT[:-1], *story("1.3 failed n ada 3")], "n", TIMING)),
    ("BROKEN", lambda: checks.burnt_at_once([*BURNT[1:3], *BURNT[1:]], "n", TIMING)),
    ("HELD", lambda: checks.waited_between(LATER, "l", 2)),
    ("NOT YET", lambda: checks.waited_between(POISON, "p", 2)),
    ("NOT YET", lambda: checks.waited_between(ONE_JOB, "a", 1)),
    ("BROKEN", lambda: checks.waited_between(BURNT, "n", 1)),
    ("HELD", lambda: checks.late_ack_won([*DEAD[:-1], *story("11 acked p ada 3")], "p")),
    ("HELD", lambda: checks.late_ack_won([*POISON, GIVEN_UP, *story("11 acked p ada 3 7")], "p")),
    ("NOT YET", lambda: checks.late_ack_won([*POISON, GIVEN_UP, *story("11 acked p dan 1 9")], "p")),
    ("NOT YET", lambda: checks.late_ack_won(DEAD[:-1], "p")),
    ("NOT YET", lambda: checks.late_ack_won([*EXHAUSTED, *story("11 acked p ada 3")], "p")),
    ("BROKEN", lambda: checks.late_ack_won([*DEAD, *story("11 acked p ada 3")], "p")),
    ("HELD", lambda: checks.gone_for_good(TERMINATED, [letter()], "t")),
    ("NOT YET", lambda: checks.gone_for_good(TERMINATED[:2], [], "t")),
    ("BROKEN", lambda: checks.gone_for_good(TERMINATED, [letter(job="t")], "t")),
    ("HELD", lambda: checks.grew_old(WAITED_IN_HAND, "a")),
    ("HELD", lambda: checks.grew_old([ONE_JOB[1], RETRY[-1], *story("5 begun a ada 1")], "a")),
    ("BROKEN", lambda: checks.grew_old([ONE_JOB[1], RETRY[-1]], "a")),
    ("NOT YET", lambda: checks.grew_old(ONE_JOB, "a")),
    ("NOT YET", lambda: checks.grew_old([*WAITED_IN_HAND[:5], *story("2 naked a ada 1", "2.1 delivered a bo 2")], "a")),
    ("BROKEN", lambda: checks.grew_old(RETRY, "a")),
    ("BROKEN", lambda: checks.grew_old([*story("1 delivered a ada 1 7 4", "2 begun a ada 1"), RETRY[-1]], "a")),
    ("HELD", lambda: checks.kept_by_heartbeats(BEATING, "a")),
    ("NOT YET", lambda: checks.kept_by_heartbeats(BEATING[:-1], "a")),
    ("NOT YET", lambda: checks.kept_by_heartbeats([*BEATING[:3], *story("4 acked a ada 1")], "a")),
    ("NOT YET", lambda: checks.kept_by_heartbeats([BEATING[0], BEATING[-1]], "a")),
    ("BROKEN", lambda: checks.kept_by_heartbeats(ONE_JOB, "a")),
    ("BROKEN", lambda: checks.kept_by_heartbeats(ONLY_SECOND, "a")),
    ("HELD", lambda: checks.patience_fits(BOTH, "b", "a", within=3)),
    ("NOT YET", lambda: checks.patience_fits(RETRIED, "b", "a", within=3)),
    ("NOT YET", lambda: checks.patience_fits(RETRIED, "a", "b", within=3)),
    ("NOT YET", lambda: checks.patience_fits(BOTH[:3], "b", "a", within=3)),
    ("BROKEN", lambda: checks.patience_fits(BOTH, "b", "a", within=2)),
    ("HELD", lambda: checks.states([*DEAD, *ONE_JOB], {"p": "dead", "a": "done"})),
    ("NOT YET", lambda: checks.states(DEAD, {"p": "?"})),
    ("NOT YET", lambda: checks.states(DEAD, {"a": "done"})),
    ("BROKEN", lambda: checks.states(DEAD, {"p": "stuck"})),
    ("HELD", lambda: checks.kept_alive(KEPT, "w", "you", ttl=4)),
    ("NOT YET", lambda: checks.kept_alive([], "w", "you", ttl=4)),
    ("BROKEN", lambda: checks.kept_alive([*KEPT[:-1], *story("8 claimed w bo - 4 12")], "w", "you", ttl=3)),
    ("NOT YET", lambda: checks.kept_alive(KEPT, "w", "me", ttl=4)),
    ("NOT YET", lambda: checks.kept_alive([*KEPT[:2], *story("9 expired w you - 1")], "w", "you", ttl=4)),
    ("BROKEN", lambda: checks.resumed(STEP_OF_A_ZOMBIE, "w")),
    ("HELD", lambda: checks.resumed([*TAKEOVER[:2], *TAKEOVER[3:], TAKEOVER[2]], "w")),
    ("HELD", lambda: checks.two_believers(ZOMBIE, "w")),
    ("HELD", lambda: checks.two_believers([*ZOMBIE[:7], *ZOMBIE[9:]], "w")),
    ("NOT YET", lambda: checks.two_believers(TAKEOVER, "w")),
    ("NOT YET", lambda: checks.two_believers(ZOMBIE, "v")),
    ("NOT YET", lambda: checks.two_believers(ZOMBIE[:4], "w")),
    ("NOT YET", lambda: checks.two_believers(ZOMBIE[:7], "w")),
    ("NOT YET", lambda: checks.two_believers([*ZOMBIE[:3], *story("3 thawed - ada", "6 lost w ada - 5")], "w")),
    ("BROKEN", lambda: checks.two_believers(IN_TIME, "w")),
    ("BROKEN", lambda: checks.two_believers([*ZOMBIE[:4], *SMALLER], "w")),
    ("HELD", lambda: checks.ledger_damaged(ZOMBIE, "w")),
    ("NOT YET", lambda: checks.ledger_damaged(ZOMBIE[:6], "w")),
    ("NOT YET", lambda: checks.ledger_damaged(ZOMBIE, "v")),
    ("BROKEN", lambda: checks.ledger_damaged([*ZOMBIE[:7], *ZOMBIE[8:]], "w")),
    ("BROKEN", lambda: checks.ledger_damaged([*ZOMBIE[:7], *story("8 written w ada 2 5")], "w")),
    ("HELD", lambda: checks.ledger_kept(ZOMBIE, "w")),
    ("NOT YET", lambda: checks.ledger_kept(ZOMBIE[:7], "w")),
    ("NOT YET", lambda: checks.ledger_kept([], "w")),
    ("BROKEN", lambda: checks.ledger_kept([*ZOMBIE[:8], *ZOMBIE[9:]], "w")),
    ("BROKEN", lambda: checks.ledger_kept([*ZOMBIE, *story("9 written w ada 3 5")], "w")),
    ("BROKEN", lambda: checks.ledger_kept([*ZOMBIE, *story("9 written w ada 3 12 - stale: older bucket")], "w")),
    ("HELD", lambda: checks.steps_applied_once(ZOMBIE, "w")),
    ("NOT YET", lambda: checks.steps_applied_once(ZOMBIE[:7], "w")),
    ("NOT YET", lambda: checks.steps_applied_once(story("1 written w ada 1 5"), "w")),
    ("NOT YET", lambda: checks.steps_applied_once([], "w")),
    ("BROKEN", lambda: checks.steps_applied_once([event for event in ZOMBIE if event.attempt != 2], "w")),
    ("BROKEN", lambda: checks.steps_applied_once([*ZOMBIE[:2], *story("2 written w ada 2 5"), *ZOMBIE[2:]], "w")),
    ("BROKEN", lambda: checks.steps_applied_once([*ZOMBIE, *story("12 written w bo 4 9")], "w")),
    ("HELD", lambda: checks.stopped_in_time(CUT, "w")),
    ("HELD", lambda: checks.stopped_in_time(CUT, "ada")),
    ("HELD", lambda: checks.stopped_in_time([*CUT, *GHOST], "w")),
    ("NOT YET", lambda: checks.stopped_in_time(CUT, "bo")),
    ("NOT YET", lambda: checks.stopped_in_time(TAKEOVER, "w")),
    ("NOT YET", lambda: checks.stopped_in_time(CUT[:3], "w")),
    ("NOT YET", lambda: checks.stopped_in_time(CUT[:4], "w")),
    ("NOT YET", lambda: checks.stopped_in_time([*CUT[:3], *CUT[4:]], "w")),
    ("BROKEN", lambda: checks.stopped_in_time([*CUT[:3], *story("5.1 lost w ada - 5"), *CUT[4:]], "w")),
    ("BROKEN", lambda: checks.stopped_in_time([*CUT[:3], *story("4 reclaimed w bo - 9 9", "4.5 lost w ada - 5")], "w")),
    ("BROKEN", lambda: checks.stopped_in_time([*CUT, *story("6 checkpointed w ada - 5 - 2 of 3 steps")], "w")),
    ("BROKEN", lambda: checks.stopped_in_time([*CUT, *TWO_CUT], "ada")),
    ("HELD", lambda: checks.fence_holds(lambda token, last: token >= last)),
    ("NOT YET", lambda: checks.fence_holds(lambda token, last: None)),  # type: ignore[arg-type, return-value]
    ("BROKEN", lambda: checks.fence_holds(lambda token, last: True)),
    ("HELD", lambda: checks.timers_fit(TIMING, 10, within=4, messages=40)),
    ("BROKEN", lambda: checks.timers_fit(TIMING, 10, within=3, messages=40)),
    ("BROKEN", lambda: checks.timers_fit(TIMING, 10, within=4, messages=30)),
    ("BROKEN", lambda: checks.timers_fit("class", 10, within=4, messages=30)),  # type: ignore[arg-type]
    ("NOT YET", lambda: checks.timers_fit(None, 10, within=4, messages=30)),
    ("NOT YET", lambda: checks.timers_fit(..., 10, within=4, messages=30)),  # type: ignore[arg-type]
    ("HELD", lambda: checks.after_a_pause([*PAUSED, says("renewed")], "ada", keeps=True)),
    ("HELD", lambda: checks.after_a_pause([*PAUSED, says("lost")], "ada", keeps=False)),
    ("NOT YET", lambda: checks.after_a_pause(PAUSED[:3], "ada", keeps=True)),
    ("NOT YET", lambda: checks.after_a_pause(PAUSED, "ada", keeps=True)),
    ("NOT YET", lambda: checks.after_a_pause([*PAUSED, says("claimed"), says("renewed")], "ada", keeps=True)),
    ("BROKEN", lambda: checks.after_a_pause([*PAUSED, says("lost")], "ada", keeps=True)),
    ("BROKEN", lambda: checks.after_a_pause([*PAUSED, says("renewed")], "ada", keeps=False)),
    ("HELD", lambda: checks.sooner([trial("poll", 0.5, 0.9), trial("observe", 0.01, 0.02)], "observe", "poll")),
    ("NOT YET", lambda: checks.sooner([], "observe", "poll")),
    ("NOT YET", lambda: checks.sooner([trial("observe", 0.01)], "observe", "poll")),
    ("NOT YET", lambda: checks.sooner([trial("observe", 0.01)], "observe")),
    ("BROKEN", lambda: checks.sooner([trial("poll", 0.5, 0.9), trial("observe", 0.5, 2.0)], "observe", "poll")),
    ("HELD", lambda: checks.within_bound([0.1, 0.2], 0.2, kills=2)),
    ("HELD", lambda: checks.within_bound([0.1, 0.2 + checks.TAKEOVER_SLACK / 2], 0.2, kills=2)),
    ("NOT YET", lambda: checks.within_bound([0.1], 0.2, kills=2)),
    ("NOT YET", lambda: checks.within_bound([], 0.2, kills=0)),
    ("BROKEN", lambda: checks.within_bound([0.1, 0.21 + checks.TAKEOVER_SLACK], 0.2, kills=2)),
    ("BROKEN", lambda: checks.within_bound([0.1, float("nan")], 0.2, kills=2)),
    ("BROKEN", lambda: checks.within_bound([0.1, -0.2], 0.2, kills=2)),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "check"), CASES, ids=[f"{n}-{expected}" for n, (expected, _) in enumerate(CASES)])
def test_verdicts(expected: str, check: Any) -> None:
    verdict = check()
    assert verdict.status == expected, verdict
    assert repr(verdict) == str(verdict) == f"{expected}: {verdict.sentence}"


def test_each_check_is_seen_held_and_not_yet() -> None:
    """A new check must come with its cases; "NOT YET" is what a reader gets who runs it too early."""
    names = {
        name
        for name, function in vars(checks).items()
        if callable(function)
        and getattr(function, "__annotations__", {}).get("return") == "Verdict"
        and function.__doc__
    }
    seen: dict[str, set[str]] = {name: set() for name in names}
    for expected, check in CASES:
        for name in set(check.__code__.co_names) & names:
            seen[name].add(expected)
    assert {name: outcomes for name, outcomes in seen.items() if not {"HELD", "NOT YET"} <= outcomes} == {}


def test_a_verdict_in_a_notebook_says_it_in_word_and_mark_and_spoils_nothing_when_folded() -> None:
    html = checks.held("a <b> & c")._repr_html_()
    assert html.splitlines()[0] == "<!-- run this cell for its verdict -->"
    assert "✓ HELD" in html
    assert "a &lt;b&gt; &amp; c" in html
    assert "✗ BROKEN" in checks.broken("x")._repr_html_()
    assert "○ NOT YET" in checks.not_yet("x")._repr_html_()


def test_a_check_takes_a_history_too() -> None:
    history = History()
    assert checks.adds_up(history).status == "NOT YET"
    history.append("published", "a")
    assert str(checks.adds_up(history)) == "HELD: 1 published = 0 acked + 0 dead + 1 in flight"


def test_what_is_terminated_or_too_late_is_counted_by_its_name() -> None:
    terminated = "HELD: 2 published = 0 acked + 1 dead + 1 terminated + 0 in flight"
    assert str(checks.adds_up([*DEAD, *TERMINATED])) == terminated
    assert str(checks.nothing_lost([*DEAD, *TERMINATED])) == terminated
    late = [*DEAD, *story("11 acked p ada 3")]
    assert checks.nothing_lost(late).sentence == "1 published = 0 acked + 1 dead + 0 in flight (1 acked too late)"


def test_a_letter_for_each_life_is_told_so() -> None:
    twice = [*DEAD, *story("11 redriven p", "20 dead_lettered p ada 3")]
    assert checks.buried_once(twice, "p").sentence == "1 dead job, 2 dead letters, one for each life"


def test_an_owner_that_comes_back_is_told_by_names() -> None:
    assert checks.two_believers(ZOMBIE, "w").sentence == (
        "ada came back after bo had taken w over, and believed in its lease still: two believers, ada with a smaller "
        "token"
    )
    assert checks.ledger_damaged(ZOMBIE, "w").sentence == (
        "the ledger without a fence took what ada wrote to w with a smaller token, after bo had written with a larger "
        "one"
    )
    assert checks.ledger_kept(ZOMBIE, "w").sentence == (
        "the fenced ledger refused what ada wrote to w with a smaller token: the tokens of what it took never went back"
    )
    assert checks.steps_applied_once(ZOMBIE, "w").sentence == (
        "3 steps of w are in the fenced ledger, each applied once, in order"
    )
    assert checks.stopped_in_time(CUT, "w").sentence == (
        "ada was cut off from w, and stopped by its own clock before its lease was over and before bo had it"
    )


def no_rule(token: Token, last: Token) -> bool:
    raise NotImplementedError


def gives_up(token: Token, last: Token) -> bool:
    raise SystemExit


def fails(token: Token, last: Token) -> bool:
    raise ZeroDivisionError


async def waits(token: Token, last: Token) -> bool:
    return True


NOT_WRITTEN = "NOT YET: write the comparison first: return True or False"
RULES = [
    (lambda token, last: None, NOT_WRITTEN),
    (lambda token, last: ..., NOT_WRITTEN),
    (no_rule, NOT_WRITTEN),
    (lambda token, last: False, "BROKEN: ada 5: the last write was refused"),
    (lambda token, last: token > last, "BROKEN: ada 5, ada 5: the last write was refused"),
    (lambda token, last: token <= last or not last.bucket, "BROKEN: ada 5, bo 7: the last write was refused"),
    (lambda token, last: True, "BROKEN: ada 5, bo 7, ada 5: the last write was accepted"),
    (
        lambda token, last: token.revision >= last.revision,
        "BROKEN: ada 5, bo 7, cy 2 of a new bucket: the last write was refused",
    ),
    (
        lambda token, last: token.revision >= last.revision or token.bucket != last.bucket,
        "BROKEN: ada 5, bo 7, cy 2 of a new bucket, bo 7: the last write was accepted",
    ),
    (lambda token, last: 1, "BROKEN: ada 5: the function returned a int, not True or False"),
    (lambda token: True, "BROKEN: ada 5: the function raised TypeError"),
    (waits, "BROKEN: ada 5: the function returned a coroutine, not True or False"),
    (fails, "BROKEN: ada 5: the function raised ZeroDivisionError"),
    (gives_up, "BROKEN: ada 5: the function raised SystemExit"),
    ("no function", "BROKEN: ada 5: the function raised TypeError"),
]


@pytest.mark.parametrize(("rule", "told"), RULES, ids=range(len(RULES)))
def test_a_rule_that_is_no_fence_is_told_the_shortest_history_that_breaks_it(rule: Any, told: str) -> None:
    assert str(checks.fence_holds(rule)) == told


def test_a_rule_that_remembers_what_it_must_not_is_found_too() -> None:
    """It refuses everybody after a zombie."""
    seen: list[Token] = []

    def sulks(token: Token, last: Token) -> bool:
        seen.append(token)
        return token >= last and not (len(seen) > 2 and seen[-2] < last)

    assert checks.fence_holds(sulks).sentence == "ada 5, bo 7, ada 5, bo 7: the last write was refused"


def test_timers_that_do_not_fit_are_told_by_how_much() -> None:
    told = checks.timers_fit(TIMING, 10, within=3, messages=30).sentence
    assert (
        told == "10 items: 3.38 seconds at worst, 34 messages per second: 0.38 seconds too late and 4 messages too many"
    )
    assert "whole seconds" in checks.timers_fit(TIMING.but(lease_ttl=3.5), 1, 9, 99, takeover="key_ttl").sentence
