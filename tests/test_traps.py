"""What every blog gets wrong: each trap shown raw on the installed broker, and in a line what an older one would do.

Two more are in test_workers_and_crew.py, where there are workers to show them with: a patience shorter than the work
makes duplicates although nobody died, and heartbeats mend that (the same on all servers).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
import pytest
from conftest import Connect, jobs_in_stream, measured
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, ConsumerInfo
from nats.js.errors import APIError, BadRequestError

from meetupq.errors import LeaseLost, TimingError
from meetupq.history import History
from meetupq.leases import Leases
from meetupq.tasks import drop
from meetupq.timing import Timing
from meetupq.work_queue import Delivery, WorkQueue

TICK = 0.02
"""What two clocks, and the broker's own timer, may differ by."""
SHORT = Timing.preset("ci").but(ack_wait=0.2, heartbeat=0.1, max_deliver=2)
MakeQueue = Callable[..., Awaitable[WorkQueue]]


@pytest.fixture
def make(connect: Connect) -> MakeQueue:
    """A queue that is set up: `await make(max_deliver=1)`; with a short patience and two deliveries by default."""

    async def make(**changes: Any) -> WorkQueue:
        queue = WorkQueue(await connect(), SHORT.but(**changes), History())
        await queue.ensure()
        return queue

    return make


async def pulled(queue: WorkQueue, worker: str = "ada", *, within: float = 5.0) -> Delivery:
    delivery = await queue.pull(worker=worker, timeout=within)
    assert delivery is not None
    return delivery


async def consumer(client: Client) -> ConsumerInfo:
    return await client.jetstream().consumer_info("jobs", "worker_high")


class Advisories:
    """What the broker says about its consumers: `await advisories.next("MAX_DELIVERIES")`."""

    def __init__(self, queue: WorkQueue) -> None:
        self.client = queue.client

    async def __aenter__(self) -> Advisories:
        self.subscription = await self.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.*.jobs.*")
        await self.client.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.subscription.unsubscribe()

    async def next(self, kind: str, within: float = 5.0) -> dict[str, Any]:
        while True:
            message = await self.subscription.next_msg(timeout=within)
            if message.subject.split(".")[4] == kind:
                return dict(json.loads(message.data))

    async def silence(self, seconds: float) -> None:
        with pytest.raises(nats.errors.TimeoutError):
            print(await self.subscription.next_msg(timeout=seconds))


async def used_up(queue: WorkQueue, job: str = "resize-1") -> int:
    """Publish a job and let its last patience end, while nobody asks for work; its sequence."""
    sequence = (await queue.publish(job, b"precious")).seq
    for attempt in range(1, queue.timing.max_deliver + 1):
        delivery = await pulled(queue)
        assert delivery.attempt == attempt
        if attempt < queue.timing.max_deliver:
            await delivery.nak()
    await asyncio.sleep(queue.timing.patience(attempt) + 0.1)  # silence is the subject: no event tells of its end
    return sequence


# --- patience --------------------------------------------------------------------------------------


async def test_a_second_consumer_of_the_same_subject_is_refused(make: MakeQueue) -> None:
    """In a work queue each job has one consumer, which workers share; disjoint subjects, as priorities, are allowed.

    The same on all servers.
    """
    jetstream = (await make()).client.jetstream()
    for subject in ("jobs.high.*", "jobs.high.resize", ">"):
        with pytest.raises(BadRequestError) as caught:
            await jetstream.add_consumer("jobs", ConsumerConfig(durable_name="mine", filter_subject=subject))
        assert caught.value.err_code in (10099, 10100)
    await jetstream.add_consumer("jobs", ConsumerConfig(durable_name="mine", filter_subject="jobs.medium.*"))


async def test_backoff_replaces_ack_wait_without_a_word(make: MakeQueue) -> None:
    """The same on all servers that have a backoff."""
    jetstream = (await make()).client.jetstream()
    asked = ConsumerConfig(
        durable_name="mine", filter_subject="jobs.medium.*", ack_wait=30, backoff=[1, 2], max_deliver=3
    )
    assert (await jetstream.add_consumer("jobs", asked)).config.ack_wait == 1


async def test_more_backoff_entries_than_deliveries_are_refused(make: MakeQueue) -> None:
    """By our Timing first, with both numbers. Older servers compared differently."""
    jetstream = (await make()).client.jetstream()
    asked = ConsumerConfig(durable_name="mine", filter_subject="jobs.medium.*", backoff=[1, 2, 3], max_deliver=2)
    with pytest.raises(APIError) as caught:
        await jetstream.add_consumer("jobs", asked)
    assert caught.value.err_code == 10116
    with pytest.raises(TimingError, match="3 entries but max_deliver is 2"):
        Timing(backoff=(1, 2, 3), max_deliver=2, heartbeat=0.5)


async def test_a_plain_nak_ignores_the_backoff(make: MakeQueue) -> None:
    """Which burns all attempts within milliseconds; the same on all servers."""
    queue = await make(backoff=(0.5, 0.8, 1.0), max_deliver=3)
    await queue.publish("resize-1")
    with measured() as seconds:
        for attempt in (1, 2, 3):
            delivery = await pulled(queue)
            assert delivery.attempt == attempt
            await delivery.nak()
    assert seconds() < 0.5
    assert [event.detail for event in queue.history.where("naked")] == ["again at once"] * 3


async def test_a_nak_with_a_delay_waits_for_what_the_backoff_has_grown_by_too(make: MakeQueue) -> None:
    """delay + backoff[i] - backoff[0]; the same since 2.7.1, which brought the delay."""
    queue = await make(backoff=(0.2, 0.6), max_deliver=3)
    await queue.publish("resize-1")
    delivery = await pulled(queue)
    for attempt, waits in ((1, 0.3), (2, 0.3 + 0.6 - 0.2)):
        assert delivery.attempt == attempt
        with measured() as seconds:
            await delivery._message.nak(delay=0.3)  # our own nak() refuses that
            delivery = await pulled(queue)
        assert waits - TICK <= seconds() < waits + 0.3


async def test_progress_of_a_later_attempt_begins_that_attempts_own_patience(make: MakeQueue) -> None:
    """Not the ack_wait that the consumer's settings show."""
    queue = await make(backoff=(0.2, 0.5), max_deliver=3)
    await queue.publish("resize-1")
    await (await pulled(queue)).nak()
    delivery = await pulled(queue)
    assert await queue.pull(worker="bo", timeout=0.2) is None
    await delivery.in_progress()
    again = await pulled(queue, "bo")
    assert again.attempt == 3
    moment = queue.history.where("delivered")[-1].at
    assert delivery.until - TICK <= moment < delivery.until + 0.3
    assert (await consumer(queue.client)).config.ack_wait == 0.2


async def test_prefetched_jobs_grow_old_in_the_buffer(make: MakeQueue, connect: Connect) -> None:
    """Patience begins for all of them when they are pulled, so that the last one goes to somebody else as well."""
    queue = await make()
    other = WorkQueue(await connect("bo"), queue.timing, queue.history)
    for number in range(3):
        await queue.publish(f"resize-{number}")
    batch = await queue.pull_batch(3, worker="ada")
    for delivery in batch[:2]:
        await delivery.ack()
    taken = await pulled(other, "bo")
    assert (taken.job, taken.attempt) == ("resize-2", 2)
    await batch[2].ack()
    await taken.ack()
    assert [event.worker for event in queue.history.where("acked", "resize-2")] == ["ada", "bo"]


async def test_a_cancelled_fetch_leaves_a_request_behind_that_swallows_the_next_job(
    make: MakeQueue, connect: Connect
) -> None:
    """The broker hands the job to a request that nobody waits for any more; it comes back when its patience is over."""
    queue = await make()
    other = WorkQueue(await connect("bo"), queue.timing, queue.history)
    pulling = asyncio.ensure_future(queue.pull(worker="ada", timeout=5))
    async with asyncio.timeout(5):
        while not (await consumer(queue.client)).num_waiting:
            await asyncio.sleep(0.005)
    await drop(pulling)
    assert (await consumer(queue.client)).num_waiting == 1
    await queue.publish("resize-1")
    with measured() as seconds:
        assert (await pulled(other, "bo")).attempt == 2
    assert seconds() > queue.timing.patience(1) - TICK


# --- death -----------------------------------------------------------------------------------------


async def test_while_nobody_pulls_nobody_hears_of_the_dead(make: MakeQueue) -> None:
    """The moment a pull arrives, the advisory comes. The same on 2.11.0, 2.12.4, 2.14.0 and 2.15.1."""
    queue = await make()
    async with Advisories(queue) as advisories:
        sequence = await used_up(queue)
        await advisories.next("MSG_NAKED")
        await advisories.silence(0.3)
        pulling = asyncio.ensure_future(queue.pull(worker="ada", timeout=0.3))
        assert (await advisories.next("MAX_DELIVERIES"))["stream_seq"] == sequence
        assert not pulling.done()
        assert await pulling is None


async def test_with_a_single_delivery_the_advisory_needs_no_pull(make: MakeQueue) -> None:
    """Since 2.11; before, it needed one as well."""
    queue = await make(max_deliver=1)
    async with Advisories(queue) as advisories:
        sequence = await used_up(queue)
        assert (await advisories.next("MAX_DELIVERIES"))["stream_seq"] == sequence


async def test_an_exhausted_job_counts_as_in_flight_until_a_pull_makes_the_broker_look(make: MakeQueue) -> None:
    """And it stays in the stream, by design; 2.12.3 and 2.12.4 lost it on replicated streams."""
    queue = await make()
    sequence = await used_up(queue)
    assert (await consumer(queue.client)).num_ack_pending == 1
    assert await queue.pull(worker="ada", timeout=0.1) is None
    assert (await consumer(queue.client)).num_ack_pending == 0
    assert (await queue.client.jetstream().get_msg("jobs", seq=sequence)).data == b"precious"


async def test_raising_max_deliver_revives_nobody_and_a_new_consumer_everybody(make: MakeQueue) -> None:
    queue = await make()
    await used_up(queue)
    assert await queue.pull(worker="ada", timeout=0.1) is None
    patient = WorkQueue(queue.client, queue.timing.but(max_deliver=9), queue.history)
    await patient.ensure()
    assert (await consumer(queue.client)).config.max_deliver == 9
    assert await patient.pull(worker="ada", timeout=0.3) is None
    await queue.client.jetstream().delete_consumer("jobs", "worker_high")
    await patient.ensure()
    again = WorkQueue(queue.client, patient.timing, queue.history)
    assert (await pulled(again)).attempt == 1


async def test_the_zombies_ack_wins(make: MakeQueue) -> None:
    """An ack names the job by its sequence, so it counts although somebody else has the job; the same on all servers.

    The second worker's ack is fine too.
    """
    queue = await make()
    await queue.publish("resize-1")
    first, second = await pulled(queue, "ada"), await pulled(queue, "bo")
    await first.ack()
    assert await jobs_in_stream(queue.client) == 0
    await second.ack()
    assert [event.worker for event in queue.history.where("acked")] == ["ada", "bo"]


async def test_the_zombies_ack_wins_even_after_the_broker_has_given_up(make: MakeQueue) -> None:
    """Who buries at the advisory without a look buries the living. The same on all servers (nats-server issue 5113)."""
    queue = await make()
    await queue.publish("resize-1")
    await (await pulled(queue)).nak()
    async with Advisories(queue) as advisories:
        zombie = await pulled(queue)
        assert await queue.pull(worker="bo", timeout=queue.timing.patience(2) + 0.2) is None
        await advisories.next("MAX_DELIVERIES")
    assert await jobs_in_stream(queue.client) == 1
    await zombie.ack()
    assert await jobs_in_stream(queue.client) == 0


async def test_with_its_old_message_id_a_job_vanishes_even_when_the_first_one_is_done(make: MakeQueue) -> None:
    """So a dead job that is put back needs a new one, for two minutes; the same on all servers."""
    queue = await make()
    await queue.publish("resize-1")
    await (await pulled(queue)).ack()
    assert (await queue.publish("resize-1")).duplicate
    assert await jobs_in_stream(queue.client) == 0
    assert [event.kind for event in queue.history if event.job == "resize-1"][-1] == "duplicate"
    assert not (await queue.publish("resize-1", message_id="resize-1.again")).duplicate


async def test_the_broker_remembers_message_ids_for_two_minutes(make: MakeQueue) -> None:
    """Unless the stream says otherwise; the same on all servers."""
    queue = await make()
    config = (await queue.client.jetstream().stream_info("jobs")).config
    assert config.duplicate_window == 2 * 60


async def test_term_removes_the_payload_at_once(make: MakeQueue) -> None:
    """To storage it is an ack: copy first. The advisory has the reason since 2.10.4."""
    queue = await make()
    sequence = (await queue.publish("resize-1", b"precious")).seq
    async with Advisories(queue) as advisories:
        await (await pulled(queue)).term("no such image")
        assert await jobs_in_stream(queue.client) == 0
        advisory = await advisories.next("MSG_TERMINATED")
    assert (advisory["stream_seq"], advisory["deliveries"], advisory["reason"]) == (sequence, 1, "no such image")


async def test_deleting_a_job_in_flight_looks_like_a_term_and_deleting_an_exhausted_one_like_nothing(
    make: MakeQueue,
) -> None:
    queue = await make()
    jetstream = queue.client.jetstream()
    async with Advisories(queue) as advisories:
        in_flight = (await queue.publish("in-flight")).seq
        await pulled(queue)
        await jetstream.delete_msg("jobs", in_flight)
        advisory = await advisories.next("MSG_TERMINATED")
        assert advisory["reason"] == "Unacknowledged message was deleted"
        exhausted = await used_up(queue, "exhausted")
        assert await queue.pull(worker="ada", timeout=0.1) is None
        await advisories.next("MAX_DELIVERIES")
        await jetstream.delete_msg("jobs", exhausted)
        await advisories.silence(0.2)


# --- the lease that the queue gives for free -------------------------------------------------------


async def test_in_progress_keeps_a_job_but_never_tells_its_worker_that_it_was_lost(make: MakeQueue) -> None:
    """Who was given up, and beats again, is not refused: it even restarts the patience with the next worker's attempt.

    The same on all servers: any delivery's reply subject names the job by its sequence.
    """
    queue = await make(ack_wait=0.4, max_deliver=3)
    await queue.publish("resize-1")
    ada = await pulled(queue, "ada")

    async def beat() -> None:
        while True:
            await ada.in_progress()
            await asyncio.sleep(0.05)

    beating = asyncio.ensure_future(beat())
    assert await queue.pull(worker="bo", timeout=2 * ada.until - 2 * queue.history.now()) is None  # it is kept
    await drop(beating)
    bo = await pulled(queue, "bo")
    assert bo.attempt == 2
    beating = asyncio.ensure_future(beat())  # ada has lost the job, and doesn't hear of it
    while queue.history.now() < bo.until + 2 * queue.timing.patience(2):
        assert await queue.pull(worker="cy", timeout=0.2) is None  # bo is silent, and yet its patience doesn't end
    assert not beating.done()
    await drop(beating)
    assert (await pulled(queue, "cy")).attempt == 3


async def test_a_lease_that_was_lost_refuses_its_renewal(connect: Connect) -> None:
    """What a key can do and a message can't: the owner is told. The same on all servers: it is compare-and-set."""
    leases = Leases(await connect(), Timing(lease_ttl=1, renew=0.3, margin=0.2))
    await leases.ensure()
    ada = await leases.claim("import-eu", "ada")
    assert ada is not None
    async with asyncio.timeout(10):
        while not (bo := await leases.claim("import-eu", "bo")):
            await asyncio.sleep(0.05)
    with pytest.raises(LeaseLost, match="ada lost import-eu: somebody else holds it now"):
        await ada.renew()
    await bo.renew()
