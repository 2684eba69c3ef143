"""The broker's own counts: every job is in one part, at every moment, and at the end they are what the history says."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Connect, eventually, jobs_in_stream
from nats.js import JetStreamContext

from meetupq.broker import Broker
from meetupq.dead_letters import DeadLetters
from meetupq.errors import BrokerUnreachable, QueueError
from meetupq.history import History
from meetupq.stage import Stage
from meetupq.summary import QueueSummary, summarise
from meetupq.tasks import drop
from meetupq.timeline import Timeline
from meetupq.timing import Timing
from meetupq.work_queue import Delivery, WorkQueue
from meetupq.workers import ENDINGS

FAST = Timing.preset("ci").but(ack_wait=0.3, heartbeat=0.1, max_deliver=3)
Make = Callable[..., Awaitable[DeadLetters]]


@pytest.fixture
def make(connect: Connect, history: History) -> Make:
    """Queue and dead letters, set up; nobody keeps them: `await make(max_deliver=1)`."""

    async def make(escalate: dict[str, str] | None = None, **changes: Any) -> DeadLetters:
        queue = WorkQueue(await connect(), FAST.but(**changes), history)
        letters = DeadLetters(queue, escalate)
        await queue.ensure()
        await letters.ensure()
        return letters

    return make


async def pulled(letters: DeadLetters, priority: str = "high") -> Delivery:
    delivery = await letters.queue.pull(priority, worker="ada", timeout=5)
    assert delivery
    return delivery


async def exhaust(letters: DeadLetters, job: str, priority: str = "high") -> None:
    """Publish a job and fail it until the broker gives up, which it notices by the pull at the end."""
    await letters.queue.publish(job, priority=priority)
    for _ in range(letters.queue.timing.of(priority).max_deliver):
        await (await pulled(letters, priority)).nak()
    assert await letters.queue.pull(priority, worker="ada", timeout=0.05) is None


# --- where a job is --------------------------------------------------------------------------------


async def test_a_job_in_every_place(make: Make) -> None:
    letters = await make(ack_wait=5)
    assert str(await summarise(letters)) == "0 published = 0"
    for job in ("acked", "dead"):
        await letters.queue.publish(job)
        delivery = await pulled(letters)
        if job == "dead":
            await letters.keep(delivery, "no such image")
            await delivery.term("no such image")
        else:
            await delivery.ack()
    await letters.queue.publish("terminated")
    await (await pulled(letters)).term("no such image")
    await exhaust(letters, "stuck")
    await letters.queue.publish("again")
    await (await pulled(letters)).nak()
    assert (await pulled(letters)).attempt == 2
    await letters.queue.publish("first-time")
    await pulled(letters)
    for number in range(3):
        await letters.queue.publish(f"waiting-{number}")
    summary = await summarise(letters, terminated=1)
    assert summary.parts() == {
        "waiting": 3, "in flight": 1, "retrying": 1, "stuck": 1, "dead": 1, "terminated": 1, "acked": 1,
    }  # fmt: skip
    assert (summary.published, summary.in_stream) == (9, await jobs_in_stream(letters.queue.client))
    assert repr(summary) == (
        "9 published = 3 waiting + 1 in flight + 1 retrying + 1 stuck + 1 dead + 1 terminated + 1 acked"
    )


@pytest.mark.parametrize(("max_deliver", "unseen"), [(1, "1 stuck"), (2, "1 retrying")])
async def test_a_job_whose_last_patience_is_over_is_stuck_when_the_broker_has_noticed(
    make: Make, max_deliver: int, unseen: str
) -> None:
    """Which takes a pull, except with a single delivery."""
    letters = await make(max_deliver=max_deliver)
    await letters.queue.publish("a")
    for attempt in range(1, max_deliver + 1):
        delivery = await pulled(letters)
        if attempt < max_deliver:
            await delivery.nak()
    assert (await summarise(letters)).stuck == 0
    await asyncio.sleep(letters.queue.timing.patience(1) + 0.1)  # silence is the subject
    assert str(await summarise(letters)) == f"1 published = {unseen}"
    assert await letters.queue.pull(worker="ada", timeout=0.05) is None
    assert str(await summarise(letters)) == "1 published = 1 stuck"
    assert await letters.sweep() == 1
    assert str(await summarise(letters)) == "1 published = 1 dead"


async def test_each_priority_is_counted_by_itself(make: Make) -> None:
    """A stuck job that was delivered once must not hide one of the other priority that was delivered twice."""
    letters = await make(max_deliver=1, low=FAST.but(ack_wait=5))
    await exhaust(letters, "stuck")
    await letters.queue.publish("again", priority="low")
    await (await pulled(letters, "low")).nak()
    await pulled(letters, "low")
    assert str(await summarise(letters)) == "2 published = 1 retrying + 1 stuck"


async def test_a_job_with_a_copy_already_is_dead_and_nothing_else(make: Make) -> None:
    """Its worker died between the copy and the term."""
    letters = await make()
    await letters.queue.publish("a")
    await letters.keep(await pulled(letters), "no such image")
    assert str(await summarise(letters)) == "1 published = 1 dead"
    again = await pulled(letters)
    assert str(await summarise(letters)) == "1 published = 1 dead"
    await again.term("no such image")
    assert str(await summarise(letters)) == "1 published = 1 dead"


async def test_redriven_and_terminated_jobs_are_counted_once() -> None:
    async with Stage(FAST) as stage:
        await stage.launch("ada")
        await stage.publish("rejected", seconds=0, ending="reject")
        await stage.publish("terminated", seconds=0, ending="term")
        await stage.history.until("terminated", count=2)
        assert str(await stage.summary()) == "2 published = 1 dead + 1 terminated"
        await stage.kill("ada")
        await stage.redrive_all()
        assert str(await stage.summary()) == "2 published = 1 waiting + 1 terminated"
        delivery = await stage.queue.pull(worker="me")
        assert delivery
        await delivery.term("this time without a copy")
        assert str(await stage.summary()) == "2 published = 2 terminated"


async def test_what_strangers_put_into_the_streams_spoils_nothing(make: Make) -> None:
    letters = await make()
    jetstream = letters.queue.client.jetstream()
    for subject in ("dead.foo", "dead.1.foo", "dead.1.jobs.high", "jobs.medium.z"):
        await jetstream.publish(subject, b"rubbish")
    for number in range(7):
        await letters.queue.publish(f"a-{number}")
        if number:
            await (await pulled(letters)).ack()
    summary = await summarise(letters)
    assert summary.parts() == {
        "waiting": 2, "in flight": 0, "retrying": 0, "stuck": 0, "dead": 0, "terminated": 0, "acked": 6,
    }  # fmt: skip
    assert await letters.letters() == []


async def test_what_moves_while_it_is_counted_is_no_false_alarm(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job comes after each look at a consumer, so that no moment is quiet."""
    letters = await make()
    numbers, look = itertools.count(), JetStreamContext.consumer_info

    async def look_and_publish(jetstream: JetStreamContext, *which: Any) -> Any:
        info = await look(jetstream, *which)
        await letters.queue.publish(f"late-{next(numbers)}")
        return info

    monkeypatch.setattr(JetStreamContext, "consumer_info", look_and_publish)
    summary = await summarise(letters)
    assert summary.parts() == {**dict.fromkeys(summary.parts(), 0), "waiting": next(numbers)}


async def test_what_moved_while_it_was_counted_is_counted_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts are of one moment: after the ack, with one job left that waits."""
    letters = await make()
    await letters.queue.publish("acked")
    delivery = await pulled(letters)
    await letters.queue.publish("waiting")
    look = JetStreamContext.consumer_info

    async def look_and_ack(jetstream: JetStreamContext, *which: Any) -> Any:
        info = await look(jetstream, *which)
        if await jobs_in_stream(letters.queue.client) == 2:
            await delivery.ack()
        return info

    monkeypatch.setattr(JetStreamContext, "consumer_info", look_and_ack)
    assert str(await summarise(letters)) == "2 published = 1 waiting + 1 acked"


async def test_without_the_streams_or_the_broker_it_says_so(broker: Broker, connect: Connect, make: Make) -> None:
    letters = DeadLetters(WorkQueue(await connect(), FAST))
    with pytest.raises(QueueError, match=r"can't count the jobs: stream not found \(code 10059\)"):
        await summarise(letters)
    letters = await make()
    await letters.queue.client.jetstream().delete_consumer("jobs", "worker_low")
    with pytest.raises(QueueError, match="can't count the jobs: consumer not found"):
        await summarise(letters)
    await broker.kill()
    with pytest.raises(BrokerUnreachable, match="can't count the jobs"):
        await summarise(letters)


async def test_a_stuck_job_is_shown_while_the_keeper_looks_away() -> None:
    async with Stage(FAST) as stage:
        stage.burying = False
        await stage.launch("ada")
        await stage.poison("poison-1", seconds=0)
        await stage.history.until(lambda e: e.kind == "exhausted" and e.source == "broker", "poison-1")
        assert str(await stage.summary()) == "1 published = 1 stuck"
        assert Timeline(stage.history).counts["stuck"] == 1
        await eventually(lambda: stage.counted and stage.counted.stuck)
        stage.burying = True
        await stage.history.until("dead_lettered", "poison-1")
        assert str(await stage.summary()) == "1 published = 1 dead"
        await eventually(lambda: stage.counted and stage.counted.dead and len(stage.letters_seen) == 1)


# --- a store that outlives the stage ---------------------------------------------------------------


async def test_a_store_that_is_opened_again_goes_on_where_it_was(tmp_path: Path) -> None:
    async with Stage(FAST, store=tmp_path / "store") as stage:
        await stage.launch("ada")
        await stage.publish(count=3, seconds=0)
        await stage.poison("poison-1", seconds=0)
        await stage.publish("rejected", seconds=0, ending="reject")
        await stage.history.until("dead_lettered", count=2)
        await stage.history.until("acked", count=3)
        await stage.history.until("terminated")
        await stage.kill_all()
        assert await stage.publish(count=2, seconds=0) == ["resize-4", "resize-5"]
        first = await stage.summary()
        assert str(first) == "7 published = 2 waiting + 2 dead + 3 acked"
    async with Stage(FAST, store=tmp_path / "store") as stage:
        assert await stage.summary() == first
        assert [letter.job for letter in await stage.letters()] == ["rejected", "poison-1"]
        fresh = await stage.publish(count=2, seconds=0)
        assert not set(fresh) & {f"resize-{number}" for number in range(1, 6)}
        assert not stage.history.where("duplicate")
        await stage.launch("bo", fixed=True)
        assert sorted(await stage.redrive_all()) == ["poison-1", "rejected"]
        await stage.history.until("acked", count=6)
        assert str(await stage.summary()) == "9 published = 9 acked"
        assert {e.job for e in stage.history.where("acked")} == {"poison-1", "rejected", "resize-4", "resize-5", *fresh}
        assert not stage.failures


async def test_numbers_are_new_even_when_the_broker_has_forgotten_their_message_ids(tmp_path: Path) -> None:
    """As it does after two minutes: it would store a second job of the same name."""
    async with Stage(FAST, store=tmp_path / "store") as stage:
        jetstream = stage.queue.client.jetstream()
        config = (await jetstream.stream_info("jobs")).config
        config.duplicate_window = 0.1
        await jetstream.update_stream(config)
        assert await stage.publish(count=2) == ["resize-1", "resize-2"]
    async with Stage(FAST, store=tmp_path / "store") as stage:
        await asyncio.sleep(0.2)
        assert not set(await stage.publish(count=2)) & {"resize-1", "resize-2"}


async def test_numbers_that_somebody_else_has_used_are_skipped() -> None:
    async with Stage(FAST) as stage:
        stranger = WorkQueue(await stage.broker.connect("stranger"), FAST)
        for number in (1, 2, 4):
            await stranger.publish(f"resize-{number}")
        assert await stage.publish(count=3) == ["resize-3", "resize-5", "resize-6"]
        assert [event.job for event in stage.history.where("duplicate")] == ["resize-1", "resize-2", "resize-4"]
        assert str(await stage.summary()) == "6 published = 6 waiting"
        await stranger.client.close()


# --- the big one -----------------------------------------------------------------------------------


async def test_jobs_that_come_and_go_are_never_taken_for_stuck(make: Make) -> None:
    """Nobody dies here, so the least sign of it would be a false alarm, out of two counts of different moments."""
    async with Stage(FAST.but(ack_wait=5)) as stage:
        await stage.launch("ada", "bo")
        done = asyncio.ensure_future(stage.history.until("acked", count=150, within=20))
        publishing = asyncio.ensure_future(asyncio.gather(*(stage.publish(f"a-{n}", seconds=0) for n in range(150))))
        while not done.done():
            assert (await stage.summary()).stuck == 0
        await publishing
        assert str(await stage.summary()) == "150 published = 150 acked"


@pytest.mark.slow
async def test_under_fire_the_parts_add_up_in_every_snapshot() -> None:
    """200 jobs of all endings, workers killed and launched again, letters redriven, all at seeded moments; polled all
    the time. The number of jobs published is known, within what is just being published; no part is ever negative."""
    dice = random.Random(7)
    names, jobs = ["ada", "bo", "cy"], [f"job-{number}" for number in range(200)]
    snapshots: list[QueueSummary] = []
    async with Stage(FAST, escalate=True) as stage:
        sent = 0

        def known() -> int:
            return len({event.job for event in stage.history.where("published")})

        async def poll() -> None:
            while True:
                at_least = known()
                summary = await stage.summary()
                assert min(summary.parts().values()) >= 0, summary
                assert sum(summary.parts().values()) == summary.published, summary
                assert at_least <= summary.published <= sent, summary
                snapshots.append(summary)

        async def fire(name: str, dice: random.Random) -> None:
            while True:
                await asyncio.sleep(dice.uniform(0.05, 0.8))
                await stage.kill(name)
                await asyncio.sleep(dice.uniform(0.0, 0.2))
                await stage.relaunch(name)

        async def redrive() -> None:
            for _ in range(10):
                await asyncio.sleep(0.5)
                await stage.redrive_all(job=f"*{dice.randrange(10)}")

        await stage.launch(*names, prefetch=2)
        await stage.launch("lou", priority="low")
        trouble = [asyncio.ensure_future(poll())]
        trouble += [asyncio.ensure_future(fire(name, random.Random(name))) for name in names]
        redriving = asyncio.ensure_future(redrive())
        for job in jobs:
            sent += 1
            ending = dice.choices(ENDINGS, weights=(80, 5, 5, 5, 5))[0]
            await stage.publish(job, seconds=dice.uniform(0, 0.05), ending=ending)
        await redriving
        poller = trouble.pop(0)
        await drop(*trouble)
        await stage.launch(*names)

        def unsettled() -> list[str]:
            timeline = Timeline(stage.history)
            return [job for job in jobs if timeline.jobs[job].state not in ("done", "dead", "terminated")]

        await eventually(lambda: not unsettled(), within=20)
        assert not poller.done(), poller.result()
        await drop(poller)
        assert not stage.failures
        summary, counts = await stage.summary(), Timeline(stage.history).counts
        letters = await stage.letters()
        assert await jobs_in_stream(stage.queue.client) == 0
    assert summary.parts() == {
        "waiting": 0, "in flight": 0, "retrying": 0, "stuck": 0,
        "dead": counts["dead"], "terminated": counts["terminated"], "acked": counts["done"],
    }  # fmt: skip
    assert summary.published == 200
    assert sorted(letter.job for letter in letters) == sorted(
        job for job, line in Timeline(stage.history).jobs.items() if line.state == "dead"
    )
    for kind in ("killed", "redriven", "escalated", "terminated", "naked"):
        assert len(stage.history.where(kind)) >= 5, f"otherwise nothing was shown: {kind}"
    assert len(snapshots) > 50
