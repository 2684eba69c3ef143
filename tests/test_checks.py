"""Every verdict can be HELD, NOT YET and, where its claim can fail, BROKEN."""

from __future__ import annotations

from typing import Any

import pytest

from meetupq import checks
from meetupq.dead_letters import DeadLetter
from meetupq.history import Event, History
from meetupq.summary import QueueSummary
from meetupq.timing import Timing

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
