"""The queue in numbers, as the broker has them: where is every job now?

The broker keeps no list of states, but it counts: messages in the stream, those not delivered yet, those delivered and
not acked. What is in the stream and in neither of the two is stuck: its deliveries are used up and it stays for ever.
What has left the stream was acked, unless it is known to have left in another way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nats.js import JetStreamContext

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
        published: how many different jobs there were.
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

    Under so much traffic that no moment is quiet, `waiting` takes what is left over; the sum holds all the same.

    Args:
        dead_letters: of the queue that is meant; nothing is moved while we ask.
        terminated: how many jobs left the stream as terminated, which the broker doesn't count, without a copy.

    Raises:
        BrokerUnreachable, QueueError.
    """
    jetstream = dead_letters.queue.client.jetstream(timeout=2)
    async with dead_letters.one_at_a_time:
        with asking("count the jobs", QueueError):
            before = await jetstream.stream_info(subjects.JOBS)
            left_over = []
            for _ in range(TRIES):
                pending, unacked, redelivered = await _count(jetstream)
                letters = await jetstream.stream_info(subjects.DEAD)
                after = await jetstream.stream_info(subjects.JOBS)
                left_over.append(max(after.state.messages - pending - unacked, 0))
                if after.state == before.state:
                    left_over = left_over[-1:]
                    break
                before = after
    stuck = min(left_over)  # never an alarm because a job came between two calls
    in_stream, stored = after.state.messages, after.state.last_seq
    # Both streams count messages; a job that was redriven or escalated has been stored twice.
    written = letters.state.last_seq - dead_letters.withdrawn
    redriven = written - letters.state.messages
    # The count of jobs delivered more than once goes on for one that is stuck.
    retrying = min(max(redelivered - stuck, 0), unacked)
    return QueueSummary(
        waiting=in_stream - unacked - stuck,
        in_flight=unacked - retrying,
        retrying=retrying,
        stuck=stuck,
        dead=letters.state.messages,
        acked=stored - in_stream - written - dead_letters.escalated - terminated,
        terminated=terminated,
        published=stored - redriven - dead_letters.escalated,
    )


async def _count(jetstream: JetStreamContext) -> tuple[int, int, int]:
    """Not delivered, delivered and not acked, delivered more than once; of all priorities together."""
    infos = [await jetstream.consumer_info(subjects.JOBS, subjects.consumer(p)) for p in subjects.PRIORITIES]
    return (
        sum(info.num_pending or 0 for info in infos),
        sum(info.num_ack_pending or 0 for info in infos),
        sum(info.num_redelivered or 0 for info in infos),
    )
