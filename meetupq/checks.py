"""Verdicts: what a lesson claims, held against what the history says. Pure functions, none of them waits.

Every verdict is HELD, NOT YET or BROKEN, with one sentence of counts and names. HELD is never said about nothing: where
the thing was not observed the verdict is NOT YET. Sentences hold no measured times, so that they can be compared.
"""

from __future__ import annotations

import inspect
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import inf
from typing import Any, Final, Literal

from meetupq.dead_letters import DeadLetter
from meetupq.errors import TimingError
from meetupq.forecast import Forecast
from meetupq.history import Event, History, events_of
from meetupq.leases import Token
from meetupq.summary import QueueSummary
from meetupq.timeline import JOB_STATES, Attempt, ItemLine, JobLine, Ownership, Timeline
from meetupq.timing import Timing
from meetupq.trials import Trial

Events = History | Iterable[Event]
CLOCK_SLACK = 0.05
"""Seconds that a worker's clock reading may lag behind the broker's own; the broker is never asked what time it is."""
TAKEOVER_SLACK = 0.25
"""Seconds by which a takeover may come later than its bound: on a busy machine who has won hears of it late."""


@dataclass(frozen=True)
class Verdict:
    """One claim's outcome: `status` is "HELD", "NOT YET" or "BROKEN"; `sentence` names the facts it rests on."""

    status: Literal["HELD", "NOT YET", "BROKEN"]
    sentence: str

    def __str__(self) -> str:
        return f"{self.status}: {self.sentence}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same, large enough for the last row: word, mark and colour say it three times.

        It begins with a comment because JupyterLab shows the first line of an output that is folded away.
        """
        mark, colour = _MARKS[self.status]
        told = f'<b style="color:{colour}">{mark} {self.status}</b>&ensp;{escape(self.sentence)}'
        style = "font-size:16px;line-height:1.5;padding:2px 0"
        return f'<!-- run this cell for its verdict -->\n<div style="{style}">{told}</div>'


_MARKS: Final = {"HELD": ("✓", "#1A7F37"), "NOT YET": ("○", "#7D6A00"), "BROKEN": ("✗", "#D1242F")}


def held(sentence: str) -> Verdict:
    return Verdict("HELD", sentence)


def not_yet(sentence: str) -> Verdict:
    return Verdict("NOT YET", sentence)


def broken(sentence: str) -> Verdict:
    return Verdict("BROKEN", sentence)


# --- the queue half ------------------------------------------------------------------------------------


def delivered_once(events: Events, *jobs: str) -> Verdict:
    """Each of the jobs was delivered to one worker, once, and acked."""
    lines = Timeline(events).jobs
    wanted = [lines.get(job) for job in jobs]
    if not jobs or not all(line and line.attempts for line in wanted):
        return not_yet("some of these jobs were not delivered to anybody so far")
    again = [line.name for line in wanted if line and len(line.attempts) > 1]
    if again:
        return broken(f"{', '.join(again)} went out more than once")
    missed = [line.name for line in wanted if line and line.attempts[0].number != 1]
    if missed:
        return broken(f"{', '.join(missed)} went out before the delivery that is known")
    if not all(line and line.done is not None for line in wanted):
        return not_yet("some of these jobs are still at work")
    count = len(jobs)
    return held(f"{_n(count, 'job')}, {_n(count, 'delivery')}, {_n(count, 'ack')}: each job went to one worker only")


def retried_elsewhere(events: Events, job: str) -> Verdict:
    """The job's worker was killed, and after the broker's patience, not before, the job went to another one."""
    line = Timeline(events).jobs.get(job)
    attempts = line.attempts if line else []
    # One that only waited in its worker's hands was not worked on.
    killed = [n for n, a in enumerate(attempts) if a.how == "killed" and not (a.in_hand and a.begun is None)]
    if not killed:
        return not_yet(f"nobody was killed while working on {job}: publish it again, and kill its worker in time")
    pairs = [(attempts[n], attempts[n + 1]) for n in killed if n + 1 < len(attempts)]
    pairs = [(first, second) for first, second in pairs if second.number == first.number + 1]
    if not pairs or killed[-1] == len(attempts) - 1:
        return not_yet(f"{job} was not delivered again so far: the broker still waits for an ack")
    for first, second in pairs:
        if second.start < first.until - CLOCK_SLACK:
            return broken(
                f"{job} was delivered again before the broker's patience with attempt {first.number} was over"
            )
    elsewhere = [(first, second) for first, second in pairs if second.worker != first.worker]
    if not elsewhere:
        return not_yet(f"{job} went to {pairs[0][0].worker} again, who was started again: kill, and leave it dead")
    first, second = elsewhere[0]
    return held(
        f"{job} took {_n(len(attempts), 'attempt')}: attempt {second.number} began only after the patience with "
        f"attempt {first.number}, with another worker"
    )


def untouched(events: Events, job: str) -> Verdict:
    """While `job` was being retried, every other job that is done was delivered once."""
    lines = Timeline(events).jobs
    if job not in lines or len(lines[job].attempts) < 2:
        return not_yet(f"{job} was not tried twice so far")
    others = [line for line in lines.values() if line.name != job and line.done is not None and line.attempts]
    if not others:
        return not_yet("no other job is done so far")
    again = [line.name for line in others if len(line.attempts) > 1 or line.attempts[0].number != 1]
    return (
        broken(f"{', '.join(again)} went out more than once too")
        if again
        else held(f"{_n(len(others), 'other job')} done, each delivered once")
    )


def died_after(events: Events, job: str, deliveries: int) -> Verdict:
    """The job was delivered exactly so many times, then kept as a dead letter."""
    line = Timeline(events).jobs.get(job)
    if line is None or line.dead is None:
        return not_yet(f"{job} is not among the dead letters so far")
    numbers = [attempt.number for attempt in line.attempts[-deliveries:]]
    if line.deliveries != deliveries or numbers != [*range(1, deliveries + 1)]:
        return broken(f"{job} was to die after {deliveries} deliveries, but had {line.deliveries}")
    return held(f"{job} had {_n(deliveries, 'delivery')}, then it was kept as a dead letter")


def gaps_follow(events: Events, job: str, timing: Timing) -> Verdict:
    """The waits between the attempts of a job that fails in silence are those of the timing, none shorter."""
    line = Timeline(events).jobs.get(job)
    attempts = line.attempts if line else []
    if len(attempts) < 2:
        return not_yet(f"{job} was not tried twice so far")
    pairs = [(earlier, later) for earlier, later in pairwise(attempts) if later.number == earlier.number + 1]
    if not pairs:
        return not_yet(f"no attempt of {job} is known together with the one after it")
    for earlier, later in pairs:
        # A heartbeat starts the same patience anew.
        since = max([earlier.start, *earlier.beats])
        if later.start - since < timing.patience(earlier.number) - CLOCK_SLACK:
            return broken(f"attempt {later.number} of {job} came earlier than the timing's patience")
    return held(f"{job} was tried {len(attempts)} times, and no wait was shorter than the patience with that attempt")


def silent_while_dead(events: Events, *jobs: str) -> Verdict:
    """The jobs used up their attempts, and until a worker was started again the broker did not say a word about it."""
    timeline = Timeline()
    lines: list[JobLine | None] = []
    for event in events_of(events):
        if event.kind == "started" and lines and all(line and line.exhausted is not None for line in lines):
            break
        timeline.feed([event])
        lines = [timeline.jobs.get(job) for job in jobs]
    if not jobs or not all(line and line.exhausted is not None for line in lines):
        return not_yet("some of these jobs still have an attempt left")
    told = [line.name for line in lines if line and (line.exhausted_source == "broker" or line.dead is not None)]
    if told:
        return broken(f"the broker has reported {', '.join(told)}")
    return held(f"{len(jobs)} exhausted, 0 advisories, 0 dead letters")


def buried_once(events: Events, *jobs: str) -> Verdict:
    """Each of the jobs was brought to the dead letters, once."""
    lines = Timeline(events).jobs
    deaths = [event for event in events_of(events) if event.kind == "dead_lettered" and event.job in jobs]
    if not jobs or not {event.job for event in deaths} >= set(jobs):
        return not_yet("some of these jobs are not among the dead letters so far")
    # A redrive begins a new life, which may end among the dead letters too.
    times = Counter((event.job, bisect(lines[event.job].redriven, event.at)) for event in deaths)
    twice = list(dict.fromkeys(job for (job, _), count in times.items() if count > 1))
    if twice:
        return broken(f"{', '.join(twice)} was buried twice")
    lives = ", one for each life" if len(deaths) > len(set(jobs)) else ""
    return held(f"{_n(len(set(jobs)), 'dead job')}, {_n(len(deaths), 'dead letter')}{lives}")


def second_chance(events: Events, job: str, fast: int, slow: int) -> Verdict:
    """The job was delivered so many times by the fast consumer, then so many times by the slow one, then it died."""
    line = Timeline(events).jobs.get(job)
    if line is None or line.dead is None:
        return not_yet(f"{job} is not among the dead letters so far")
    moved = line.escalated[-1] if line.escalated else inf
    seen = sum(a.start < moved for a in line.attempts), sum(a.start >= moved for a in line.attempts)
    if seen != (fast, slow):
        return broken(f"{job} had {_n(seen[0], 'delivery')}, then {seen[1]} by the slow consumer")
    return held(
        f"{job} had {_n(fast, 'delivery')}, moved on, had {_n(slow, 'delivery')} more, and was kept as a letter"
    )


def letter_is_whole(letters: Sequence[DeadLetter], contains: bytes) -> Verdict:
    """The newest of the letters has its job's own payload, with these bytes in it, the reason and the deliveries."""
    if not letters:
        return not_yet("there is no dead letter to look at so far")
    letter = letters[-1]
    if contains not in letter.payload or not letter.reason or letter.deliveries < 1:
        return broken(f"the letter of {letter.job} lacks its payload, its reason or its deliveries")
    return held(f"the letter of {letter.job} has its payload, its subject and the reason: {letter.reason}")


def only_a_pointer(advisory: dict[str, Any], payload: bytes) -> Verdict:
    """The broker's advisory names the job's place in the stream and has nothing of the job itself."""
    if "stream_seq" not in advisory:
        return not_yet("no advisory was received so far")
    if payload and payload.decode() in str(advisory):
        return broken("the advisory has the payload in it")
    return held(f"the advisory names stream {advisory['stream']}, sequence and deliveries, but has no payload")


def dropped_as_duplicate(events: Events, job: str) -> Verdict:
    """The job was published twice with the same Msg-Id; the broker took the second message and threw it away."""
    seen = [event.kind for event in events_of(events) if event.job == job and event.kind in ("published", "duplicate")]
    if "duplicate" not in seen:
        return broken(f"{job} was stored again") if len(seen) > 1 else not_yet(f"{job} was not published twice so far")
    return held(f"the broker says of the second {job}: duplicate, nothing was stored")


def started_again(events: Events, job: str) -> Verdict:
    """After the redrive the job's attempts began at 1 again."""
    seen = [event for event in events_of(events) if event.job == job]
    # By the clock, not by the order in the list: a fast worker has the job before its redrive is written down.
    redriven = [event.at for event in seen if event.kind == "redriven"]
    after = [event.attempt for event in seen if event.kind == "delivered" and redriven and event.at >= redriven[-1]]
    if not after:
        return not_yet(f"{job} was not redriven and delivered again so far")
    if after[0] != 1:
        return broken(f"{job} came back as attempt {after[0]}")
    return held(f"{job} was redriven, and its first delivery since then is attempt 1")


def redriven_only(events: Events, *jobs: str) -> Verdict:
    """Of the jobs that failed together, these were put back and are done; nothing else was put back since."""
    lines = Timeline(events).jobs
    wanted = [lines[job] for job in jobs if job in lines]
    if len(wanted) < len(jobs) or not all(line.redriven for line in wanted):
        return not_yet("some of these letters were not redriven so far")
    since = min(line.redriven[-1] for line in wanted)
    others = [line.name for line in lines.values() if line.name not in jobs and line.redriven[-1:] > [since]]
    if others:
        return broken(f"{', '.join(others)} was put back too")
    if not all(line.done is not None for line in wanted):
        return not_yet("some of these jobs are still at work")
    return held(f"{', '.join(jobs)} were put back and are done, and nothing else was put back")


def nothing_lost(events: Events, in_stream: int | None = None, letters: int | None = None) -> Verdict:
    """No job is both done and dead, none is unknown, and (given the broker's own counts) none is missing.

    An ack that came after the job was kept as a dead letter settles nothing: it is counted as too late.

    Args:
        in_stream: how many messages the broker has in the stream of jobs now.
        letters: how many messages it has among the dead letters.
    """
    seen = events_of(events)
    timeline = Timeline(seen)
    published = {event.job for event in seen if event.kind == "published"}
    if not published:
        return not_yet("no job was published so far")
    strangers = sorted(set(timeline.jobs) - published)
    if strangers:
        return broken(f"{', '.join(strangers)} turned up without being published")
    both, late = _settled_twice(seen, timeline.jobs)
    if both:
        return broken(f"{', '.join(both)} is done and dead at once")
    counts = timeline.counts
    unsettled = len(published) - counts["done"] - counts["dead"] - counts["terminated"]
    if in_stream is not None and in_stream != unsettled:
        return broken(f"{unsettled} jobs should be in the stream, but the broker has {in_stream}")
    if letters is not None and letters != counts["dead"]:
        return broken(f"{counts['dead']} jobs should be dead letters, but the broker has {letters}")
    terminated = f" + {counts['terminated']} terminated" if counts["terminated"] else ""
    told = f"{counts['done']} acked + {counts['dead']} dead{terminated} + {unsettled} in flight"
    return held(f"{len(published)} published = {told}{f' ({len(late)} acked too late)' if late else ''}")


def adds_up(events: Events) -> Verdict:
    """Published = acked + dead + terminated + in flight, counted over the events one by one, not over the states."""
    seen = events_of(events)
    published = {event.job for event in seen if event.kind == "published"}
    if not published:
        return not_yet("no job was published so far")
    ends = Counter(_ends(seen).values())
    counts = Timeline(seen).counts
    told = f"{ends['acked']} acked + {ends['dead']} dead"
    told += f" + {ends['terminated']} terminated" if ends["terminated"] else ""
    ours = ends["acked"], ends["dead"], ends["terminated"]
    if ours != (counts["done"], counts["dead"], counts["terminated"]) or not set(_ends(seen)) <= published:
        return broken(f"the events say {told}, the states {counts}")
    return held(f"{len(published)} published = {told} + {len(published) - ends.total()} in flight")


def _ends(events: Iterable[Event]) -> dict[str, str]:
    """How each job that is settled was settled: "acked", "dead" or "terminated"."""
    ends: dict[str, tuple[str, float]] = {}
    newest: dict[str, int] = {}
    put_back: set[str] = set()
    for event in events:
        job, end = event.job, ends.get(event.job, ("", 0.0))
        if event.kind in ("published", "delivered", "escalated"):
            newest[job] = max(newest.get(job, 0), event.revision)
        past = 0 < event.revision < newest.get(job, 0)  # about the message that it was before it was put back
        if event.kind == "delivered":
            put_back.discard(job)
        elif event.kind == "dead_lettered":
            ends[job] = "dead", event.at
        elif event.kind == "late_success" or (event.kind == "acked" and end[0] != "dead"):
            ends |= {} if past else {job: ("acked", event.at)}
        elif event.kind == "terminated" and not end[0] and job not in put_back:
            ends |= {} if past else {job: ("terminated", event.at)}
        elif event.kind in ("redriven", "escalated"):
            put_back.add(job)
            # A fast worker can be done before it is written down that the job was put back.
            if end[0] != "acked" or end[1] < event.at:
                ends.pop(job, None)
    return {job: how for job, (how, _) in ends.items()}


def _settled_twice(events: Iterable[Event], lines: Mapping[str, JobLine]) -> tuple[list[str], list[str]]:
    """The jobs that were done and dead in one life, and those that were acked when they were dead letters already."""
    kinds = ("acked", "late_success", "dead_lettered")
    ends: dict[str, list[Event]] = {}
    for event in events:
        if event.kind in kinds:
            ends.setdefault(event.job, []).append(event)
    both: set[str] = set()
    late: set[str] = set()
    for job, told in ends.items():
        for letter in told:
            if letter.kind != "dead_lettered":
                continue
            for event in told:
                if event.kind == "dead_lettered" or not _of_one_life(event, letter, lines[job]):
                    continue
                too_late = event.kind == "acked" and event.at >= letter.at - CLOCK_SLACK
                (late if too_late else both).add(job)
    return sorted(both), sorted(late)


def _of_one_life(one: Event, other: Event, line: JobLine) -> bool:
    """Whether two events of a job are about one message, and not about what it was before it was put back."""
    if one.revision and other.revision:
        return one.revision == other.revision
    return bisect(line.put_back, one.at) == bisect(line.put_back, other.at)


def _last_life(line: JobLine | None) -> list[Attempt]:
    """The job's attempts since it was last put into the queue."""
    since = max(line.put_back, default=-inf) if line else -inf
    return [attempt for attempt in line.attempts if attempt.start >= since] if line else []


def _n(count: int, noun: str) -> str:
    """A count with its noun, in the plural where it takes one."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


def reads(events: Events, job: str, *, attempts: int | None, kills: int | None) -> Verdict:
    """What somebody has read off the picture: how many attempts a job had, and how many workers died of them."""
    line = Timeline(events).jobs.get(job)
    if line is None or line.done is None:
        return not_yet(f"{job} is not done so far")
    if attempts is None or kills is None:
        return not_yet("put in two numbers: count the bars in the row, and the red crosses")
    seen = len(line.attempts), sum(attempt.how == "killed" for attempt in line.attempts)
    if (attempts, kills) != seen:
        return broken(f"{job} had another number of attempts or of kills than {attempts} and {kills}")
    return held(f"{job} had {_n(attempts, 'attempt')}, and {_n(kills, 'worker')} died of them")


def counted(summary: QueueSummary, **expected: int) -> Verdict:
    """The broker's own counts are these: `counted(lab.summary(), stuck=1)`."""
    parts = {name.replace(" ", "_"): count for name, count in summary.parts().items()}
    unknown = [name for name in expected if name not in parts]
    if unknown or not expected:
        raise ValueError(f"the summary has no part {unknown[:1]}: choose from {', '.join(parts)}")
    told = ", ".join(f"{parts[name]} {name.replace('_', ' ')}" for name in expected)
    if any(parts[name] > count for name, count in expected.items()):
        return broken(f"the broker counts {told}")
    if any(parts[name] < count for name, count in expected.items()):
        return not_yet(f"the broker counts {told} so far")
    return held(f"the broker counts {told}")


def burnt_at_once(events: Events, job: str, timing: Timing) -> Verdict:
    """Each delivery of the job was handed back, and all were used up before even the first patience was over."""
    attempts = _last_life(Timeline(events).jobs.get(job))
    if len(attempts) < timing.max_deliver or not attempts[-1].how:
        return not_yet(f"{job} still has deliveries left")
    if [attempt.number for attempt in attempts] != [*range(1, timing.max_deliver + 1)]:
        return broken(f"the deliveries of {job} are not numbered from 1 to {timing.max_deliver}")
    if attempts[-1].start - attempts[0].start >= timing.patience(1):
        return broken(f"{job} took longer than the first patience to use up its deliveries")
    if any(attempt.how != "naked" for attempt in attempts):
        return broken(f"not every delivery of {job} was handed back")
    return held(f"{job} used up all its {_n(len(attempts), 'delivery')} before the first patience was over")


def waited_between(events: Events, job: str, seconds: float) -> Verdict:
    """Between an attempt that was handed back and the next one there were at least so many seconds."""
    line = Timeline(events).jobs.get(job)
    attempts = line.attempts if line else []
    if len(attempts) < 2:
        return not_yet(f"{job} was not tried twice so far")
    pairs = [(earlier, later) for earlier, later in pairwise(attempts) if later.number == earlier.number + 1]
    if not pairs or any(earlier.how != "naked" for earlier, _ in pairs):
        return not_yet(f"not every earlier attempt of {job} was handed back")
    waits = [later.start - (earlier.end or earlier.start) for earlier, later in pairs]
    if min(waits) < seconds - CLOCK_SLACK:
        return broken(f"an attempt of {job} came too early")
    return held(f"{job} was tried {len(attempts)} times, and each time the delay was waited for")


def late_ack_won(events: Events, job: str) -> Verdict:
    """The broker had given the job up for dead; then an ack came, and the job is done and no dead letter."""
    seen = [event for event in events_of(events) if event.job == job]
    exhausted = [event for event in seen if event.kind == "exhausted" and event.source == "broker"]
    if not exhausted:
        return not_yet(f"the broker has not given {job} up so far")
    acks = [event for event in seen if event.kind == "acked"]
    # An ack of another message, such as a copy that was moved on, is not late.
    acked = any(
        ack.at > end.at and (ack.revision == end.revision or not ack.revision or not end.revision)
        for ack in acks
        for end in exhausted
    )
    if any(event.kind == "dead_lettered" for event in seen):
        return broken(f"{job} became a dead letter")
    if not acked:
        return not_yet(f"nobody has acked {job} since the broker gave it up")
    return held(f"the broker had given {job} up and said so; then an ack came, and {job} is done: no dead letter")


def gone_for_good(events: Events, letters: Sequence[DeadLetter], job: str) -> Verdict:
    """The job was terminated, and there is no copy of it."""
    line = Timeline(events).jobs.get(job)
    if line is None or not any(attempt.how == "terminated" for attempt in line.attempts):
        return not_yet(f"{job} was not terminated so far")
    if any(letter.job == job for letter in letters):
        return broken(f"there is a letter of {job}")
    return held(f"{job} was terminated, and no dead letter has its payload")


def grew_old(events: Events, job: str) -> Verdict:
    """The job was given to somebody else while it waited in the hands of its first worker, and nobody had died."""
    timeline = Timeline(events)
    line = timeline.jobs.get(job)
    if line is None or len(line.attempts) < 2:
        return not_yet(f"{job} was not given to a second worker so far")
    first, second = line.attempts[:2]
    if first.how == "killed" or (first.begun is not None and first.begun < second.start):
        return broken(f"{first.worker} had died or had begun with {job} before the second delivery")
    if first.how == "naked" and first.end is not None and first.end < second.start:
        return not_yet(f"{first.worker} handed {job} back: leave it alone, and let the broker's patience run out")
    if not first.in_hand and first.begun is None:
        return broken(f"{job} never waited in {first.worker}'s hands: it was begun as soon as it was delivered")
    return held(f"{job} was given away while it waited in {first.worker}'s hands, although nobody had died")


def kept_by_heartbeats(events: Events, job: str) -> Verdict:
    """The job took longer than the broker's patience, and was done by its first worker, who said "in progress"."""
    seen = [event for event in events_of(events) if event.job == job]
    line = Timeline(seen).jobs.get(job)
    if line is None or line.done is None:
        return not_yet(f"{job} is not done so far")
    first = next((event for event in seen if event.kind == "delivered"), None)
    if first is None:
        return not_yet(f"no delivery of {job} is known")
    if first.attempt != 1:
        return broken(f"{job} went out before the delivery that is known")
    if len(line.attempts) > 1 or not line.attempts[0].beats:
        return broken(f"{job} had {_n(len(line.attempts), 'attempt')}, or no heartbeat was sent")
    if line.done <= first.until:
        return not_yet(f"{job} was done within the patience: take one that needs longer")
    return held(f"{job} took longer than the broker's patience, and one delivery was enough")


def patience_fits(events: Events, plain: str, widowed: str, within: float) -> Verdict:
    """A job whose worker lives is done once; one whose worker was killed starts again within so many seconds."""
    lines = Timeline(events).jobs
    once, again = lines.get(plain), lines.get(widowed)
    if once is None or once.done is None:
        return not_yet(f"{plain} is not done so far")
    if len(once.attempts) > 1:
        return not_yet(f"{plain} went out more than once although nobody died: the patience is shorter than the work")
    if again is None or len(again.attempts) < 2 or again.attempts[0].how != "killed":
        return not_yet(f"{widowed} was not started again after a kill so far")
    if again.attempts[1].start - again.attempts[0].start > within:
        return broken(f"{widowed} was started again too late: the patience is too long")
    return held(f"{plain} was done once, and {widowed} was started again within the limit")


def states(events: Events, guesses: Mapping[str, str]) -> Verdict:
    """Where somebody says that each job is; the words are those below the picture."""
    lines = Timeline(events).jobs
    if not guesses or not all(job in lines for job in guesses):
        return not_yet("some of these jobs were not published so far")
    open_ones = [job for job, guess in guesses.items() if guess not in JOB_STATES]
    if open_ones:
        return not_yet(f"say of {', '.join(open_ones)}: {', '.join(JOB_STATES)}?")
    wrong = [job for job, guess in guesses.items() if lines[job].state != guess]
    if wrong:
        return broken(f"not so: {', '.join(wrong)}")
    return held(", ".join(f"{job} is {guess}" for job, guess in guesses.items()))


# --- the lease half ------------------------------------------------------------------------------------


def never_two_owners(events: Events) -> Verdict:
    """No work item had two owners at once, and each owner's token is larger than the one before."""
    items = Timeline(events).items.values()
    claims = sum(len(item.ownerships) for item in items)
    if not claims:
        return not_yet("nothing was claimed so far")
    for item in items:
        for earlier, later in pairwise(item.ownerships):
            if later.token <= earlier.token:
                return broken(f"{item.name}: the token of {later.worker} is not larger than {earlier.worker}'s")
            ended = earlier.until if earlier.how == "superseded" else earlier.end
            if ended is None or later.start < ended - CLOCK_SLACK:
                return broken(f"{item.name} was owned by {earlier.worker} and {later.worker} at once")
    return held(f"{_n(len(items), 'work item')}, {_n(claims, 'claim')}, never two owners of one item")


def owners(events: Events, items: int) -> Verdict:
    """So many work items have an owner each now."""
    owned = [line for line in Timeline(events).items.values() if line.owner]
    if len(owned) < items:
        return not_yet(f"{len(owned)} of {items} work items have an owner so far")
    if len(owned) > items:
        return broken(f"{len(owned)} work items have an owner, not {items}")
    return held(f"{len(owned)} work items, {len({line.owner.worker for line in owned if line.owner})} owners")


def reclaimed_after_ttl(events: Events, item: str) -> Verdict:
    """The owner died; the lease stood until its TTL was over; then somebody else claimed it, with a larger token."""
    line = Timeline(events).items.get(item)
    takeover = _takeover(line.ownerships if line else [])
    if takeover is None:
        return not_yet(f"nobody has taken {item} over from a dead owner so far")
    dead, heir = takeover
    if heir.start < dead.until - CLOCK_SLACK:
        return broken(f"{item} was claimed before the lease of {dead.worker} had run out")
    if heir.token <= dead.token:
        return broken(f"{item}: the token did not grow")
    if heir.worker == dead.worker:
        return not_yet(f"{item} went back to {dead.worker}, who was started again: kill, and leave it dead")
    return held(f"{item} was claimed by another worker, only after the dead owner's TTL, with a larger token")


def _takeover(ownerships: Sequence[Ownership]) -> tuple[Ownership, Ownership] | None:
    return next(((a, b) for a, b in pairwise(ownerships) if a.gone is not None and b.reclaimed), None)


def handed_over(events: Events, item: str) -> Verdict:
    """The owner stopped politely, and the next one claimed the item without waiting for the TTL."""
    line = Timeline(events).items.get(item)
    pairs = [*pairwise(line.ownerships)] if line else []
    found = [(a, b) for a, b in pairs if a.how == "released" and not b.reclaimed]
    if not found:
        return not_yet(f"{item} was not released and claimed again so far")
    released, heir = found[-1]
    if heir.start >= released.until:
        return broken(f"{item} was claimed again only after the TTL, as if its owner had died")
    return held(f"{item} was released, and claimed again before its TTL was over")


def resumed(events: Events, item: str) -> Verdict:
    """Every step of the item was done once, in order, by more than one owner: each went on where the last one ended."""
    steps = _about(events, "checkpointed", item)
    numbers = [_number(event.detail) for event in steps]
    by = list(dict.fromkeys(event.worker for event in steps))
    if len(by) < 2 or Timeline(events).items[item].finished is None:
        return not_yet(f"{item} was not taken over and finished so far")
    if numbers != [*range(1, len(numbers) + 1)]:
        return broken(f"the steps of {item} were done as {numbers}")
    back = [(a.worker, b.worker) for a, b in pairwise(steps) if b.revision < a.revision]
    if back:
        return broken(f"{back[0][1]} did a step of {item} with an older token, after {back[0][0]} had taken it over")
    return held(f"{len(numbers)} steps of {item}, each done once, by {len(by)} owners in turn")


def _about(events: Events, kind: str, item: str) -> list[Event]:
    """The events of one kind about one item, in the order of time: what a process says may come late."""
    found = [event for event in events_of(events) if event.kind == kind and event.job == item]
    return sorted(found, key=lambda event: event.at)


def _number(detail: str) -> int:
    """The number that a detail such as "3 of 10 steps" begins with; 0 if it doesn't."""
    first = detail.partition(" ")[0]
    return int(first) if first.isdecimal() and len(first) < 10 else 0


def kept_alive(events: Events, item: str, owner: str, ttl: float) -> Verdict:
    """The owner kept its lease for longer than one TTL, by renewing it."""
    line = Timeline(events).items.get(item)
    mine = [own for own in line.ownerships if own.worker == owner] if line else []
    if not mine:
        return not_yet(f"{owner} has not claimed {item} so far")
    kept = [own for own in mine if own.renewals and own.renewals[-1] - own.start > ttl - CLOCK_SLACK]
    if not kept:
        return not_yet(f"no lease on {item} outlived its TTL so far: renew it before the TTL is over")
    if (verdict := never_two_owners(events)).status == "BROKEN":
        return verdict
    return held(f"{owner} kept {item} for longer than one TTL, by renewing it")


def one_winner(claims: Iterable[object]) -> Verdict:
    """Of all who tried to claim one item (a lease, or None for each), one succeeded."""
    results = list(claims)
    winners = sum(result is not None for result in results)
    if not results:
        return not_yet("nobody has tried so far")
    if winners != 1:
        return broken(f"{len(results)} tried, {winners} won")
    return held(f"{len(results)} tried, 1 won")


# --- owners that come back -----------------------------------------------------------------------------


def two_believers(events: Events, item: str) -> Verdict:
    """A frozen owner came back after somebody else had reclaimed its item, and did not know: both believed in it."""
    line = Timeline(events).items.get(item)
    frozen = [own for own in line.ownerships if own.cause == "frozen"] if line else []
    if not frozen:
        return not_yet(f"no owner of {item} was frozen until its lease was over so far")
    pairs = [(a, b) for a in frozen if (b := _heir(line, a))]
    if not pairs:
        return not_yet(f"{item} was not taken over from {frozen[0].worker} so far")
    for zombie, heir in pairs:
        if (later := _came_back(events, item, zombie)) is None:
            continue
        if later <= heir.start:
            return broken(f"{zombie.worker} had come back before {heir.worker} took {item} over")
        if zombie.token >= heir.token:
            return broken(f"{item}: the token of {heir.worker} is not larger than {zombie.worker}'s")
        return held(
            f"{zombie.worker} came back after {heir.worker} had taken {item} over, and believed in its lease still: "
            f"two believers, {zombie.worker} with a smaller token"
        )
    return not_yet(f"{pairs[0][0].worker} has not come back so far: thaw it")


def _heir(line: ItemLine | None, owner: Ownership) -> Ownership | None:
    """Who took the item over from an owner whose lease had run out."""
    ownerships = line.ownerships if line else []
    later = [own for own in ownerships if own.start > owner.start and own.reclaimed and own.worker != owner.worker]
    return min(later, key=lambda own: own.start, default=None)


def _came_back(events: Events, item: str, owner: Ownership) -> float | None:
    """When an owner that was away was first heard of again: it wrote, or found out that its lease is lost."""
    moments = [
        event.at
        for kind in ("written", "lost")
        for event in _about(events, kind, item)
        if (event.worker, event.revision) == (owner.worker, owner.token) and event.at > (owner.gone or 0.0)
    ]
    return min(moments, default=None)


def ledger_damaged(events: Events, item: str) -> Verdict:
    """The ledger without a fence took a write under an older token after one under a newer token."""
    writes, refusals = _about(events, "written", item), _about(events, "fenced", item)
    missing = Counter(map(_write, refusals)) - Counter(map(_write, writes))
    if missing:
        return broken(f"the ledger without a fence did not take what {next(iter(missing))[0]} wrote to {item}")
    newest: Event | None = None
    for write in writes:
        if newest and write.detail.startswith("stale"):
            return held(
                f"the ledger without a fence took what {write.worker} wrote to {item} with a smaller token, after "
                f"{newest.worker} had written with a larger one"
            )
        if newest and write.revision < newest.revision:
            return broken(f"{write.worker} wrote to {item} with an older token, and nobody called that write stale")
        newest = write
    return not_yet(f"nobody has written to {item} with an older token, after a newer one had written, so far")


def _write(event: Event) -> tuple[str, int, int]:
    """What tells one write to the ledgers from another."""
    return event.worker, event.attempt, event.revision


def _taken(events: Events, item: str) -> list[Event]:
    """The writes that the fenced ledger took: all that were written, without those that it refused."""
    taken: list[Event] = []
    for event in events_of(events):
        if event.job != item:
            continue
        if event.kind == "written":
            taken.append(event)
        elif event.kind == "fenced":
            same = [number for number, write in enumerate(taken) if _write(write) == _write(event)]
            if same:
                del taken[same[-1]]
    return taken


def ledger_kept(events: Events, item: str) -> Verdict:
    """The fenced ledger refused a write under an older token, and the tokens of those that it took never went back.

    Tokens are compared by their revisions, as they grow in one bucket.
    """
    for earlier, later in pairwise(_taken(events, item)):
        if later.revision < earlier.revision or later.detail.startswith("stale"):
            return broken(f"the fenced ledger took what {later.worker} wrote to {item} after {earlier.worker}")
    refused = list(dict.fromkeys(event.worker for event in _about(events, "fenced", item)))
    if not refused:
        return not_yet(f"no write to {item} was refused so far: an owner has to come back too late, and write")
    return held(
        f"the fenced ledger refused what {' and '.join(refused)} wrote to {item} with a smaller token: "
        "the tokens of what it took never went back"
    )


def steps_applied_once(events: Events, item: str) -> Verdict:
    """Every step of the item is in the fenced ledger, and each was applied after the one before it.

    A step that an heir has written again changes nothing there.
    """
    steps = list(dict.fromkeys(write.attempt for write in _taken(events, item)))
    if steps != [*range(1, len(steps) + 1)]:
        return broken(f"the fenced ledger has the steps of {item} as {steps}")
    line = Timeline(events).items.get(item)
    if line is None or line.progress is None or not steps:
        return not_yet(f"no step of {item} was written to the ledger and checkpointed so far")
    if len(steps) > line.progress.steps:
        return broken(f"{item} has {line.progress.steps} steps, but the ledger has {len(steps)}")
    if len(steps) < line.progress.steps:
        return not_yet(f"{len(steps)} of {line.progress.steps} steps of {item} are in the ledger so far")
    return held(f"{len(steps)} steps of {item} are in the fenced ledger, each applied once, in order")


def stopped_in_time(events: Events, name: str) -> Verdict:
    """An owner that was cut off gave up by its own clock: before its lease was over, and before anybody else had it.

    Args:
        name: of the work item, or of the owner.
    """
    seen = events_of(events)
    lines = Timeline(seen).items.values()
    owned = [(line, own) for line in lines for own in line.ownerships if name in (line.name, own.worker)]
    verdicts = [_stopped(seen, line, own) for line, own in owned if own.cause == "cut"]
    if not verdicts:
        return not_yet(f"no owner was cut off for longer than its lease so far: {name}")
    return next((verdict for verdict in verdicts if verdict.status != "HELD"), verdicts[-1])


def _stopped(events: Iterable[Event], line: ItemLine, own: Ownership) -> Verdict:
    heir = next((later for later in line.ownerships if later.token > own.token), None)
    end = min(own.until, heir.start) if heir else own.until
    # What it has sent to a ledger proves nothing: a write can lie in a buffer until the connection is back.
    worked = any(
        event.kind in ("renewed", "checkpointed", "finished") and event.at > end
        for event in events
        if (event.job, event.worker, event.revision) == (line.name, own.worker, own.token)
    )
    if worked or (own.lost is not None and own.lost >= end):
        return broken(f"{own.worker} had not stopped the work on {line.name} when its lease was over")
    if own.lost is None:
        return not_yet(f"{own.worker} has not said so far that it stopped the work on {line.name}")
    if heir is None:
        return not_yet(f"{own.worker} has stopped the work on {line.name}, but nobody else has claimed it so far")
    return held(
        f"{own.worker} was cut off from {line.name}, and stopped by its own clock before its lease was over and before "
        f"{heir.worker} had it"
    )


# Each write as (worker, token, whether it is to be taken); a history is told by its writes up to the one that fails.
_OLD, _NEW = "20250101T000000.000000", "20250102T000000.000000"
_Told = tuple[str, Token, bool]
_ADA, _BO = ("ada", Token(_OLD, 5), True), ("bo", Token(_OLD, 7), True)
_ZOMBIE = ("ada", Token(_OLD, 5), False)
_REBORN, _GHOST = ("cy", Token(_NEW, 2), True), ("bo", Token(_OLD, 7), False)
_FENCE_STORIES: Final[tuple[tuple[_Told, ...], ...]] = (
    (_ADA,),
    (_ADA, _ADA),
    (_ADA, _BO),
    (_ADA, _BO, _ZOMBIE),
    (_ADA, _BO, _ZOMBIE, _BO),
    (_ADA, _BO, _REBORN),
    (_ADA, _BO, _REBORN, _GHOST),
)


def fence_holds(may_write: Callable[[Token, Token], bool]) -> Verdict:
    """Whether a rule lets every owner write, and no earlier one.

    Args:
        may_write: somebody's own function: given the token of a write, and that of the last write that was accepted
            (`Token("", 0)` before the first one), it says whether the write is accepted. Whatever it does is a verdict.
    """
    for story in _FENCE_STORIES:  # a short one before those that begin in the same way
        last = Token("", 0)
        for number, (_, token, wanted) in enumerate(story, start=1):
            answer, why = _asked(may_write, token, last)
            if answer is None:
                return not_yet("write the comparison first: return True or False")
            told = ", ".join(_told_write(write) for write in story[:number])
            if why:
                return broken(f"{told}: {why}")
            if answer is not wanted:
                return broken(f"{told}: the last write was {'accepted' if answer else 'refused'}")
            last = token if wanted else last
    return held(
        f"{len(_FENCE_STORIES)} histories: an owner writes again, its heir writes, no earlier owner does, "
        "and all that after the bucket was made anew too"
    )


def _asked(may_write: Callable[[Token, Token], bool], token: Token, last: Token) -> tuple[bool | None, str]:
    """What somebody's function says, or why that is no answer; (None, "") if it isn't written yet."""
    answer: Any
    try:
        answer = may_write(token, last)
    except NotImplementedError:
        return None, ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is somebody else's function
        return False, f"the function raised {type(error).__name__}"
    if inspect.iscoroutine(answer):
        answer.close()
    if answer is None or answer is ... or answer is NotImplemented:
        return None, ""
    if answer is True or answer is False:
        return answer, ""
    return False, f"the function returned a {type(answer).__name__}, not True or False"


def _told_write(write: _Told) -> str:
    worker, token, _ = write
    return f"{worker} {token.revision}{' of a new bucket' if token.bucket == _NEW else ''}"


# --- timers ------------------------------------------------------------------------------------------------


def timers_fit(
    timing: Timing | None, items: int, within: float, messages: float, *, takeover: str = "marker", standbys: int = 1
) -> Verdict:
    """The worst takeover comes within so many seconds, with at most so many messages per second, by the forecast.

    Args:
        timing: the choice; None so far.
        items, takeover, standbys: as in `Forecast`.
        within: the limit in seconds, from an owner's death to the next owner.
        messages: the limit of messages per second, of owners and standbys together.
    """
    if timing is None or isinstance(timing, type(...)):
        return not_yet("choose a TTL and a renewal first")
    try:
        forecast = Forecast(timing, items, takeover, standbys)
    except TimingError as error:
        return broken(str(error))
    told = f"{forecast.worst:.2f} seconds at worst, {forecast.messages:.0f} messages per second"
    if forecast.fits(within=within, messages=messages):
        return held(f"{items} items: {told}")
    late = [f"{forecast.worst - within:.2f} seconds too late"] if forecast.worst > within else []
    many = [f"{forecast.messages - messages:.0f} messages too many"] if forecast.messages > messages else []
    return broken(f"{items} items: {told}: {' and '.join(late + many)}")


def within_bound(delays: Iterable[float], bound: float, kills: int, slack: float = TAKEOVER_SLACK) -> Verdict:
    """Each of so many owners that were killed had its heir in time.

    Args:
        delays: how long each takeover took, in seconds: from the kill, or from the nominal expiry.
        bound: the longest that one may take, counted from the same moment.
        kills: how many owners were killed.
        slack: seconds that are added to the bound.
    """
    measured = list(delays)
    if kills < 1 or len(measured) < kills:
        return not_yet(f"{_n(len(measured), 'takeover')} of {kills} measured so far")
    late = sum(not delay <= bound + slack for delay in measured)
    if late:
        return broken(f"{late} of {_n(len(measured), 'takeover')} came later than the bound")
    if any(delay < -CLOCK_SLACK for delay in measured):
        return broken("a takeover came before the lease was over")
    return held(f"{_n(kills, 'kill')}, {_n(len(measured), 'takeover')}, none later than the bound")


def after_a_pause(events: Events, worker: str, *, keeps: bool) -> Verdict:
    """The owner stood still and went on: the last time, it kept its leases, or it lost them.

    Args:
        worker: who was frozen and thawed.
        keeps: what is expected.
    """
    seen = events_of(events)
    thawed = max((event.at for event in seen if event.kind == "thawed" and event.worker == worker), default=None)
    if thawed is None:
        return not_yet(f"{worker} was not frozen and thawed so far")
    own = [event for event in seen if event.worker == worker and event.source == "worker" and event.at > thawed]
    kept = {event.revision for event in own if event.kind == "renewed"}
    lost = {event.revision for event in own if event.kind == "lost"}
    # What it has claimed since says nothing about the pause.
    kept -= {event.revision for event in own if event.kind in ("claimed", "reclaimed")}
    if not kept and not lost:
        return not_yet(f"{worker} has neither renewed a lease nor lost one since it was thawed")
    if bool(lost) is keeps:
        return broken(f"{worker} {'lost' if lost else 'kept'} its lease after the pause")
    return held(
        f"{worker} stood still, went on, and {'renewed the lease that it had' if keeps else 'had lost its lease'}"
    )


def sooner(trials: Sequence[Trial], first: str, *others: str) -> Verdict:
    """Of the takeovers that were measured side by side, one comes sooner than each of the others, by the median."""
    measured = {trial.how: trial for trial in trials}
    missing = [how for how in (first, *others) if how not in measured]
    if missing or not others:
        return not_yet(f"{' and '.join(missing) or 'nothing'} was not measured beside {first} so far")
    quicker = [how for how in others if measured[how].median <= measured[first].median]
    if quicker:
        return broken(f"{' and '.join(quicker)} came no later than {first}, by the median")
    kills = sum(len(measured[how].delays) for how in (first, *others))
    return held(f"{_n(kills, 'kill')}: by the median {first} came sooner than {' and '.join(others)}")
