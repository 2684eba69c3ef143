"""The dead letter queue that NATS leaves to you: a keeper that finds dead jobs, keeps them whole, and puts them back.

When a job has used up its deliveries the broker does two things: it stops delivering, and it sends one advisory, a
plain message that is gone if nobody listens. The job stays in its stream. So the keeper works in two ways:

- it listens to the advisory, which is fast;
- it sweeps, which is certain. An advisory is only sent while some worker's pull request waits; with all workers dead
  the broker says nothing. The sweep therefore sends a pull request that can't be served (at most 1 byte): the broker
  looks at its queue, notices the exhausted jobs, and counts no delivery. Then it reads the consumer's state: whatever
  is still in the stream at or below the ack floor will never be delivered again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, NoReturn

import nats.errors
import nats.js.errors
from nats.js.api import PubAck, RawStreamMsg, RetentionPolicy, StorageType, StreamConfig

from meetupq import subjects
from meetupq.broker import asking
from meetupq.buckets import delivery_of
from meetupq.errors import BrokerUnreachable, JobRefused, LetterUnknown, NameInvalid, QueueError
from meetupq.tasks import together
from meetupq.work_queue import Delivery, WorkQueue

NO_MESSAGE = 10037  # server: JSNoMessageFoundErr
GRACE = 10.0
"""Seconds that a keeper leaves to another one, which has written a letter, to remove the original too."""


@dataclass(frozen=True)
class DeadLetter:
    """A job that died, whole.

    Attributes:
        number: its place in the stream of dead letters; what `redrive` takes.
        job, subject, payload, headers: as published.
        reason: why it is here.
        deliveries: how many times it was tried.
        last_worker: who had it last; "" if unknown.
        at: when it was put here, by the broker's clock.
        sequence: of the job in the queue, where it died.
    """

    number: int
    job: str
    subject: str
    payload: bytes
    headers: dict[str, str]
    reason: str
    deliveries: int
    last_worker: str
    at: datetime | None
    sequence: int = 0

    @property
    def kind(self) -> str:
        """The type of the job: the last part of its subject."""
        return self.subject.rpartition(".")[2]

    def matches(self, *, kind: str = "*", job: str = "*", worker: str = "*") -> bool:
        """Whether type, name and last worker fit these patterns, in which `*` stands for anything.

        Raises:
            NameInvalid: a pattern that is no text.
        """
        _checked_patterns(kind=kind, job=job, worker=worker)
        told = (self.kind, kind), (self.job, job), (self.last_worker, worker)
        return all(fnmatchcase(value, pattern) for value, pattern in told)


class DeadLetters:
    """The stream of dead letters and its keeper, for one work queue.

    Args:
        queue: whose dead jobs are kept; its connection is used too.
        escalate: from which priority to which other one a dead job moves on, instead of becoming a letter, so as to be
            tried again by a consumer with more patience: {"high": "low"}.

    Attributes:
        one_round: held while the keeper sweeps by itself; who changes its mind holds this and the next, and so can be
            sure that nothing goes on which began under the old rule.
        one_at_a_time: held while a job is moved, so that whoever holds it sees each job in one place only.
        escalated, withdrawn: how many copies were put into the queue for another priority; how many letters were taken
            back since their job was done after all.
    """

    def __init__(self, queue: WorkQueue, escalate: Mapping[str, str] | None = None) -> None:
        self.queue = queue
        self.history = queue.history
        self.escalate = dict(escalate or {})
        self.one_round = asyncio.Lock()
        self.one_at_a_time = asyncio.Lock()
        self.escalated = self.withdrawn = 0
        self._jetstream = queue.client.jetstream(timeout=2)
        self._heard: dict[int, int] = {}
        self._buried: set[int] = set()
        self._half_done: dict[int, dict[str, Any]] = {}  # the original still there: what to tell when it is gone
        self._first_seen: dict[int, float] = {}

    @property
    def under_way(self) -> list[int]:
        """The sequences of those whose copy is in the queue, and whose removal the broker has not confirmed so far."""
        return [sequence for sequence, moved in self._half_done.items() if moved["kind"] == "escalated"]

    async def ensure(self) -> None:
        """Create the stream of dead letters. Can be run again at any time.

        Raises:
            QueueError: a stream of this name with other settings exists.
        """
        with asking(f"set up the stream {subjects.DEAD}", QueueError):
            await self._jetstream.add_stream(
                StreamConfig(
                    name=subjects.DEAD,
                    subjects=["dead.>"],
                    retention=RetentionPolicy.LIMITS,
                    storage=StorageType.FILE,
                )
            )

    async def run(self, sweeps: Callable[[], bool] = lambda: True, buries: Callable[[], bool] = lambda: True) -> None:
        """Keep dead letters until cancelled. A broker that goes away is waited for.

        Args:
            sweeps: asked before every sweep; a lesson says no to show what the advisory alone is worth.
            buries: asked before anything is moved; a lesson says no to show a dead job as the broker leaves it. What is
                heard meanwhile is remembered.
        """
        await together(listen=self._listen(buries), sweep=self._sweep_again_and_again(sweeps, buries))

    async def _sweep_again_and_again(self, sweeps: Callable[[], bool], buries: Callable[[], bool]) -> NoReturn:
        while True:
            try:
                async with self.one_round:
                    if buries():
                        await (self.sweep() if sweeps() else self._bury_all(self._heard))
            except (BrokerUnreachable, QueueError):
                # The broker is away or restarting. What is missed now, the next sweep finds.
                pass
            await asyncio.sleep(self.queue.timing.sweep)

    async def _listen(self, buries: Callable[[], bool]) -> None:
        advisories = await self.queue.client.subscribe(f"{subjects.MAX_DELIVERIES}.{subjects.JOBS}.*")
        async for message in advisories.messages:
            if (delivery := delivery_of(message.data)) is None:
                continue
            sequence, deliveries = delivery
            self.history.append(
                "exhausted",
                await self._name_of(sequence),
                attempt=deliveries,
                revision=sequence,
                source="broker",
                detail="MAX_DELIVERIES advisory",
            )
            self._heard[sequence] = deliveries
            try:
                await self._bury_all(self._heard, buries)
            except (BrokerUnreachable, QueueError):
                continue  # it is tried again before the next sweep

    async def _bury_all(self, found: Mapping[int, int], may: Callable[[], bool] = lambda: True) -> int:
        kept, refusal = 0, None
        for sequence, deliveries in list(found.items()):
            try:
                kept += await self.bury(sequence, deliveries, may)
            except BrokerUnreachable:
                raise
            except Exception as error:  # noqa: BLE001 - anybody may have published it
                # Told when all the others are kept: one that can't be must not stand in their way.
                refusal = (
                    error if isinstance(error, QueueError) else QueueError(f"can't keep the job {sequence}: {error}")
                )
        if refusal:
            raise refusal
        return kept

    async def sweep(self) -> int:
        """Find every dead job without any worker's help, and keep it. Returns how many were kept by this call.

        Raises:
            BrokerUnreachable, QueueError.
        """
        found = dict.fromkeys(self._half_done, 0)
        for priority in subjects.PRIORITIES:
            await self._nudge(priority)
            found |= {sequence: 0 async for sequence in self._given_up(priority)}
        return await self._bury_all(found | self._heard)

    async def _nudge(self, priority: str) -> None:
        """A pull request that no job fits into: it makes the broker look for exhausted jobs and changes nothing else.

        The broker notices max_deliver only while it looks for something to deliver, and it looks only while a pull
        waits (server: consumer.go, loopAndGatherMsgs and getNextMsg). The request is refused with 409.
        """
        request = {"batch": 1, "max_bytes": 1, "expires": 100_000_000}
        with asking(f"nudge the consumer of priority {priority}", QueueError):
            inbox = self.queue.client.new_inbox()
            answer = await self.queue.client.subscribe(inbox, max_msgs=1)
            subject = f"{subjects.PULL}.{subjects.JOBS}.{subjects.consumer(priority)}"
            await self.queue.client.publish(subject, json.dumps(request).encode(), reply=inbox)
            try:
                await answer.next_msg(timeout=1)
            except nats.errors.TimeoutError:
                pass
            finally:
                await answer.unsubscribe()

    async def _given_up(self, priority: str) -> AsyncIterator[int]:
        """The sequences of the jobs of a priority that are in the stream and will never be delivered again.

        At or below the ack floor nothing is pending; in a work queue everything acked is gone; so what is left there
        is exhausted. With nothing pending at all, that holds up to the last sequence delivered.
        """
        with asking("find the dead jobs", QueueError):
            info = await self._jetstream.consumer_info(subjects.JOBS, subjects.consumer(priority))
            floor = info.ack_floor.stream_seq if info.num_ack_pending else info.delivered.stream_seq
            sequence = 0
            while sequence < floor:
                message = await self._read(
                    subjects.JOBS, seq=sequence + 1, subject=f"{subjects.JOBS}.{priority}.*", next=True
                )
                if message is None:
                    return
                sequence = message.seq
                if sequence <= floor:
                    yield sequence

    async def bury(self, sequence: int, deliveries: int = 0, may: Callable[[], bool] = lambda: True) -> bool:
        """Copy a dead job, whole, into the dead letters, then remove the original. Safe to repeat, and to interrupt.

        Where the queue escalates, the copy goes to the next priority instead.

        Args:
            sequence: of the job in its stream.
            deliveries: how many times it was delivered; 0: as often as its priority allows.
            may: asked at the last moment whether this is still wanted.

        Returns:
            Whether this call brought it there; False if it was there already, or if it was acked after all.
        """
        async with self.one_at_a_time:
            if sequence in self._buried:
                self._heard.pop(sequence, None)
                return False
            if not may():
                return False
            with asking(f"keep the dead job {sequence}", QueueError):
                message = await self._read(subjects.JOBS, seq=sequence)
                if message is not None:
                    return await self._move(message, deliveries)
                moved = self._half_done.get(sequence)  # our copy; the answer to our removal of the original was lost
                if not moved and not await self._letter_about(sequence):
                    # Somebody else may have escalated it, which leaves no trace: then only an ack that we know counts.
                    self._late(sequence, certain=not self.escalate)
                self._settled(sequence, moved)
                return moved is not None

    async def _move(self, message: RawStreamMsg, deliveries: int) -> bool:
        sequence, payload = message.seq, message.data or b""
        _, priority, kind = message.subject.split(".")
        headers = _for_a_copy(message.headers)
        job = headers.get(subjects.JOB) or f"job-{sequence}"
        deliveries = deliveries or self.queue.timing.of(priority).max_deliver
        slower = self.escalate.get(priority)
        started, sent = time.monotonic(), self.history.now()
        copy: PubAck | None
        moved: dict[str, Any] = {
            "job": job,
            "worker": self._last_worker(job),
            "attempt": deliveries,
            "source": "broker",
        }
        if slower:
            goal = f"{subjects.JOBS}.{slower}.{kind}"  # as it is: it is in a subject already
            headers |= {subjects.JOB: job, subjects.MSG_ID: _identity(message.time, sequence)}
            headers[subjects.ESCALATED] = f"{deliveries} as {priority}"
            copy = await self._publish(goal, payload, headers)
            # At `sent`: a fast worker can have it before this is written down.
            moved |= {"kind": "escalated", "at": sent, "revision": copy.seq, "detail": goal}
            copy = None if copy.duplicate else copy
        else:
            reason = f"not acked in {deliveries} deliver{'y' if deliveries == 1 else 'ies'}"
            reason += f", after {before}" if (before := headers.get(subjects.ESCALATED)) else ""
            letter = self._letter_headers(job, headers, message.time, sequence, deliveries, reason)
            copy = await self._write(subjects.dead_subject(sequence, message.subject), payload, letter)
            moved |= {"kind": "dead_lettered", "revision": sequence, "detail": reason}
            if not copy and (there := await self._letter_about(sequence)):
                moved |= {"worker": there.last_worker, "attempt": there.deliveries, "detail": there.reason}
        if copy:
            self._half_done[sequence] = moved
        elif sequence not in self._half_done:
            # Another keeper wrote the letter and is about to remove the original. Only if it seems to have died is
            # that up to us: else it could take our removal for a late ack, and withdraw the only copy.
            seen = self._first_seen.setdefault(sequence, started)
            if started - seen < GRACE:
                return False
        try:
            await self._jetstream.delete_msg(subjects.JOBS, sequence)
        except nats.js.errors.APIError:
            if await self._read(subjects.JOBS, seq=sequence) is not None:
                raise  # the broker could not do it now: the next round tries again
            # Gone in this very moment: acked by a worker that came late, so the job is done, not dead.
            if copy and time.monotonic() - started < GRACE / 2:
                with contextlib.suppress(nats.js.errors.APIError):  # a fast worker has done the copy too
                    await self._jetstream.delete_msg(copy.stream, copy.seq)
                self.escalated += bool(slower)
                self.withdrawn += not slower
                self._late(sequence)
                self._settled(sequence)
                return False
        self._settled(sequence, moved)
        return True

    async def keep(self, delivery: Delivery, reason: str) -> None:
        """Copy a job that its worker gives up for good, before it terminates it: after that the payload is gone.

        Safe to repeat: of a worker that dies in between, the next one's copy is refused, for there is one.
        """
        sequence = delivery.sequence
        facts = delivery.stored, sequence, delivery.attempt
        with asking(f"keep {delivery.job}", QueueError):
            if await self._read(subjects.JOBS, seq=sequence) is None:
                return  # done by somebody else, or put elsewhere, while this worker was at it
            headers = self._letter_headers(delivery.job, _for_a_copy(delivery.headers), *facts, reason)
            headers[subjects.LAST_WORKER] = delivery.worker
            await self._write(subjects.dead_subject(sequence, delivery.subject), delivery.payload, headers)
            letter = await self._letter_about(sequence)
        if letter:  # ours, or that of one who died before it was told; or it has been redriven already
            self._tell(
                {
                    "kind": "dead_lettered",
                    "job": delivery.job,
                    "worker": letter.last_worker,
                    "attempt": letter.deliveries,
                    "revision": sequence,
                    "source": "broker",
                    "detail": letter.reason,
                }
            )

    def _letter_headers(
        self, job: str, headers: dict[str, str], stored: datetime, sequence: int, deliveries: int, reason: str
    ) -> dict[str, str]:
        return {
            **headers,
            subjects.MSG_ID: _identity(stored, sequence),
            subjects.EXPECTED_LAST: "0",  # two keepers, or one that died half-way: only the first copy is stored
            subjects.JOB: job,
            subjects.REASON: " ".join(reason.split()),  # a header is one line
            subjects.DELIVERIES: str(deliveries),
            subjects.LAST_WORKER: self._last_worker(job),
            subjects.SEQUENCE: str(sequence),
        }

    async def _write(self, subject: str, payload: bytes, headers: dict[str, str]) -> PubAck | None:
        """Store a letter; None if there is one already."""
        try:
            receipt = await self._publish(subject, payload, headers)
            return None if receipt.duplicate else receipt
        except nats.js.errors.BadRequestError as error:
            if error.err_code not in subjects.WRONG_LAST_SEQUENCE:
                raise
            return None

    async def _publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> PubAck:
        if len(payload) + sum(len(f"{item}".encode()) for item in headers.items()) > self.queue.client.max_payload:
            raise nats.errors.MaxPayloadError  # nats-py doesn't count the headers, and the broker would hang up
        return await self._jetstream.publish(subject, payload, headers=headers)

    def _settled(self, sequence: int, moved: dict[str, Any] | None = None) -> None:
        self._buried.add(sequence)
        self._half_done.pop(sequence, None)
        self._first_seen.pop(sequence, None)
        self._heard.pop(sequence, None)
        if moved:
            self.escalated += moved["kind"] == "escalated"
            self._tell(moved)

    def _tell(self, moved: dict[str, Any]) -> None:
        """Write down where a job has gone, unless it is known: of several who tried, more than one may come to tell."""
        known = moved["kind"], moved["revision"]
        if not self.history.last(lambda e: (e.kind, e.revision) == known):
            self.history.append(**moved)

    async def _letter_about(self, sequence: int) -> DeadLetter | None:
        message = await self._read(subjects.DEAD, subject=subjects.dead_subject(sequence, ">"))
        return _letter(message) if message else None

    async def _read(self, stream: str, **which: Any) -> RawStreamMsg | None:
        """A message of a stream, None if it isn't there. A stream that isn't there is an error."""
        try:
            return await self._jetstream.get_msg(stream, **which)
        except nats.js.errors.NotFoundError as error:
            if error.err_code != NO_MESSAGE:
                raise
            return None

    def _late(self, sequence: int, certain: bool = True) -> None:
        """It has left the stream by itself: acked after all, unless it is known that somebody terminated it."""
        end = self.history.last(lambda e: e.revision == sequence and e.kind in ("acked", "terminated"))
        if end.kind == "acked" if end else certain:
            detail = "acked after the broker had given up on it"
            job = self._job_at(sequence)
            self.history.append("late_success", job, revision=sequence, source="inferred", detail=detail)

    def _job_at(self, sequence: int) -> str:
        kinds = ("published", "delivered", "escalated")
        event = self.history.last(lambda e: e.revision == sequence and e.kind in kinds)
        return event.job if event else f"job-{sequence}"

    async def _name_of(self, sequence: int) -> str:
        """The same, and for a job that this history has never heard of as it is written in the stream."""
        name, message = self._job_at(sequence), None
        if name == f"job-{sequence}":
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                message = await self._read(subjects.JOBS, seq=sequence)
        return (message and subjects.plain(message.headers).get(subjects.JOB)) or name

    def _last_worker(self, job: str) -> str:
        event = self.history.last("delivered", job)
        return event.worker if event else ""

    async def version(self) -> tuple[int, ...]:
        """Numbers that change whenever a letter comes or goes; cheaper than to read them all."""
        with asking("look at the dead letters", QueueError):
            state = (await self._jetstream.stream_info(subjects.DEAD)).state
        return state.messages, state.last_seq, state.first_seq

    async def letters(self, *, kind: str = "*", job: str = "*", worker: str = "*") -> list[DeadLetter]:
        """All dead letters, oldest first, or those that fit; see `DeadLetter.matches`.

        Raises:
            NameInvalid: a pattern that is no text.
        """
        which = {"kind": kind, "job": job, "worker": worker}
        _checked_patterns(**which)
        letters: list[DeadLetter] = []
        with asking("read the dead letters", QueueError):
            after = 1
            while True:
                message = await self._read(subjects.DEAD, seq=after, subject="dead.>", next=True)
                if message is None:
                    return letters
                after = message.seq + 1
                if (letter := _letter(message)) and letter.matches(**which):
                    letters.append(letter)

    async def redrive(self, number: int) -> str:
        """Put one dead letter back into the queue, as a new message with its attempts starting at 1 again.

        It gets a new Msg-Id: with the old one the broker would drop it in silence inside its duplicate window, two
        minutes by default. The Msg-Id depends on the letter only, so a redrive that was cut off can be repeated.

        Returns:
            The job's name.

        Raises:
            LetterUnknown: there is no letter of this number (any more).
        """
        async with self.one_at_a_time:  # a second click finds no letter any more
            with asking(f"read the dead letter {number}", QueueError):
                known = isinstance(number, int) and not isinstance(number, bool) and 0 < number < 2**63
                message = await self._read(subjects.DEAD, seq=number) if known else None
            letter = _letter(message) if message else None
            if letter is None:
                raise LetterUnknown(
                    f"there is no dead letter {number}: it was redriven or removed already; list letters() again"
                )
            sent = self.history.now()
            identity = f"{letter.job}.redrive-{number}-{letter.at:%Y%m%dT%H%M%S.%f}"
            headers = {**letter.headers, subjects.JOB: letter.job, subjects.MSG_ID: identity}
            with asking(f"redrive {letter.job}", JobRefused):
                receipt = await self._publish(letter.subject, letter.payload, headers)
            if not receipt.duplicate:
                put = {"at": sent, "revision": receipt.seq, "source": "broker", "detail": letter.subject}
                self._tell({"kind": "published", "job": letter.job, **put})
            told = {"job": letter.job, "at": sent, "revision": number, "detail": "put back into the queue"}
            self._tell({"kind": "redriven", **told})
            with asking(f"remove the dead letter {number}", QueueError):
                await self._jetstream.delete_msg(subjects.DEAD, number)
        return letter.job

    async def redrive_all(self, **which: str) -> list[str]:
        """Put every dead letter back, or those that fit; see `DeadLetter.matches`. Returns the jobs' names."""
        jobs, refusal = [], None
        for letter in await self.letters(**which):
            try:
                jobs.append(await self.redrive(letter.number))
            except LetterUnknown:
                pass  # somebody else was faster
            except QueueError as error:
                refusal = error  # told when all the others are back
        if refusal:
            raise refusal
        return jobs


def _checked_patterns(**which: str) -> None:
    for what, pattern in which.items():
        if not isinstance(pattern, str):
            raise NameInvalid(f"{what} is {pattern!r}, but letters are chosen by a text such as 'resize-*'")


def _for_a_copy(headers: Mapping[str, str] | None) -> dict[str, str]:
    """A job's headers without those for the broker, which were meant for the first time that it was published."""
    return {name: value for name, value in subjects.plain(headers).items() if not name.startswith("Nats-")}


def _identity(stored: datetime | None, sequence: int) -> str:
    """The Msg-Id of the copy of a dead job: the same whoever makes it, and however often."""
    return f"{subjects.JOBS}-{stored:%Y%m%dT%H%M%S.%f}-{sequence}"


def _letter(message: RawStreamMsg) -> DeadLetter | None:
    """The letter in a message; None if somebody else has put something else there."""
    subject = message.subject.split(".")
    if len(subject) != 5 or subject[2] != subjects.JOBS:
        return None
    headers = subjects.plain(message.headers)
    kept = {name: value for name, value in headers.items() if not name.startswith(("Meetupq-", "Nats-"))}
    deliveries = headers.get(subjects.DELIVERIES, "0")
    return DeadLetter(
        number=message.seq,
        job=headers.get(subjects.JOB, "") or f"letter-{message.seq}",
        subject=".".join(subject[2:]),
        payload=message.data or b"",
        headers=kept,
        reason=headers.get(subjects.REASON, ""),
        deliveries=int(deliveries) if deliveries.isdigit() else 0,
        last_worker=headers.get(subjects.LAST_WORKER, ""),
        at=message.time,
        sequence=int(subject[1]) if subject[1].isdigit() else 0,
    )
