"""Workers and the crew that launches, stops and kills them: a kill must be as honest as a power cut."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from conftest import Connect, Run, eventually, jobs_in_stream, measured

from meetupq.broker import Broker
from meetupq.crew import Crew
from meetupq.dead_letters import DeadLetters
from meetupq.errors import BrokerUnreachable, JobRefused, MeetupqError, NameInvalid, UnknownWorker, WorkerBusy
from meetupq.hiring import Job
from meetupq.history import History
from meetupq.leases import Leases
from meetupq.timeline import Timeline
from meetupq.timing import Timing
from meetupq.witness import Witness
from meetupq.work_items import WorkItems
from meetupq.work_queue import Delivery, WorkQueue
from meetupq.workers import Ending, QueueWorker, Reject, Retry, do_job, job_payload


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


@pytest.mark.parametrize(
    "payload",
    [
        b"rubbish", b"[1]", b"\xff\xfe", b'{"seconds": "soon"}', b'{"seconds": []}', b'{"seconds": NaN}',
        b'{"seconds": -1}', b'{"ending": "explode"}', b'{"ending": ["ack"]}', b'{"ending": "nak", "after": NaN}',
        b'{"ending": "nak", "after": Infinity}', b'{"ending": "nak", "after": "soon"}', b"[" * 100_000,
    ],
)  # fmt: skip
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


# --- how a job ends --------------------------------------------------------------------------------

FAST = Timing.preset("ci").but(ack_wait=0.3, heartbeat=0.1, max_deliver=3)


@pytest.fixture
async def fast(
    broker: Broker, connect: Connect, history: History, crashes: list[tuple[str, BaseException]]
) -> AsyncIterator[Crew]:
    """A crew on a queue without a backoff, and the stream of dead letters."""
    queue = WorkQueue(await connect("fast"), FAST, history)
    await queue.ensure()
    await DeadLetters(queue).ensure()
    crew = Crew(broker, FAST, history, lambda what, error: crashes.append((what, error)))
    crew.queue, crew.dead_letters = queue, DeadLetters(queue)  # type: ignore[attr-defined]
    yield crew
    await crew.close()
    assert crashes == []


async def publish(crew: Crew, *jobs: str, **payload: Any) -> None:
    for job in jobs:
        await crew.queue.publish(job, job_payload(**{"seconds": 0, **payload}))  # type: ignore[attr-defined]


async def left(crew: Crew) -> tuple[int, list[str]]:
    """How many jobs the queue holds, and the reasons of the dead letters."""
    letters = await crew.dead_letters.letters()  # type: ignore[attr-defined]
    return await jobs_in_stream(crew.queue.client), [letter.reason for letter in letters]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("ending", "kinds", "in_stream", "reasons"),
    [
        ("ack", ["acked"], 0, []),
        ("silence", ["failed", "delivered", "failed", "delivered", "failed"], 1, []),
        ("nak", ["naked", "delivered", "naked", "delivered", "naked"], 1, []),
        ("reject", ["dead_lettered", "terminated"], 0, ["no worker can do this"]),
        ("term", ["terminated"], 0, []),
    ],
)
async def test_a_job_ends_as_its_payload_says(
    fast: Crew, history: History, ending: Ending, kinds: list[str], in_stream: int, reasons: list[str]
) -> None:
    await fast.launch("ada")
    await publish(fast, "resize-1", ending=ending)
    await history.until(kinds[-1], "resize-1", count=kinds.count(kinds[-1]))
    assert [event.kind for event in history if event.job == "resize-1"] == ["published", "delivered", *kinds]
    assert await left(fast) == (in_stream, reasons)
    fixed = Job(fixed=True)
    await fast.launch("bo", fixed)
    await publish(fast, "resize-2", ending=ending)
    await fast.kill("ada")
    await history.until("acked", "resize-2", worker="bo")


async def test_a_rejected_job_is_kept_whole_and_says_who_and_why(fast: Crew, history: History, timing: Timing) -> None:
    await fast.launch("ada")
    sequence = (
        await fast.queue.publish(  # type: ignore[attr-defined]
            "resize-1",
            job_payload(seconds=0, ending="reject"),
            kind="thumb",
            headers={"Colour": "red", "Nats-Expected-Stream": "jobs"},  # for the broker, and for this stream only
        )
    ).seq
    event = await history.until("terminated", "resize-1")
    assert event.detail == "no worker can do this"
    [letter] = await fast.dead_letters.letters()  # type: ignore[attr-defined]
    assert (letter.job, letter.subject, letter.headers) == ("resize-1", "jobs.high.thumb", {"Colour": "red"})
    assert letter.payload == job_payload(seconds=0, ending="reject")
    assert (letter.reason, letter.last_worker, letter.deliveries) == ("no worker can do this", "ada", 1)
    [kept] = history.where("dead_lettered")
    assert (kept.worker, kept.attempt, kept.revision, kept.source) == ("ada", 1, sequence, "broker")
    assert Timeline(history).jobs["resize-1"].state == "dead"


async def test_a_nak_with_a_delay_comes_again_after_it(fast: Crew, history: History) -> None:
    await fast.launch("ada")
    await publish(fast, "resize-1", ending="nak", after=0.4)
    second = await history.until("delivered", "resize-1", count=2)
    assert 0.38 <= second.at - history.where("naked")[0].at < 1
    assert history.where("naked")[0].detail == "again in 0.4 s"


async def test_a_delay_on_top_of_a_backoff_fails_in_silence_with_that_reason(
    crew: Crew, queue: WorkQueue, history: History, timing: Timing, crashes: list[tuple[str, BaseException]]
) -> None:
    """Neither a crash nor a spin: it comes again when the patience is over."""
    await crew.launch("ada")
    await queue.publish("resize-1", job_payload(seconds=0, ending="nak", after=0.4))
    failed = await history.until("failed", "resize-1")
    assert failed.detail.startswith("nak(after=0.4) of resize-1: with the backoff (0.6, 0.8, 1.0) s")
    second = await history.until("delivered", "resize-1", count=2)
    assert second.at - history.where("delivered")[0].at >= timing.patience(1) - 0.02
    assert (history.where("naked"), crashes, crew.at_work) == ([], [], ["ada"])


@pytest.mark.parametrize(
    ("raised", "kind", "detail"),
    [
        (lambda: Retry(), "naked", "again at once"),
        (lambda: Retry(float("nan")), "failed", "a job can't be tried again nan s from now: give seconds from 0 to"),
        (lambda: Retry("x"), "failed", "a job can't be tried again 'x' s from now: give seconds from 0 to 86400"),
        (lambda: Reject("half a \ud800 character"), "terminated", "half a ? character"),
        (lambda: Reject("too long " * 200_000), "terminated", "too long too long"),
        (lambda: Reject("gone", copy=False), "terminated", "gone"),
    ],
)
async def test_what_a_handler_of_your_own_may_raise(
    fast: Crew, connect: Connect, history: History, run: Run, raised: Any, kind: str, detail: str
) -> None:
    async def handler(delivery: Delivery) -> None:
        if delivery.job == "resize-1" and delivery.attempt == 1:
            raise raised()

    run(QueueWorker("ada", WorkQueue(await connect("ada"), FAST, history), handler=handler).run())
    await publish(fast, "resize-1", "resize-2")
    assert (await history.until(kind, "resize-1")).detail.startswith(detail)
    await history.until("acked", "resize-2")


async def test_a_job_that_can_not_be_kept_is_not_terminated(fast: Crew, history: History) -> None:
    """Its payload would be gone. It fails in silence, with that reason."""
    await fast.queue.client.jetstream().delete_stream("dead_letters")  # type: ignore[attr-defined]
    await fast.launch("ada")
    await publish(fast, "resize-1", ending="reject")
    failed = await history.until("failed", "resize-1")
    assert failed.detail.startswith("can't keep resize-1: its stream or bucket doesn't exist")
    assert not history.where("terminated")
    await publish(fast, "resize-2")
    await history.until("acked", "resize-2")


@pytest.mark.parametrize("told", [True, False])
async def test_a_worker_killed_between_the_copy_and_the_term_leaves_one_letter_in_the_end(
    fast: Crew, history: History, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """The next worker's copy is refused. Whether the first one lived to tell of its copy makes no difference."""
    deaths: list[asyncio.Task[str]] = []

    async def die(where: Any) -> None:
        deaths.append(asyncio.ensure_future(fast.kill("ada")))
        await asyncio.sleep(60)

    term, write = Delivery.term, DeadLetters._write

    async def term_unless_ada(delivery: Delivery, reason: str) -> None:
        await (die(delivery) if delivery.worker == "ada" else term(delivery, reason))

    async def write_and_die(letters: DeadLetters, *args: Any) -> Any:
        receipt = await write(letters, *args)
        return receipt if deaths else await die(letters)

    if told:
        monkeypatch.setattr(Delivery, "term", term_unless_ada)
    else:
        monkeypatch.setattr(DeadLetters, "_write", write_and_die)
    await fast.launch("ada")
    await publish(fast, "resize-1", ending="reject")
    await history.until("killed", worker="ada")
    await deaths[0]
    assert await left(fast) == (1, ["no worker can do this"])
    assert len(history.where("dead_lettered")) == told
    await fast.launch("bo")
    await history.until("terminated", "resize-1", worker="bo")
    assert await left(fast) == (0, ["no worker can do this"])
    [kept] = history.where("dead_lettered")
    assert (kept.worker, kept.attempt) == ("ada", 1)
    line = Timeline(history).jobs["resize-1"]
    assert (line.state, len(line.deaths), line.reason) == ("dead", 1, "no worker can do this")


# --- several jobs in hand --------------------------------------------------------------------------


async def test_prefetched_jobs_grow_old_in_hand(fast: Crew, history: History) -> None:
    """Nobody dies, heartbeats are on, and yet the third of three is done by two workers: they are for the job at work
    only."""
    await publish(fast, "first", "second", "third", seconds=0.25)
    await fast.launch("ada", Job(prefetch=3))
    await history.until("delivered", "third", worker="ada")
    await fast.launch("bo")
    again = await history.until("delivered", "third", worker="bo")
    assert again.attempt == 2
    await history.until("acked", "third", worker="bo")
    await history.until("acked", "third", worker="ada")
    assert not history.where("killed") + history.where("failed")
    [begun] = history.where("begun", "third", worker="ada")
    assert begun.at > history.where("delivered", "third", worker="ada")[0].until, "it began when it was too late"
    assert not history.where("begun", worker="bo"), "who has one in hand begins with it"


async def test_a_stopped_worker_hands_back_at_once_what_it_has_not_begun(fast: Crew, history: History) -> None:
    await publish(fast, "first", "second", "third", seconds=0.1)
    await fast.launch("ada", Job(prefetch=3))
    taken = await history.until("delivered", "third", worker="ada")
    assert await fast.stop("ada") == "ada finished and stopped"
    assert [(event.job, event.kind) for event in history.where(lambda e: e.kind in ("acked", "naked"))] == [
        ("first", "acked"),
        ("second", "naked"),
        ("third", "naked"),
    ]
    await fast.launch("bo")
    for job in ("second", "third"):
        delivered = await history.until("delivered", job, worker="bo")
        assert delivered.attempt == 2
    assert history.where("delivered", "second", worker="bo")[0].at < taken.until, "before the patience was over"
    await history.until("acked", "third")
    assert await left(fast) == (0, [])


async def test_a_job_whose_ack_is_not_answered_does_not_take_those_behind_it_along(
    fast: Crew, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    ack = Delivery.ack

    async def unheard(delivery: Delivery) -> None:
        if (delivery.job, delivery.attempt) == ("first", 1):
            raise BrokerUnreachable
        await ack(delivery)

    monkeypatch.setattr(Delivery, "ack", unheard)
    await publish(fast, "first", "second")
    await fast.launch("ada", Job(prefetch=2))
    await history.until("acked", "second")
    await history.until("acked", "first")
    assert [(e.job, e.attempt) for e in history.where("acked")] == [("second", 1), ("first", 2)]


# --- settings of a worker at work ------------------------------------------------------------------


async def test_heartbeats_can_be_switched_off_in_the_middle_of_a_job(fast: Crew, history: History) -> None:
    await fast.launch("ada")
    await publish(fast, "long", seconds=1.2)
    await history.until("progressed", "long", count=2)
    assert fast.set_heartbeats("ada", False) == "ada is at work as queue high, heartbeats off, prefetch 1"
    beats = len(history.where("progressed"))
    await fast.launch("bo")
    await history.until("delivered", "long", worker="bo")
    assert [e.worker for e in history.where("progressed")] == ["ada"] * beats
    assert [event.detail for event in history.where("tuned")] == ["queue high, heartbeats off, prefetch 1"]


async def test_a_new_prefetch_holds_from_the_next_pull_on_and_after_a_relaunch(fast: Crew, history: History) -> None:
    await fast.launch("ada")
    await fast.kill("ada")
    assert fast.set_prefetch("ada", 3) == "ada will be queue high, heartbeats on, prefetch 3"
    await publish(fast, "first", "second", "third", "fourth")
    await fast.relaunch("ada")
    await history.until("acked", "fourth")
    assert [event.job for event in history.where("begun")] == ["first", "second", "third"]
    line = Timeline(history).workers["ada"]
    assert (line.priority, line.heartbeats, line.prefetch) == ("high", True, 3)


@pytest.mark.parametrize("jobs", [0, 101, 1000, -1, "3", True, 2.0, None])
async def test_no_worker_pulls_so_many(fast: Crew, history: History, jobs: Any) -> None:
    with pytest.raises(JobRefused, match=f"prefetch is {jobs!r}, but a worker pulls 1 to 100 jobs at once"):
        await fast.launch("ada", Job(prefetch=jobs))
    await fast.launch("bo")
    with pytest.raises(JobRefused, match=f"prefetch is {jobs!r}"):
        fast.set_prefetch("bo", jobs)
    assert (fast.names, history.where("tuned")) == (["bo"], [])


async def test_only_workers_of_the_queue_can_be_tuned(fast: Crew, history: History) -> None:
    await fast.launch("bo", Job("leases"))
    for tune in (lambda name: fast.set_heartbeats(name, False), lambda name: fast.set_prefetch(name, 2)):
        with pytest.raises(UnknownWorker, match="no worker is called 'ada'; the workers are: bo"):
            tune("ada")
        with pytest.raises(UnknownWorker, match="bo lobbies for leases: heartbeats and prefetch are for workers of"):
            tune("bo")
    assert not history.where("tuned")


async def test_a_worker_that_just_starts_is_not_tuned_in_vain(fast: Crew, history: History) -> None:
    """The setting would be lost: the launch brings its own."""
    await fast.launch("ada")
    await fast.kill("ada")
    starting = asyncio.ensure_future(fast.relaunch("ada"))
    await asyncio.sleep(0)
    with pytest.raises(WorkerBusy, match="ada is just starting: try again in a moment"):
        fast.set_prefetch("ada", 5)
    await starting
    fast.set_prefetch("ada", 5)


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
    assert [event.detail for event in history.where("started")] == [
        "queue high, heartbeats on, prefetch 1",
        "leases by marker",
    ]


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
