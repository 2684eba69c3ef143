"""The text twins: in words, what the two pictures show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final

from meetupq.canvas import Told, delays, short, told
from meetupq.subjects import priority_of
from meetupq.timeline import Attempt, ItemLine, JobLine, Ownership, Timeline
from meetupq.timing import Timing

_STORIES: Final = 3
_AWAY: Final[dict[str, str]] = {"killed": "killed", "frozen": "frozen", "cut": "cut off"}
_BACK: Final[dict[str, str]] = {"killed": "started again", "frozen": "thawed", "cut": "restored"}
_ENDS: Final = {
    "acked": "acked it at {end:.1f} s",
    "naked": "handed it back at {end:.1f} s",
    "failed": "failed without a word at {end:.1f} s",
    "killed": "was killed after {took} s",
    "terminated": "terminated it at {end:.1f} s",
    "timed_out": "said nothing until the broker gave up at {end:.1f} s",
    "": "is at work since {start:.1f} s",
}


def describe_deliveries(events: Told, *, now: float | None = None) -> str:
    """What the picture of delivery attempts says, as one paragraph; `now` as there.

    Ordinary jobs are counted. What was killed, retried, dead, stuck or late is told, the newest first, at most three.
    """
    timeline, moment = told(events, now)
    of, count = timeline.by_story, len(timeline.jobs)
    text = [] if count else ["Nothing was published yet."]
    if smooth := len(of["smooth"]):
        who = next(iter(of["smooth"])) if count == 1 else f"{smooth} of {count} jobs"
        text.append(f"{who} {'was' if smooth == 1 else 'were'} done at the first attempt.")
    newest = islice(reversed(of["eventful"].values()), _STORIES)
    text += [_job_story(job, moment) + _hands_and_zombies(job, timeline) for job in newest]
    if len(of["eventful"]) > _STORIES:
        text.append(f"{len(of['eventful']) - _STORIES} more had trouble.")
    held = sorted(of["flying"].values(), key=lambda job: job.place)
    if held:
        parts = [_in_flight(job.name, job.attempts[0]) for job in sorted(held, key=lambda job: _waits(job.attempts[0]))]
        text.append(f"In flight at {moment:.1f} s: {_listed(parts)}.")
    if fresh := of["fresh"]:
        text.append(f"{_listed(list(fresh))} {'waits' if len(fresh) == 1 else 'wait'} for a worker.")
    return " ".join(text + _outages(timeline))


def _job_story(job: JobLine, now: float) -> str:
    """One job: how often and with whom it failed, and how it stands now."""
    failed = [attempt for attempt in job.attempts if attempt.how not in ("acked", "")]
    times = "once" if len(failed) == 1 else f"{len(failed)} times"
    story = f"{job.name} failed {times} ({', '.join(dict.fromkeys(attempt.worker for attempt in failed))})"
    first_ack = next((attempt for attempt in job.attempts if attempt.how == "acked"), None)
    if first_ack is not None and first_ack is not job.attempts[-1] and job.state == "done":
        return (
            f"{job.name} went out {len(job.attempts)} times; {first_ack.worker} acked attempt {first_ack.number} at "
            f"{first_ack.end or now:.1f} s, although the broker had given it to somebody else by then."
        )
    redriven = f", was redriven at {job.redriven[-1]:.1f} s" if job.redriven else ""
    redriven += (
        f", moved on to the consumer of {priority_of(job.subject)} at {job.escalated[-1]:.1f} s"
        if job.escalated
        else ""
    )
    last = job.attempts[-1] if job.attempts else None
    if job.dead is not None:
        rejected = ", was terminated" * bool(last and last.how == "terminated")
        return f"{story}{redriven}{rejected} and is in the DLQ since {job.dead:.1f} s."
    if job.state == "terminated":
        return f"{last.worker if last else 'Somebody'} terminated {job.name}: it is gone, and there is no copy."
    if job.state == "stuck":
        return f"{story} and is stuck: it has no delivery left, but stays in the queue."
    if last is None or job.state == "waiting":
        return f"{story}{redriven} and waits for a worker." if failed else f"{job.name} is {job.state}."
    if len(job.attempts) <= 2 and not redriven:
        first = job.attempts[0]
        story = f"{job.name} was delivered to {first.worker}, who {_ended(first, now)}."
        if last is not first:
            waited = first.closed is not None and first.end is not None and first.closed > first.end
            story += f" The broker {f'waited until {first.closed:.1f} s, then ' if waited else ''}gave it to "
            story += f"{last.worker}, who {_ended(last, now)}."
    elif last in failed:
        story += f", the last time at {last.end or now:.1f} s."
    else:
        story += f"{redriven}; then {last.worker} got it and {_ended(last, now)}."
    if last.open and last.end is not None and last.until > now:
        story += f" The broker waits until {last.until:.1f} s."
    return story + " It was done after the broker had given up on it." * job.late


def _waits(attempt: Attempt) -> bool:
    """Whether nobody has begun to work on it, for its worker has another one."""
    return attempt.in_hand and attempt.begun is None


def _in_flight(job: str, attempt: Attempt) -> str:
    return f"{job} in {attempt.worker}'s hands" if _waits(attempt) else f"{job} with {attempt.worker}"


def _hands_and_zombies(job: JobLine, timeline: Timeline) -> str:
    """Whether it waited, or waits, in the hands of a worker that had pulled several at once; who goes on in vain."""
    text = ""
    for attempt in job.attempts[-1:]:
        if attempt.begun is not None and attempt.begun > attempt.start + 0.05:
            text += f" It waited in {attempt.worker}'s hands until {attempt.begun:.1f} s."
        elif _waits(attempt):
            text += f" It {'waits' if attempt.end is None else 'was still'} in {attempt.worker}'s hands."
    busy = [attempt.worker for attempt in job.attempts if timeline.still_at_it(job, attempt)]
    return text + f" {_listed(busy)} {'is' if len(busy) == 1 else 'are'} still at it, not knowing." * bool(busy)


def _ended(attempt: Attempt, now: float) -> str:
    end = max(now if attempt.end is None else attempt.end, attempt.start)
    return _ENDS[attempt.how].format(start=attempt.start, end=end, took=short(end - attempt.start))


def post_mortem(events: Told, job: str, timing: Timing) -> str:
    """How a job died, since it was last put into the queue by hand: deliveries, and the time that it took, beside what
    the patience with each of them adds up to (a nak waits for nothing)."""
    line = told(events, None)[0].jobs.get(job)
    if line is None or not line.attempts:
        return f"{job} was not delivered to anybody so far."
    since = max(line.redriven, default=0.0)
    attempts = [attempt for attempt in line.attempts if attempt.start >= since]
    end = line.dead if line.dead is not None else line.exhausted
    if end is None or not attempts:
        return f"{job} is not dead: it is {line.state}."
    moved = max(line.escalated, default=0.0)
    waits = [
        timing.of(priority_of(line.subject) if attempt.start >= moved else "high").patience(attempt.number)
        for attempt in attempts
        if attempt.how not in ("naked", "terminated")
    ]
    tries = f"{len(attempts)} deliver{'y' if len(attempts) == 1 else 'ies'}"
    sums = f"{' + '.join(f'{wait:g}' for wait in waits)} = {sum(waits):g} s"
    adds_up = f"the patience adds up to {sums}" if waits else "none of them left anything to wait for (nak, term)"
    return f"{job}: {tries}, dead {end - attempts[0].start:.2f} s after the first; {adds_up}."


def describe_leases(events: Told, *, now: float | None = None) -> str:
    """What the picture of lease ownership says, as one paragraph; `now` as there."""
    timeline, moment = told(events, now)
    items = list(timeline.items.values())
    counted = Counter[str](item.state for item in items)
    words = {
        "held": "held", "suspect": "held by an owner that is gone", "free": "free", "done": "finished",
        "cancelled": "cancelled",
    }  # fmt: skip
    parts = [f"{counted[state]} {word}" for state, word in words.items() if counted[state]]
    text = [
        f"{len(items)} work item{'s' * (len(items) > 1)}: {_listed(parts)}."
        if items
        else "There are no work items yet."
    ]
    text += [_harm(item) for item in items if any(write.stale or write.refused for write in item.writes)][-2:]
    stories = [
        _item_story(item, own, after, timeline, moment)
        for item in items
        for own, after in zip(item.ownerships, [*item.ownerships[1:], None], strict=False)
        if own.end is not None or own.gone is not None or own.believed is not None
    ]
    stories += [
        (item.cancelled, f"{item.name} was cancelled at {item.cancelled:.1f} s.")
        for item in items
        if item.cancelled is not None and not item.ownerships
    ]
    text += [story for _, story in sorted(stories, reverse=True)[:_STORIES]]
    if len(stories) > _STORIES:
        text.append(f"{len(stories) - _STORIES} more ended before.")
    text += _harmless_absences(timeline)
    held = [
        f"{own.worker} holds {item.name} (r{own.token}, expires in {max(own.until - moment, 0):.1f} s)"
        for item in items
        if (own := item.owner) and item.state == "held"
    ]
    text += [f"{_listed(held)}."] if held else []
    return " ".join(text + _outages(timeline))


def _item_story(
    item: ItemLine, own: Ownership, after: Ownership | None, timeline: Timeline, now: float
) -> tuple[float, str]:
    """How an ownership ended, or is about to: when, and a few sentences."""
    story = f"{own.worker} held {item.name} (r{own.token})"
    by_ttl = own.how in ("", "expired", "superseded", "lost")
    if item.cancelled is not None and own is item.ownerships[-1]:
        story += f", which was cancelled at {item.cancelled:.1f} s"
    if own.gone is not None and by_ttl:
        story += f" and was {_AWAY[own.cause]} at {own.gone:.1f} s; the lease "
    elif own.end is None:
        story += "; the lease "
    if own.lost is not None and (own.end is None or own.lost < own.end):
        story = f"{story.removesuffix('; the lease ')}; {own.worker} gave up at {own.lost:.1f} s, while the lease "
    if own.end is None:
        stands = f"still stands until {own.until:.1f} s." if own.until > now else "is due to expire."
        return own.gone or own.lost or own.start, story + stands
    if not by_ttl:
        return own.end, f"{story} and {own.how} it at {own.end:.1f} s."
    story += f"{', but the lease ran out at' if not story.endswith('lease ') else 'stood until'} {own.end:.1f} s."
    if after is not None:
        far = f"at {after.progress_from.percent} %, " if after.progress_from else ""
        story += f" {after.worker} reclaimed it (r{after.token}) {far}{delays(own, after)}."
    return own.end if after is None else after.start, story + _belief(own, timeline, now)


def _belief(own: Ownership, timeline: Timeline, now: float) -> str:
    """Whether the owner went on to believe in its lease when that was over."""
    if own.end is None or own.believed_until(now) < own.end + 0.05:
        return ""
    worker = timeline.workers[own.worker]
    back = [a.end for a in worker.absences if a.end is not None and own.end < a.end <= own.believed_until(now)]
    thawed = f" was {_BACK[worker.absences[-1].cause]} at {back[-1]:.1f} s and" if back else ""
    if own.believed is None:
        why = ": it is frozen and can't know" * (worker.absence("frozen") is not None)
        return f" {own.worker}{thawed} still believes in it{why}."
    return f" {own.worker}{thawed} believed in it until {own.believed:.1f} s."


def _harm(item: ItemLine) -> str:
    """What those did to the ledgers who were not the owner any more."""
    stale = [write for write in item.writes if write.stale]
    refused = [write for write in item.writes if write.refused]
    who = _listed(
        [f"{worker} (r{token})" for worker, token in dict.fromkeys((w.worker, w.token) for w in stale or refused)]
    )
    if not stale:
        return f"The ledger with a fence refused {_times(len(refused), 'write')} of {item.name} by {who}."
    text = f"{_times(len(stale), 'stale write')} of {item.name} by {who} damaged the ledger without a fence"
    fence = "it" if len(refused) == len(stale) == 1 else "them" if len(refused) == len(stale) else str(len(refused))
    return text + (f"; the one with a fence refused {fence}." if refused else ".")


def _harmless_absences(timeline: Timeline) -> list[str]:
    """Who was frozen or cut off, and kept what it had, or had nothing."""
    blamed = {
        (own.worker, own.cause) for item in timeline.items.values() for own in item.ownerships if own.gone is not None
    }
    found = []
    for worker in timeline.workers.values():
        for absence in worker.absences[-1:]:
            if worker.role != "leases" or absence.cause == "killed" or (worker.name, absence.cause) in blamed:
                continue
            away, since = _AWAY[absence.cause], absence.start
            until = "" if absence.end is None else f"from {since:.1f} s to {absence.end:.1f} s and lost nothing by it"
            found.append(
                (since, f"{worker.name} {f'was {away} {until}' if until else f'is {away} since {since:.1f} s'}.")
            )
    return [text for _, text in sorted(found)[-2:]]


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count > 1)}"


def _outages(timeline: Timeline) -> list[str]:
    return [
        f"The broker was {outage.how} at {outage.start:.1f} s and "
        + ("is still down." if outage.end is None else f"came back at {outage.end:.1f} s.")
        for outage in timeline.outages[-2:]
    ]


def _listed(parts: Sequence[str]) -> str:
    """One, two and three; of more than four the first three."""
    if len(parts) > 4:
        parts = [*parts[:3], f"{len(parts) - 3} more"]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
