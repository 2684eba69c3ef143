"""The standard queue, and what a real broker makes of it: acks, patience, naks, heartbeats, duplicates, refusals."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from conftest import Connect, eventually, jobs_in_stream, measured
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType
from nats.js.errors import NotFoundError

from meetupq.broker import Broker, asking, sever
from meetupq.errors import BrokerUnreachable, JobRefused, MeetupqError, NameInvalid, QueueError
from meetupq.history import History
from meetupq.timing import Timing
from meetupq.work_queue import Delivery, WorkQueue

TICK = 0.02
"""What two clocks, and the broker's own timer, may differ by."""


async def pulled(queue: WorkQueue, worker: str = "ada", *, within: float = 5.0) -> Delivery:
    delivery = await queue.pull(worker=worker, timeout=within)
    assert delivery is not None
    return delivery


# --- setting up ------------------------------------------------------------------------------------


async def test_the_stream_is_what_it_says(queue: WorkQueue) -> None:
    config = (await queue.client.jetstream().stream_info("jobs")).config
    assert config.retention == RetentionPolicy.WORK_QUEUE
    assert config.discard == DiscardPolicy.NEW
    assert config.storage == StorageType.FILE
    assert config.subjects == ["jobs.*.*"]


async def test_the_consumers_are_what_the_timing_says(queue: WorkQueue, timing: Timing) -> None:
    for priority in ("high", "low"):
        config = (await queue.client.jetstream().consumer_info("jobs", f"worker_{priority}")).config
        assert config.filter_subject == f"jobs.{priority}.*"
        assert config.backoff == list(timing.backoff)
        assert (config.ack_wait, config.max_deliver) == (timing.effective_ack_wait, timing.max_deliver)
        assert config.sample_freq == "100"


async def test_each_priority_may_have_its_own_patience(connect: Connect, timing: Timing) -> None:
    queue = WorkQueue(await connect(), timing.but(low=Timing(ack_wait=7, max_deliver=9)))
    await queue.ensure()
    high, low = [
        (await queue.client.jetstream().consumer_info("jobs", name)).config for name in ("worker_high", "worker_low")
    ]
    assert (high.backoff, high.max_deliver) == (list(timing.backoff), timing.max_deliver)
    assert (low.ack_wait, low.max_deliver) == (7, 9)
    assert not low.backoff
    await queue.publish("report-1", priority="low")
    delivery = await queue.pull("low", worker="ada")
    assert delivery
    assert 7 - TICK < delivery.until - queue.history.where("delivered")[-1].at <= 7


async def test_ensuring_twice_changes_nothing(queue: WorkQueue) -> None:
    await queue.publish("resize-1")
    before = await queue.client.jetstream().consumer_info("jobs", "worker_high")
    await queue.ensure()
    after = await queue.client.jetstream().consumer_info("jobs", "worker_high")
    assert (after.created, after.config) == (before.created, before.config)
    assert (await pulled(queue)).job == "resize-1"


async def test_ensuring_with_other_durations_changes_the_consumers(queue: WorkQueue, timing: Timing) -> None:
    await WorkQueue(queue.client, timing.but(ack_wait=2.5, max_deliver=7)).ensure()
    config = (await queue.client.jetstream().consumer_info("jobs", "worker_high")).config
    assert (config.ack_wait, config.max_deliver) == (2.5, 7)
    assert not config.backoff


async def test_a_stream_that_is_something_else_is_refused(connect: Connect, timing: Timing) -> None:
    client = await connect()
    await client.jetstream().add_stream(name="jobs", subjects=["other"])
    with pytest.raises(QueueError, match="can't set up the stream jobs"):
        await WorkQueue(client, timing).ensure()


# --- publishing ------------------------------------------------------------------------------------


async def test_a_job_is_stored_with_its_name_as_message_id(queue: WorkQueue, history: History) -> None:
    receipt = await queue.publish("resize-1", b"payload", kind="thumb", priority="low", headers={"Colour": "red"})
    stored = await queue.client.jetstream().get_msg("jobs", seq=receipt.seq)
    assert (stored.subject, stored.data) == ("jobs.low.thumb", b"payload")
    assert stored.headers == {"Nats-Msg-Id": "resize-1", "Meetupq-Job": "resize-1", "Colour": "red"}
    [published] = history.snapshot()
    assert (published.kind, published.job, published.revision) == ("published", "resize-1", receipt.seq)
    assert (published.source, published.detail) == ("broker", "jobs.low.thumb")


async def test_headers_can_not_forge_a_jobs_identity(queue: WorkQueue) -> None:
    await queue.publish("resize-1", headers={"Meetupq-Job": "other", "Nats-Msg-Id": "other"})
    assert (await pulled(queue)).job == "resize-1"


async def test_a_priority_that_nobody_consumes_is_refused(queue: WorkQueue) -> None:
    with pytest.raises(JobRefused, match=r"nobody consumes the priority 'medium'.*choose high or low"):
        await queue.publish("resize-1", priority="medium")
    assert await jobs_in_stream(queue.client) == 0


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a*", ">", "a\n", "é", "x" * 41, None, 7])
async def test_bad_names_are_refused_before_anything_is_sent(queue: WorkQueue, name: str) -> None:
    for call in (
        lambda: queue.publish(name),
        lambda: queue.publish("a", kind=name),
        lambda: queue.publish("a", priority=name),
    ):
        with pytest.raises(NameInvalid, match="may have letters, digits"):
            await call()
    assert await jobs_in_stream(queue.client) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [({"payload": b"x" * 2_000_000}, "maximum payload"), ({"headers": {"a\r\nb": "c"}}, "header")],
)
async def test_what_the_protocol_can_not_carry_is_refused(
    queue: WorkQueue, options: dict[str, object], says: str
) -> None:
    with pytest.raises(JobRefused, match=f"can't publish resize-1: .*{says}"):
        await queue.publish("resize-1", **options)  # type: ignore[arg-type]


async def test_a_full_queue_refuses_new_jobs_and_drops_no_old_one(queue: WorkQueue) -> None:
    jetstream = queue.client.jetstream()
    config = (await jetstream.stream_info("jobs")).config
    config.max_msgs = 1
    await jetstream.update_stream(config)
    await queue.publish("resize-1")
    with pytest.raises(JobRefused, match="maximum messages exceeded"):
        await queue.publish("resize-2")
    assert (await pulled(queue)).job == "resize-1"


# --- pulling and acking ----------------------------------------------------------------------------


async def test_a_pulled_job_carries_all_that_was_published(queue: WorkQueue, timing: Timing, history: History) -> None:
    receipt = await queue.publish("resize-1", b"payload", headers={"Colour": "red"})
    before = history.now()
    delivery = await pulled(queue)
    assert (delivery.job, delivery.attempt, delivery.sequence) == ("resize-1", 1, receipt.seq)
    assert (delivery.subject, delivery.payload) == ("jobs.high.resize", b"payload")
    assert delivery.headers["Colour"] == "red"
    [event] = history.where("delivered")
    assert (event.worker, event.attempt, event.revision, event.source) == ("ada", 1, receipt.seq, "worker")
    assert event.until == delivery.until
    assert before <= delivery.until - timing.patience(1) <= history.now()


async def test_no_job_means_none(queue: WorkQueue) -> None:
    assert await queue.pull(worker="ada", timeout=0.05) is None


async def test_a_job_goes_to_its_priority_only(queue: WorkQueue) -> None:
    await queue.publish("resize-1", priority="low")
    assert await queue.pull("high", worker="ada", timeout=0.05) is None
    delivery = await queue.pull("low", worker="ada")
    assert delivery
    assert delivery.job == "resize-1"


async def test_each_job_goes_to_one_of_the_workers(queue: WorkQueue, connect: Connect, history: History) -> None:
    others = [WorkQueue(await connect(name), queue.timing, history) for name in ("bo", "cy")]
    for number in range(6):
        await queue.publish(f"resize-{number}")
    for worker, its in zip(("ada", "bo", "cy"), (queue, *others), strict=True):
        for _ in range(2):
            await (await pulled(its, worker)).ack()
    assert sorted(event.job for event in history.where("acked")) == [f"resize-{number}" for number in range(6)]
    assert await jobs_in_stream(queue.client) == 0


async def test_an_ack_removes_the_job(queue: WorkQueue, history: History) -> None:
    await queue.publish("resize-1")
    delivery = await pulled(queue)
    assert await jobs_in_stream(queue.client) == 1
    await delivery.ack()
    assert await jobs_in_stream(queue.client) == 0
    [acked] = history.where("acked")
    assert (acked.job, acked.worker, acked.attempt, acked.source) == ("resize-1", "ada", 1, "worker")


async def test_an_ack_that_nobody_hears_is_not_recorded(broker: Broker, queue: WorkQueue, history: History) -> None:
    await queue.publish("resize-1")
    delivery = await pulled(queue)
    await broker.kill()
    await sever(queue.client)
    with pytest.raises(BrokerUnreachable, match="can't ack resize-1"):
        await delivery.ack()
    assert not history.where("acked")


async def test_a_silent_job_comes_again_after_each_patience_and_not_before(queue: WorkQueue, timing: Timing) -> None:
    """The gaps follow the backoff list."""
    await queue.publish("resize-1")
    moments = []
    for attempt in (1, 2, 3):
        assert (await pulled(queue)).attempt == attempt
        moments.append(asyncio.get_running_loop().time())
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    for attempt, gap in enumerate(gaps, start=1):
        assert timing.patience(attempt) - TICK <= gap < timing.patience(attempt) + 1
    assert await queue.pull(worker="ada", timeout=timing.patience(3) + 0.3) is None, "no fourth time"
    assert await jobs_in_stream(queue.client) == 1, "the broker keeps a dead job"


async def test_the_next_worker_does_not_get_it_before_the_patience_is_over(queue: WorkQueue, connect: Connect) -> None:
    await queue.publish("resize-1")
    first = await pulled(queue)
    second = await pulled(WorkQueue(await connect("bo"), queue.timing, queue.history), "bo")
    assert (second.job, second.attempt, second.sequence) == ("resize-1", 2, first.sequence)
    [one, two] = queue.history.where("delivered")
    assert two.at >= one.until - TICK


async def test_a_nak_with_a_delay_on_a_queue_with_backoff_is_refused(connect: Connect, timing: Timing) -> None:
    """What the broker would make of it is in test_traps.py. A plain nak is fine."""
    queue = WorkQueue(await connect(), timing.but(low=timing.but(ack_wait=5)))
    await queue.ensure()
    await queue.publish("resize-1")
    await (await pulled(queue)).nak()
    delivery = await pulled(queue)
    with pytest.raises(QueueError) as caught:
        await delivery.nak(after=0.4)
    assert str(caught.value) == (
        "nak(after=0.4) of resize-1: with the backoff (0.6, 0.8, 1.0) s the broker would wait 0.4 + 0.2 s "
        "at attempt 2: use one of the two"
    )
    assert len(queue.history.where("naked")) == 1
    await queue.publish("report-1", priority="low")
    without = await queue.pull("low", worker="ada")
    assert without
    await without.nak(after=0.4)


async def test_all_that_is_told_of_a_job_names_its_sequence(queue: WorkQueue, history: History) -> None:
    """A name may live twice, after a redrive: the sequence says which life is meant."""
    sequence = (await queue.publish("resize-1")).seq
    delivery = await pulled(queue)
    delivery.begin()
    await delivery.in_progress()
    await delivery.nak()
    delivery.give_up("lost")
    await (await pulled(queue)).term("half a \ud800 character")
    assert {event.revision for event in history} == {sequence}


async def test_a_batch_takes_what_waits_and_else_the_next_one(queue: WorkQueue) -> None:
    """It waits for no more than that: what is in hand already grows old."""
    for number in range(4):
        await queue.publish(f"resize-{number}")
    with measured() as seconds:
        batches = [await queue.pull_batch(3, worker="ada", timeout=5) for _ in range(2)]
    assert [[delivery.job for delivery in batch] for batch in batches] == [
        ["resize-0", "resize-1", "resize-2"],
        ["resize-3"],
    ]
    assert seconds() < 2
    pulling = asyncio.ensure_future(queue.pull_batch(3, worker="ada", timeout=5))
    await asyncio.sleep(0.05)
    await queue.publish("late")
    with measured() as seconds:
        assert [delivery.job for delivery in await pulling] == ["late"]
    assert seconds() < 2
    assert await queue.pull_batch(3, worker="ada", timeout=0.05) == []


async def test_a_nak_with_a_delay_waits_for_it(connect: Connect, timing: Timing, history: History) -> None:
    """Without a backoff: with one, the broker adds the two."""
    queue = WorkQueue(await connect(), timing.but(ack_wait=5.0), history)
    await queue.ensure()
    await queue.publish("resize-1")
    await (await pulled(queue)).nak(after=0.4)
    with measured() as seconds:
        assert (await pulled(queue)).attempt == 2
    assert 0.4 - TICK <= seconds() < 2
    assert history.where("naked")[0].detail == "again in 0.4 s"


async def test_progress_starts_the_patience_anew(queue: WorkQueue, timing: Timing, history: History) -> None:
    await queue.publish("resize-1")
    delivery = await pulled(queue)
    for _ in range(3):
        assert await queue.pull(worker="bo", timeout=timing.patience(1) * 0.6) is None
        await delivery.in_progress()
    assert [event.until for event in history.where("progressed")][-1] == delivery.until
    again = await pulled(queue, "bo")
    assert again.attempt == 2
    assert delivery.until - TICK <= history.where("delivered")[-1].at < delivery.until + 1


async def test_a_delivery_is_answered_once(queue: WorkQueue) -> None:
    await queue.publish("resize-1")
    delivery = await queue.pull(worker="ada")
    assert delivery
    await delivery.ack()
    for answer in (delivery.ack, delivery.nak):
        with pytest.raises(QueueError, match="resize-1: this delivery was answered already"):
            await answer()


async def test_giving_up_sends_nothing(queue: WorkQueue, history: History) -> None:
    await queue.publish("resize-1")
    (await pulled(queue)).give_up("the disk is full")
    info = await queue.client.jetstream().consumer_info("jobs", "worker_high")
    assert info.num_ack_pending == 1
    assert history.where("failed")[0].detail == "the disk is full"


async def test_a_job_that_somebody_else_published_has_a_name_too(queue: WorkQueue) -> None:
    receipt = await queue.client.jetstream().publish("jobs.high.other", b"raw")
    delivery = await pulled(queue)
    assert (delivery.job, delivery.headers) == (f"job-{receipt.seq}", {})


@pytest.mark.parametrize(("way", "attempts"), [("stop", {2}), ("kill", {1, 2})])
async def test_jobs_survive_the_end_of_the_broker(
    broker: Broker, queue: WorkQueue, way: str, attempts: set[int]
) -> None:
    """The count of attempts too, but not always: the server writes it a little later, so that a SIGKILL right after
    a delivery makes it forget that one."""
    await queue.publish("resize-1")
    assert (await pulled(queue)).attempt == 1
    await getattr(broker, way)()
    await broker.start()
    await eventually(lambda: queue.client.is_connected)
    delivery = await pulled(queue, within=10)
    assert delivery.job == "resize-1"
    assert delivery.attempt in attempts
    await delivery.ack()
    assert await jobs_in_stream(queue.client) == 0


# --- when it can't be done -------------------------------------------------------------------------


def calls(queue: WorkQueue) -> list[Callable[[], Awaitable[object]]]:
    return [queue.ensure, lambda: queue.publish("resize-1"), lambda: queue.pull(worker="ada", timeout=0.2)]


async def test_before_ensure_it_says_so(connect: Connect, timing: Timing) -> None:
    _, *later = calls(WorkQueue(await connect(), timing))
    for call in later:
        with pytest.raises(QueueError, match=r"run ensure\(\) first"):
            await call()


@pytest.mark.parametrize("how", ["severed", "closed"])
async def test_on_a_connection_that_ended_it_says_unreachable(queue: WorkQueue, how: str) -> None:
    await queue.pull(worker="ada", timeout=0.01)
    await (sever(queue.client) if how == "severed" else queue.client.close())
    for call in calls(queue):
        with pytest.raises(BrokerUnreachable, match="doesn't answer"):
            await call()


async def test_while_the_broker_is_down_only_our_errors_come(
    broker: Broker, queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull finds nothing then, as it would in a lull: a worker simply asks again."""
    await queue.publish("resize-1")
    delivery = await pulled(queue)
    await broker.kill()
    monkeypatch.setattr(queue._jetstream, "_timeout", 0.2)
    for call in (queue.ensure, lambda: queue.publish("resize-2")):
        with pytest.raises(BrokerUnreachable):
            await call()
    said = await asyncio.gather(delivery.ack(), delivery.term("hopeless"), return_exceptions=True)
    assert [type(error) for error in said] == [BrokerUnreachable, BrokerUnreachable]
    assert not queue.history.where("acked") + queue.history.where("terminated")
    assert await queue.pull(worker="ada", timeout=0.1) is None
    with asking("nothing, it waits in a buffer", MeetupqError):
        await delivery.nak()
    with pytest.raises(BrokerUnreachable):
        await delivery.in_progress()
    assert not queue.history.where("progressed")


async def test_a_consumer_that_was_deleted_is_missed_at_once(queue: WorkQueue) -> None:
    await queue.client.jetstream().delete_consumer("jobs", "worker_high")
    with pytest.raises(QueueError, match="no consumer worker_high"):
        await queue.pull(worker="ada", timeout=5)
    await queue.client.jetstream().delete_stream("jobs")
    with pytest.raises(NotFoundError):
        await queue.client.jetstream().stream_info("jobs")
    await queue.ensure()
    await queue.publish("resize-1")
    assert (await pulled(queue)).job == "resize-1"
