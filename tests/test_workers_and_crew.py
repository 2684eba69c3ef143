"""Workers and the crew that launches, stops and kills them: a kill must be as honest as a power cut."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from conftest import Connect, Run, eventually, jobs_in_stream, measured

from meetupq.broker import Broker
from meetupq.crew import Crew, Job
from meetupq.errors import BrokerUnreachable, MeetupqError, NameInvalid, UnknownWorker, WorkerBusy
from meetupq.history import History
from meetupq.leases import Leases
from meetupq.timeline import Timeline
from meetupq.timing import Timing
from meetupq.witness import Witness
from meetupq.work_items import WorkItems
from meetupq.work_queue import Delivery, WorkQueue
from meetupq.workers import QueueWorker, do_job, job_payload


@pytest.fixture
def crashes() -> list[tuple[str, BaseException]]:
    return []


@pytest.fixture
async def crew(
    broker: Broker, timing: Timing, history: History, crashes: list[tuple[str, BaseException]]
) -> AsyncIterator[Crew]:
    crew = Crew(broker, timing, history, lambda what, error: crashes.append((what, error)))
    yield crew
    await crew.close()


async def waiting_pulls(queue: WorkQueue) -> int:
    return (await queue.client.jetstream().consumer_info("jobs", "worker_high")).num_waiting or 0


async def until_pulls(queue: WorkQueue, count: int) -> None:
    async with asyncio.timeout(5):
        while await waiting_pulls(queue) != count:
            await asyncio.sleep(0.005)


# --- a worker of the queue -------------------------------------------------------------------------


async def test_a_worker_takes_jobs_and_acks_them(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada")
    for number in range(3):
        await queue.publish(f"resize-{number}", job_payload(seconds=0))
    await history.until("acked", worker="ada", count=3)
    assert await jobs_in_stream(queue.client) == 0


async def test_a_worker_takes_jobs_of_its_priority_only(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada", Job(priority="low"))
    await queue.publish("high-1", job_payload(seconds=0), priority="high")
    await queue.publish("low-1", job_payload(seconds=0), priority="low")
    await history.until("acked", "low-1")
    assert not history.where("delivered", "high-1")


async def test_heartbeats_let_a_job_take_longer_than_the_patience(
    crew: Crew, queue: WorkQueue, history: History, timing: Timing
) -> None:
    await crew.launch("ada")
    await queue.publish("long", job_payload(seconds=timing.patience(1) * 2.5))
    await history.until("acked", "long")
    assert [event.attempt for event in history.where("delivered", "long")] == [1]
    assert len(history.where("progressed", "long")) >= 3


async def test_without_heartbeats_it_is_done_twice(
    crew: Crew, queue: WorkQueue, history: History, timing: Timing
) -> None:
    for name in ("ada", "bo"):
        await crew.launch(name, Job(heartbeats=False))
    await queue.publish("long", job_payload(seconds=timing.patience(1) + 0.3))
    await history.until("acked", "long", count=2)
    assert [event.attempt for event in history.where("delivered", "long")] == [1, 2]
    assert not history.where("progressed")
    assert {event.worker for event in history.where("acked")} == {"ada", "bo"}


@pytest.mark.parametrize("payload", [b"rubbish", b"[1]", b"\xff\xfe", b'{"seconds": "soon"}', b'{"seconds": []}'])
async def test_a_payload_that_can_not_be_read_fails_the_job_not_the_worker(
    crew: Crew, queue: WorkQueue, history: History, payload: bytes
) -> None:
    await crew.launch("ada")
    await queue.publish("bad", payload)
    failed = await history.until("failed", "bad")
    assert failed.detail == "the payload can't be read"
    await queue.publish("good", job_payload(seconds=0))
    await history.until("acked", "good")


async def test_whatever_a_handler_raises_is_a_silent_failure(
    queue: WorkQueue, connect: Connect, history: History, run: Run
) -> None:
    async def handler(delivery: Delivery) -> None:
        raise ZeroDivisionError if delivery.job == "nameless" else ValueError("no such image")

    run(QueueWorker("ada", WorkQueue(await connect("ada"), queue.timing, history), handler=handler).run())
    for job, detail in (("resize-1", "no such image"), ("nameless", "ZeroDivisionError")):
        await queue.publish(job)
        assert (await history.until("failed", job)).detail == detail
    assert not history.where("acked") + history.where("naked")
    assert await jobs_in_stream(queue.client) == 2


async def test_a_mended_worker_does_what_was_poison(queue: WorkQueue, history: History, connect: Connect) -> None:
    await queue.publish("poison-1", job_payload(seconds=0, ending="silence"))
    delivery = await queue.pull(worker="ada")
    assert delivery
    with pytest.raises(MeetupqError, match="poison"):
        await do_job(0)(delivery)
    await do_job(0, fixed=True)(delivery)


async def test_a_worker_goes_on_after_the_broker_was_killed(
    broker: Broker, crew: Crew, queue: WorkQueue, history: History
) -> None:
    await crew.launch("ada")
    await broker.kill()
    await broker.start()
    await eventually(lambda: queue.client.is_connected)
    await queue.publish("resize-1", job_payload(seconds=0))
    await history.until("acked", "resize-1")
    assert crew.at_work == ["ada"]


async def test_a_worker_without_a_consumer_waits_and_does_not_spin(
    crew: Crew, connect: Connect, timing: Timing, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = itertools.count()
    pull = WorkQueue.pull_batch

    async def counted(self: WorkQueue, *args: Any, **options: Any) -> list[Delivery]:
        next(asked)
        return await pull(self, *args, **options)

    monkeypatch.setattr(WorkQueue, "pull_batch", counted)
    await crew.launch("ada")
    await asyncio.sleep(0.5)
    assert next(asked) <= 5
    queue = WorkQueue(await connect(), timing, history)
    await queue.ensure()
    await queue.publish("resize-1", job_payload(seconds=0))
    await history.until("acked", "resize-1")


# --- launching -------------------------------------------------------------------------------------


async def test_the_crew_knows_who_is_there_and_who_is_at_work(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada")
    await crew.launch("bo", Job("leases"))
    assert crew.names == crew.at_work == ["ada", "bo"]
    assert crew.is_at_work("bo", "leases")
    assert not crew.is_at_work("bo", "queue")
    assert not crew.is_at_work("cy")
    await crew.kill("ada")
    assert (crew.names, crew.at_work) == (["ada", "bo"], ["bo"])
    assert [event.detail for event in history.where("started")] == ["queue high, heartbeats on, prefetch 1", "leases"]


async def test_two_of_one_name_are_refused(crew: Crew, queue: WorkQueue) -> None:
    await crew.launch("ada")
    with pytest.raises(WorkerBusy, match="ada is at work already: stop or kill it first"):
        await crew.launch("ada")
    with pytest.raises(WorkerBusy):
        await crew.relaunch("ada")


async def test_two_clicks_at_once_launch_one(crew: Crew, queue: WorkQueue, history: History) -> None:
    """The second comes while the first one still connects."""
    results = await asyncio.gather(crew.launch("ada"), crew.launch("ada"), return_exceptions=True)
    assert [type(result) for result in results] == [type(None), WorkerBusy]
    assert len(history.where("started")) == 1
    await until_pulls(queue, 1)


async def test_names_and_roles_are_checked(crew: Crew) -> None:
    with pytest.raises(NameInvalid, match="the worker 'a b'"):
        await crew.launch("a b")
    with pytest.raises(UnknownWorker, match="choose 'queue' or 'leases'"):
        await crew.launch("ada", Job("boss"))  # type: ignore[arg-type]
    assert crew.names == []


async def test_an_unknown_name_is_answered_with_the_known_ones(crew: Crew, queue: WorkQueue) -> None:
    with pytest.raises(UnknownWorker, match="no worker is called 'ada'; the workers are: none is launched yet"):
        await crew.kill("ada")
    await crew.launch("bo")
    await crew.launch("cy")
    for call in (crew.kill, crew.stop, crew.relaunch):
        with pytest.raises(UnknownWorker, match="no worker is called 'ada'; the workers are: bo, cy"):
            await call("ada")


async def test_without_the_broker_nobody_is_launched(broker: Broker, crew: Crew) -> None:
    await broker.kill()
    with pytest.raises(BrokerUnreachable):
        await crew.launch("ada")
    assert crew.names == []
    await broker.start()
    await crew.launch("ada")


async def test_a_relaunch_is_for_the_same_work(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada", Job(priority="low"))
    await crew.launch("bo", Job("leases"))
    for name in ("ada", "bo"):
        await crew.kill(name)
        assert await crew.relaunch(name) == f"{name} is at work again"
    assert crew.is_at_work("bo", "leases")
    await queue.publish("low-1", job_payload(seconds=0), priority="low")
    await history.until("acked", "low-1", worker="ada")


# --- stopping --------------------------------------------------------------------------------------


async def test_a_stopped_worker_finishes_its_job_first(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada")
    await queue.publish("resize-1", job_payload(seconds=0.3))
    await queue.publish("resize-2", job_payload(seconds=0))
    await history.until("delivered", "resize-1")
    assert await crew.stop("ada") == "ada finished and stopped"
    assert [event.kind for event in history][-2:] == ["acked", "stopped"]
    assert not history.where("delivered", "resize-2")
    assert await crew.stop("ada") == "ada is not at work; nothing was changed"
    assert len(history.where("stopped")) == 1
    await crew.relaunch("ada")
    await history.until("acked", "resize-2")


async def test_a_stop_that_takes_too_long_says_so_and_the_worker_goes_on(
    crew: Crew, queue: WorkQueue, history: History
) -> None:
    await crew.launch("ada")
    await queue.publish("resize-1", job_payload(seconds=0.4))
    await history.until("delivered")
    with pytest.raises(MeetupqError, match=r"ada did not finish within 0\.05 s"):
        await crew.stop("ada", within=0.05)
    assert crew.at_work == ["ada"]
    await history.until("acked", "resize-1")


async def test_a_worker_killed_while_it_stops_was_killed(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada")
    await queue.publish("resize-1", job_payload(seconds=5))
    await history.until("delivered")
    stopping = asyncio.ensure_future(crew.stop("ada"))
    await asyncio.sleep(0)
    await crew.kill("ada")
    assert await stopping == "ada was killed before it had finished"
    assert not history.where("stopped")
    assert Timeline(history).workers["ada"].state == "killed"


async def test_a_waiting_worker_killed_while_it_stops_was_killed(
    crew: Crew, queue: WorkQueue, history: History
) -> None:
    await crew.launch("ada")
    await until_pulls(queue, 1)
    stopping = asyncio.ensure_future(crew.stop("ada"))
    await asyncio.sleep(0)
    await crew.kill("ada")
    assert await stopping == "ada was killed before it had finished"
    assert not history.where("stopped")


# --- killing ---------------------------------------------------------------------------------------


async def test_a_killed_workers_job_goes_to_another_after_the_patience(
    crew: Crew, queue: WorkQueue, history: History, timing: Timing
) -> None:
    await crew.launch("ada")
    await queue.publish("resize-1", job_payload(seconds=0.5))
    first = await history.until("delivered", "resize-1", worker="ada")
    assert await crew.kill("ada") == "ada was killed"
    await crew.launch("bo")
    second = await history.until("delivered", "resize-1", worker="bo")
    assert (second.attempt, second.at >= first.until - 0.02) == (2, True)
    await history.until("acked", "resize-1", worker="bo")
    assert not history.where("acked", worker="ada")


async def test_killing_the_dead_changes_nothing(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada")
    await crew.kill("ada")
    before = history.snapshot()
    assert await crew.kill("ada") == "ada is dead already; nothing was changed"
    assert await crew.kill_all() == "nobody was at work; nothing was changed"
    assert history.snapshot() == before


async def test_two_clicks_at_once_kill_once(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada")
    said = await asyncio.gather(crew.kill("ada"), crew.kill("ada"))
    assert said == ["ada was killed", "ada is dead already; nothing was changed"]
    assert len(history.where("killed")) == 1


async def test_kill_all_kills_those_of_a_role(crew: Crew, queue: WorkQueue) -> None:
    await crew.launch("ada")
    await crew.launch("bo", Job("leases"))
    await crew.launch("cy")
    assert await crew.kill_all("queue") == "killed: ada, cy"
    assert crew.at_work == ["bo"]
    assert await crew.kill_all() == "killed: bo"


async def test_a_killed_workers_pull_request_is_gone(crew: Crew, queue: WorkQueue, history: History) -> None:
    """Otherwise the next job would be handed to the dead, and wait there for its patience to run out."""
    for name in ("ada", "bo"):
        await crew.launch(name)
    await until_pulls(queue, 2)
    await crew.kill("ada")
    await until_pulls(queue, 1)
    await queue.publish("resize-1", job_payload(seconds=0))
    assert (await history.until("delivered", "resize-1")).worker == "bo"
    assert (await history.until("acked", "resize-1")).attempt == 1


async def test_killing_a_waiting_worker_does_not_wait_for_its_pull(crew: Crew, queue: WorkQueue) -> None:
    for role in ("queue", "leases"):
        await crew.launch("ada", Job(role))  # type: ignore[arg-type]
        if role == "queue":
            await until_pulls(queue, 1)
        with measured() as seconds:
            await crew.kill("ada")
        assert seconds() < 0.7


async def test_an_ack_that_still_waits_to_be_sent_dies_with_its_worker(
    crew: Crew, queue: WorkQueue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the very step of the loop in which its ack was put into the client's buffer."""
    killing: list[asyncio.Task[str]] = []
    pending: list[int] = []
    publish = type(queue.client).publish

    async def publish_then_be_killed(client: Any, subject: str, *args: Any, **options: Any) -> None:
        if not subject.startswith("$JS.ACK") or killing or not history.where("acked"):
            await publish(client, subject, *args, **options)
        else:
            killing.append(asyncio.ensure_future(crew.kill("ada")))  # comes before the client's own flush
            await publish(client, subject, *args, **options)
            pending.append(client.pending_data_size)

    monkeypatch.setattr(type(queue.client), "publish", publish_then_be_killed)
    await crew.launch("ada", Job(heartbeats=False))
    await queue.publish("warm-up", job_payload(seconds=0))
    await history.until("acked", "warm-up")
    await queue.publish("resize-1", job_payload(seconds=0))
    await history.until("killed", worker="ada")
    await killing[0]
    assert pending[0] > 0, "otherwise nothing was shown"
    await asyncio.sleep(0.1)
    assert await jobs_in_stream(queue.client) == 1
    assert not history.where("acked", "resize-1")
    await crew.launch("bo")
    assert (await history.until("acked", "resize-1")).worker == "bo"


@pytest.mark.parametrize("steps", range(12))
async def test_a_kill_around_the_ack_tells_the_truth(
    crew: Crew, queue: WorkQueue, history: History, run: Run, timing: Timing, steps: int
) -> None:
    """Some steps of the loop after the work ended: either the broker got the ack, and then the history says so (from
    the broker's own metric, where the worker did not live to hear it), or the job comes again."""
    run(Witness(queue.client, timing, history).run())
    ready = asyncio.Event()
    handler = do_job(0)

    await crew.launch("ada")
    worker = crew._members["ada"].worker
    assert isinstance(worker, QueueWorker)

    async def tell(delivery: Delivery) -> None:
        await handler(delivery)
        ready.set()

    worker._handler = tell
    await queue.publish("resize-1", job_payload(seconds=0))
    await ready.wait()
    for _ in range(steps):
        await asyncio.sleep(0)
    await crew.kill("ada")
    await asyncio.sleep(0.1)  # what was on its way has arrived
    gone = await jobs_in_stream(queue.client) == 0
    if gone:
        acked = await history.until("acked", "resize-1")
        assert acked.worker == "ada"
    else:
        await crew.launch("bo")
        acked = await history.until("acked", "resize-1")
        assert (acked.worker, acked.attempt) == ("bo", 2)
    assert len(history.where("acked")) == 1
    assert Timeline(history).jobs["resize-1"].state == "done"


async def test_a_killed_lease_worker_releases_nothing(
    crew: Crew, leases: Leases, items: WorkItems, history: History
) -> None:
    await items.add("import-eu", seconds=30, steps=100)
    await crew.launch("ada", Job("leases"))
    await history.until("checkpointed")
    await crew.kill("ada")
    await asyncio.sleep(0.1)
    assert await leases.claim("import-eu", "bo") is None
    assert not history.where("released")
    assert not history.where("lost")
    kinds = [event.kind for event in history if event.worker == "ada"]
    assert kinds[-1] == "killed", "the dead say nothing"


async def test_a_kill_during_an_outage_is_a_kill(
    broker: Broker, crew: Crew, queue: WorkQueue, history: History
) -> None:
    await crew.launch("ada")
    await crew.launch("bo", Job("leases"))
    await broker.kill()
    assert await crew.kill_all() == "killed: ada, bo"
    await broker.start()
    await eventually(lambda: queue.client.is_connected)
    await asyncio.sleep(0.3)
    assert await waiting_pulls(queue) == 0, "nobody came back from the dead"


# --- crashing --------------------------------------------------------------------------------------


async def test_a_crash_is_reported_and_the_worker_can_be_launched_again(
    crew: Crew,
    queue: WorkQueue,
    history: History,
    crashes: list[tuple[str, BaseException]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def crash(self: WorkQueue, *_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug of ours")

    with monkeypatch.context() as patch:
        patch.setattr(WorkQueue, "pull_batch", crash)
        await crew.launch("ada")
        killed = await history.until("killed", worker="ada")
    assert (killed.source, killed.detail) == ("worker", "crashed: a bug of ours")
    [(what, error)] = crashes
    assert what == "worker ada crashed"
    assert isinstance(error, ZeroDivisionError)
    assert crew.at_work == []
    former = crew._members["ada"].client
    await crew.relaunch("ada")
    assert former is not None
    assert former.is_closed
    await queue.publish("resize-1", job_payload(seconds=0))
    await history.until("acked", "resize-1")


async def test_closing_ends_everybody_records_nothing_and_can_be_repeated(
    crew: Crew, queue: WorkQueue, history: History
) -> None:
    await crew.launch("ada")
    await crew.launch("bo", Job("leases"))
    before = history.snapshot()
    await crew.close()
    await crew.close()
    assert crew.at_work == []
    assert history.snapshot() == before
    await until_pulls(queue, 0)
