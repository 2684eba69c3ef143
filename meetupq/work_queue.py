"""The standard queue: jobs in a stream, workers that pull, an ack that removes the job, patience that runs out.

    queue = WorkQueue(client, timing)
    await queue.ensure()
    await queue.publish("resize-1")
    if delivery := await queue.pull(worker="ada"):
        ...                       # the work; every third of the patience: await delivery.in_progress()
        await delivery.ack()      # done: the broker forgets the job

What it does NOT promise: that a job is done only once. A worker that is too slow, or that dies after its work and
before its ack, makes the broker deliver the job again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    PubAck,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from meetupq import subjects
from meetupq.broker import asking
from meetupq.errors import JobRefused, QueueError
from meetupq.history import History
from meetupq.timing import Timing

STREAM_EXISTS = 10058  # server: JSStreamNameExistErr


class WorkQueue:
    """The stream `jobs` and one durable pull consumer per priority, shared by all workers of that priority.

    Args:
        client: an open nats-py connection. Each worker needs one of its own.
        timing: gives ack_wait or backoff, and max_deliver, for each priority: each consumer has its own patience.
        history: where what happens is recorded.
    """

    def __init__(self, client: Client, timing: Timing, history: History | None = None) -> None:
        self.client = client
        self.timing = timing
        self.history = history if history is not None else History()
        self._jetstream: JetStreamContext = client.jetstream(timeout=2)
        self._pulls: dict[str, JetStreamContext.PullSubscription] = {}

    async def ensure(self) -> None:
        """Create the stream and its consumers, or bring those that exist up to date. Can be run again at any time.

        Raises:
            QueueError: the broker refuses these settings, or the stream belongs to something else.
        """
        stream = StreamConfig(
            name=subjects.JOBS,
            subjects=[f"{subjects.JOBS}.*.*"],
            retention=RetentionPolicy.WORK_QUEUE,  # an ack removes the job
            discard=DiscardPolicy.NEW,  # a full queue refuses new jobs, it never drops old ones
            storage=StorageType.FILE,
        )
        with asking(f"set up the stream {subjects.JOBS}", QueueError):
            try:
                await self._jetstream.add_stream(stream)
            except nats.js.errors.BadRequestError as error:
                if error.err_code != STREAM_EXISTS:
                    raise
                await self._jetstream.update_stream(stream)
        for priority in subjects.PRIORITIES:
            timing = self.timing.of(priority)
            with asking(f"set up the consumer {subjects.consumer(priority)}", QueueError):
                await self._jetstream.add_consumer(
                    subjects.JOBS,
                    ConsumerConfig(
                        durable_name=subjects.consumer(priority),
                        filter_subject=f"{subjects.JOBS}.{priority}.*",
                        ack_policy=AckPolicy.EXPLICIT,
                        ack_wait=timing.effective_ack_wait,  # the server lets backoff replace it: say so here
                        backoff=list(timing.backoff) or None,
                        max_deliver=timing.max_deliver,
                        sample_freq="100",  # the broker reports every ack that it has heard
                    ),
                )

    async def publish(
        self,
        job: str,
        payload: bytes = b"",
        *,
        kind: str = "resize",
        priority: str = "high",
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> PubAck:
        """Publish a job and wait until the broker has stored it.

        Args:
            job: its name; also its Msg-Id, so that publishing it again within two minutes stores nothing.
            kind: the type of the job, the last part of its subject.
            message_id: a Msg-Id that differs from the name, for a job that is put back on purpose.

        Returns:
            The broker's receipt: `seq` in the stream, and `duplicate` if it had this Msg-Id already.

        Raises:
            JobRefused, BrokerUnreachable, NameInvalid.
        """
        identity = {subjects.JOB: subjects.checked(job, "the job"), subjects.MSG_ID: message_id or job}
        subject = subjects.job_subject(priority, kind)
        if priority not in subjects.PRIORITIES:
            choice = " or ".join(subjects.PRIORITIES)
            raise JobRefused(f"nobody consumes the priority {priority!r}, {job} would wait for ever: choose {choice}")
        sent = self.history.now()
        with asking(f"publish {job}", JobRefused):
            receipt = await self._jetstream.publish(subject, payload, headers={**(headers or {}), **identity})
        kind = "duplicate" if receipt.duplicate else "published"
        self.history.append(kind, job, at=sent, revision=receipt.seq, source="broker", detail=subject)
        return receipt

    async def pull(self, priority: str = "high", *, worker: str, timeout: float = 1.0) -> Delivery | None:
        """Ask for one job; None if none came within `timeout` seconds.

        Raises:
            BrokerUnreachable, QueueError: see `pull_batch`.
        """
        return next(iter(await self.pull_batch(1, priority, worker=worker, timeout=timeout)), None)

    async def pull_batch(
        self, batch: int, priority: str = "high", *, worker: str, timeout: float = 1.0
    ) -> list[Delivery]:
        """Ask for up to `batch` jobs: those that wait now, or else the next one; [] if none came within `timeout` s.

        The broker's patience begins for all of them now, also for those that wait here until the first one is done.

        Let it time out, and never cancel it on a connection that lives on: the request would stay at the broker and
        swallow the next job until the patience with it has run out.

        Raises:
            BrokerUnreachable: the connection is closed.
            QueueError: there is no such consumer.
        """
        try:
            if priority not in self._pulls:
                self._pulls[priority] = await self._jetstream.pull_subscribe_bind(
                    subjects.consumer(priority), subjects.JOBS
                )
            messages = await self._pulls[priority].fetch(batch, timeout=timeout)
        except nats.errors.ConnectionClosedError:
            with asking(f"pull a job for {worker}", QueueError):
                raise
        except nats.js.errors.ServiceUnavailableError as error:
            # Not "no job": nobody would ever answer, and a worker that asks at once again would spin.
            consumer = subjects.consumer(priority)
            raise QueueError(f"can't pull a job for {worker}: no consumer {consumer}; run ensure() first") from error
        except (TimeoutError, nats.js.errors.APIError):
            # No job; or a status such as 409 "leadership change", after which one simply asks again.
            return []
        return [Delivery(message, self, worker) for message in messages]


class Delivery:
    """One attempt at one job, in the hands of one worker.

    Attributes:
        job: its name.
        attempt: which delivery of this job it is, from 1.
        sequence, stored: of the job in its stream, and when it got there; the same in every attempt.
        subject, payload, headers: as published.
        until: when the broker's patience ends, in seconds of the history's clock; `in_progress` moves it.
    """

    def __init__(self, message: Msg, queue: WorkQueue, worker: str) -> None:
        self._message = message
        self._queue = queue
        metadata = message.metadata
        self.headers = subjects.plain(message.headers)
        self.job = self.headers.get(subjects.JOB) or f"job-{metadata.sequence.stream}"
        self.attempt: int = metadata.num_delivered
        self.sequence, self.stored = metadata.sequence.stream, metadata.timestamp
        self.subject: str = message.subject
        self.payload: bytes = message.data
        self.worker = worker
        self._timing = queue.timing.of(self.subject.split(".")[1])
        self.until = queue.history.now() + self._timing.patience(self.attempt)
        self._record("delivered", until=self.until)

    def __repr__(self) -> str:
        return f"<Delivery: {self.job}, attempt {self.attempt}, to {self.worker}>"

    async def ack(self) -> None:
        """Done: the broker removes the job. Waits for its answer, which proves that it heard, and nothing more: an
        ack of an attempt that was given up long ago is accepted too.

        Raises:
            BrokerUnreachable: no answer; the job may come again.
        """
        with asking(f"ack {self.job}", QueueError):
            await self._message.ack_sync(timeout=2)
        self._record("acked")

    async def nak(self, after: float = 0.0) -> None:
        """Failed: please deliver it again, `after` seconds from now. Without `after` that means AT ONCE: a plain nak
        does not use the backoff.

        Raises:
            QueueError: `after` on a queue with backoff: the broker would add the two (server: consumer.go, processNak).
        """
        if after and self._timing.backoff:
            told = f"nak(after={after:g}) of {self.job}: with the backoff {self._timing.backoff} s the broker would"
            extra = self._timing.patience(self.attempt) - self._timing.patience(1)
            raise QueueError(f"{told} wait {after:g} + {extra:g} s at attempt {self.attempt}: use one of the two")
        with asking(f"nak {self.job}", QueueError):
            await self._message.nak(delay=after or None)
        self._record("naked", detail=f"again in {after:g} s" if after else "again at once")

    async def in_progress(self) -> None:
        """Still at it: the whole patience begins again. The answer says that the broker heard, and not that the job is
        still yours. (nats-py's own in_progress() waits for none: a worker killed at once may not have been heard.)

        Raises:
            BrokerUnreachable: no answer; the patience may be over sooner.
        """
        sent = self._queue.history.now()
        with asking(f"report progress of {self.job}", QueueError):
            await self._queue.client.request(self._message.reply, b"+WPI", timeout=2)
        self.until = sent + self._timing.patience(self.attempt)
        self._record("progressed", until=self.until)

    async def term(self, reason: str) -> None:
        """Hopeless: never deliver it again. For storage that is an ack: the job, payload and all, LEAVES the stream.

        As final as an ack, so it waits for the answer as well. (nats-py's own term() does not, and takes no reason.)
        """
        with asking(f"terminate {self.job}", QueueError):
            await self._queue.client.request(self._message.reply, f"+TERM {reason}".encode(errors="replace"), timeout=2)
        self._record("terminated", detail=reason)

    def begin(self) -> None:
        """Say that the work begins only now: the job has waited here, pulled together with others."""
        self._record("begun")

    def give_up(self, reason: str) -> None:
        """Fail in silence, as a crashed handler does: nothing is sent, the broker must find out by its patience."""
        self._record("failed", detail=reason)

    def _record(self, kind: str, **facts: Any) -> None:
        facts |= {"attempt": self.attempt, "revision": self.sequence, "source": "worker"}
        self._queue.history.append(kind, self.job, self.worker, **facts)
