"""The queue in numbers, as the broker has them: where is every job now?

The broker keeps no list of states, but it counts: messages in the stream, those not delivered yet, those delivered and
not acked. What is in the stream and in neither of the two is stuck: its deliveries are used up and it stays for ever.
What has left the stream was acked, unless it is known to have left in another way.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import nats.js.errors
from nats.aio.client import Client

from meetupq import subjects
from meetupq.broker import asking
from meetupq.dead_letters import DeadLetters
from meetupq.errors import QueueError

TRIES: Final = 10


@dataclass(frozen=True)
class QueueSummary:
    """How many jobs are where; the parts add up to `published`.

    Attributes:
        waiting: never delivered so far.
        in_flight: delivered for the first time, not acked, and not yet given up. The broker takes a job whose last
            patience is over for one in flight until some worker asks for work: only then does it look.
        retrying: the same, at their second or a later attempt.
        stuck: used up all deliveries and still in the stream.
        dead: dead letters.
        acked: done; also what had left the stream before this lab was opened on its store.
        terminated: given up by a worker, without a copy.
        published: how many different jobs there were. (One that was escalated before this lab was opened on its store
            counts twice.)
    """

    waiting: int
    in_flight: int
    retrying: int
    stuck: int
    dead: int
    acked: int
    terminated: int
    published: int

    @property
    def in_stream(self) -> int:
        """How many messages the stream of jobs holds."""
        return self.waiting + self.in_flight + self.retrying + self.stuck

    def parts(self) -> dict[str, int]:
        """The parts by name, in the order of a job's life."""
        names = ("waiting", "in flight", "retrying", "stuck", "dead", "terminated", "acked")
        return {name: getattr(self, name.replace(" ", "_")) for name in names}

    def __str__(self) -> str:
        told = " + ".join(f"{count} {name}" for name, count in self.parts().items() if count)
        return f"{self.published} published = {told or '0'}"

    __repr__ = __str__


async def summarise(dead_letters: DeadLetters, *, terminated: int = 0) -> QueueSummary:
    """Ask the broker, in some five calls, and again if something moved in between: so the numbers are of one moment.

    Args:
        dead_letters: of the queue that is meant; nothing is moved while we ask.
        terminated: how many jobs left the stream as terminated, which the broker doesn't count, without a copy.

    Raises:
        BrokerUnreachable, QueueError.
    """
    client = dead_letters.queue.client
    jetstream = client.jetstream(timeout=2)
    left_over: dict[str, list[int]] = {priority: [] for priority in subjects.PRIORITIES}
    async with dead_letters.one_at_a_time:
        with asking("count the jobs", QueueError):
            jobs = await _state(client, subjects.JOBS, deleted_details=True, subjects_filter=">")
            for _ in range(TRIES):
                before = jobs
                letters = await _state(client, subjects.DEAD, subjects_filter=f"dead.*.{subjects.JOBS}.*.*")
                infos = {p: await jetstream.consumer_info(subjects.JOBS, subjects.consumer(p)) for p in left_over}
                jobs = await _state(client, subjects.JOBS, deleted_details=True, subjects_filter=">")
                for priority, info in infos.items():
                    known = (info.num_pending or 0) + (info.num_ack_pending or 0)
                    there = min(_messages(before, priority), _messages(jobs, priority))
                    left_over[priority].append(max(there - known, 0))
                if jobs == before:
                    left_over = {priority: looks[-1:] for priority, looks in left_over.items()}
                    break
        under_way = dead_letters.under_way
        escalated, withdrawn = dead_letters.escalated + len(under_way), dead_letters.withdrawn

    parts = dict.fromkeys(("stuck", "retrying", "in_flight", "waiting"), 0)
    for priority, info in infos.items():
        stuck = min(left_over[priority])  # never an alarm because a job came between two calls
        unacked = min(info.num_ack_pending or 0, _messages(jobs, priority) - stuck)
        # The count of jobs delivered more than once goes on for one that is stuck.
        again = min(max((info.num_redelivered or 0) - stuck, 0), unacked)
        parts["stuck"] += stuck
        parts["retrying"] += again
        parts["in_flight"] += unacked - again
    parts["waiting"] = jobs["messages"] - sum(parts.values())

    # A job that has its copy already and is still in the stream counts where the copy is.
    letter_subjects = letters.get("subjects") or {}
    copied = {*under_way, *(int(number) for s in letter_subjects if (number := s.split(".")[1]).isdigit())}
    deleted = set(jobs.get("deleted") or ())
    twice = sum(jobs["first_seq"] <= sequence <= jobs["last_seq"] and sequence not in deleted for sequence in copied)
    left = twice
    for part, count in parts.items():
        parts[part] -= min(count, left)
        left -= min(count, left)

    dead = sum(letter_subjects.values())
    # Both streams count messages, so each copy in this sum has an original among those that are gone, or still there.
    written = letters["last_seq"] - (letters["messages"] - dead) - withdrawn
    gone = jobs["last_seq"] - jobs["messages"]
    acked = max(gone + twice - written - escalated - terminated, 0)
    published = sum(parts.values()) + dead + acked + terminated
    return QueueSummary(**parts, dead=dead, acked=acked, terminated=terminated, published=published)


async def _state(client: Client, stream: str, **details: Any) -> dict[str, Any]:
    """A stream's state, with more in it than nats-py's `stream_info` asks for."""
    request = json.dumps(details).encode()
    answer = json.loads((await client.request(f"$JS.API.STREAM.INFO.{stream}", request, timeout=2)).data)
    if "error" in answer:
        raise nats.js.errors.APIError.from_error(answer["error"])
    state: dict[str, Any] = answer["state"]
    return state


def _messages(jobs: dict[str, Any], priority: str) -> int:
    """How many messages of a priority are in the stream."""
    counts = (jobs.get("subjects") or {}).items()
    return sum(count for subject, count in counts if subject.startswith(f"{subjects.JOBS}.{priority}."))
