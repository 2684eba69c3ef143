"""Escalation: a job that died as `high` is tried again as `low`, with more patience, before it becomes a letter."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest
from conftest import Connect, Run, eventually, jobs_in_stream

from meetupq import dead_letters as module
from meetupq.dead_letters import DeadLetters
from meetupq.history import History
from meetupq.stage import Stage
from meetupq.summary import summarise
from meetupq.timeline import Timeline
from meetupq.timing import Timing
from meetupq.witness import Witness
from meetupq.work_queue import Delivery, WorkQueue
from meetupq.workers import job_payload

TICK = 0.03
CI = Timing.preset("ci").but(sweep=0.1)
LOW = CI.but(backoff=(0.3, 0.5), heartbeat=0.1, max_deliver=3)
TIMING = CI.but(ack_wait=0.2, heartbeat=0.1, max_deliver=2, low=LOW)


@pytest.fixture
def timing() -> Timing:
    return TIMING


@pytest.fixture
async def keeper(queue: WorkQueue) -> DeadLetters:
    keeper = DeadLetters(queue, {"high": "low"})
    await keeper.ensure()
    return keeper


async def used_up(queue: WorkQueue, *jobs: str, priority: str = "high", publish: bool = True, **options: Any) -> None:
    for job in jobs:
        if publish:
            await queue.publish(job, priority=priority, **options)
        for _ in range(queue.timing.of(priority).max_deliver):
            delivery = await queue.pull(priority, worker="ada", timeout=5)
            assert delivery
            await delivery.nak()


async def another(connect: Connect, queue: WorkQueue, history: History | None = None) -> DeadLetters:
    """Another keeper of the same queue, in another process as it were: own connection, own history."""
    return DeadLetters(WorkQueue(await connect("another keeper"), queue.timing, history), {"high": "low"})


# --- end to end ------------------------------------------------------------------------------------


async def test_a_job_dies_as_high_then_as_low_each_with_its_own_patience() -> None:
    """The gaps between its deliveries are those of the two consumers, and its letter tells of both."""
    async with Stage(TIMING, escalate=True) as stage:
        await stage.launch("ada")
        await stage.launch("bo", priority="low")
        await stage.poison("poison-1", seconds=0)
        letter = (await stage.history.until("dead_lettered", "poison-1")).detail
        assert letter == "not acked in 3 deliveries, after 2 as high"
        delivered = stage.history.where("delivered", "poison-1")
        assert [(event.worker, event.attempt) for event in delivered] == [
            ("ada", 1), ("ada", 2), ("bo", 1), ("bo", 2), ("bo", 3),
        ]  # fmt: skip
        gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(delivered)]
        for gap, patience in zip(gaps, (0.2, 0.2, 0.3, 0.5), strict=True):
            assert patience - TICK <= gap < patience + 0.4
        [escalated] = stage.history.where("escalated")
        assert (escalated.attempt, escalated.worker, escalated.detail) == (2, "ada", "jobs.low.poison")
        kept = await stage.letter("poison-1")
        assert (kept.subject, kept.deliveries, kept.last_worker) == ("jobs.low.poison", 3, "bo")
        assert str(await stage.summary()) == "1 published = 1 dead"
        line = Timeline(stage.history).jobs["poison-1"]
        assert (line.state, len(line.escalated), line.reason) == ("dead", 1, letter)
        assert not stage.failures


async def test_a_job_that_only_needed_more_patience_gets_done() -> None:
    async with Stage(TIMING, escalate=True) as stage:
        await stage.launch("ada", "cy", heartbeats=False)
        await stage.publish("slow-1", seconds=1.2)
        await stage.history.until("escalated", "slow-1")
        await stage.kill_all()  # before the first of them acks
        await stage.launch("bo", priority="low")
        await stage.history.until("acked", "slow-1", worker="bo")
        assert await stage.letters() == []
        assert str(await stage.summary()) == "1 published = 1 acked"


async def test_the_copy_is_the_same_job_and_the_letter_too(queue: WorkQueue, keeper: DeadLetters) -> None:
    headers = {"Colour": "red", "Nats-Expected-Last-Sequence": "0"}  # the second one is for the broker, and for once
    await used_up(queue, "a", payload=b"precious", kind="thumb", headers=headers)
    assert await keeper.sweep() == 1
    copy = await queue.pull("low", worker="bo")
    assert copy
    assert (copy.job, copy.attempt, copy.subject, copy.payload) == ("a", 1, "jobs.low.thumb", b"precious")
    assert (copy.headers["Colour"], copy.headers["Meetupq-Escalated-From"]) == ("red", "2 as high")
    await copy.nak()
    for _ in range(2):
        again = await queue.pull("low", worker="bo")
        assert again
        await again.nak()
    assert await keeper.sweep() == 1
    [letter] = await keeper.letters()
    assert (letter.job, letter.payload, letter.headers) == ("a", b"precious", {"Colour": "red"})
    assert letter.reason == "not acked in 3 deliveries, after 2 as high"
    assert await jobs_in_stream(queue.client) == 0


async def test_what_was_low_from_the_start_is_not_escalated(queue: WorkQueue, keeper: DeadLetters) -> None:
    await used_up(queue, "a", priority="low")
    assert await keeper.sweep() == 1
    assert [letter.reason for letter in await keeper.letters()] == ["not acked in 3 deliveries"]
    assert not queue.history.where("escalated")


async def test_a_redriven_letter_of_an_escalated_job_stays_with_the_patient_and_starts_afresh(
    queue: WorkQueue, keeper: DeadLetters
) -> None:
    await used_up(queue, "a")
    await keeper.sweep()
    await used_up(queue, "a", priority="low", publish=False)
    await keeper.sweep()
    [letter] = await keeper.letters()
    await keeper.redrive(letter.number)
    assert str(await summarise(keeper)) == "1 published = 1 waiting"
    await used_up(queue, "a", priority="low", publish=False)
    await keeper.sweep()
    assert [letter.reason for letter in await keeper.letters()] == ["not acked in 3 deliveries"]
    assert len(queue.history.where("escalated")) == 1
    assert str(await summarise(keeper)) == "1 published = 1 dead"


async def test_the_copy_has_its_name_also_while_only_a_stranger_has_seen_it(
    queue: WorkQueue, keeper: DeadLetters, connect: Connect, history: History, run: Run
) -> None:
    await used_up(queue, "a")
    assert await keeper.sweep() == 1
    run(keeper.run())
    run(Witness(queue.client, queue.timing, history).run())
    stranger = WorkQueue(await connect("stranger"), queue.timing)
    await used_up(stranger, "a", priority="low", publish=False)
    exhausted = await history.until(lambda e: e.kind == "exhausted" and e.attempt == 3)
    assert (exhausted.job, exhausted.source) == ("a", "broker")
    await history.until("dead_lettered", "a")
    await queue.publish("b")
    await used_up(stranger, "b", publish=False)
    await history.until("escalated", "b")
    delivery = await stranger.pull("low", worker="x", timeout=5)
    assert delivery
    await delivery.ack()
    assert (await history.until("acked", "b")).source == "broker"


# --- once, and never lost --------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False])
async def test_two_keepers_make_one_copy_of_each(
    queue: WorkQueue, keeper: DeadLetters, connect: Connect, together: bool
) -> None:
    """And the one who finds the original gone does not take that for a late ack."""
    other = await another(connect, queue, queue.history if together else None)
    jobs = [f"job-{number}" for number in range(10)]
    await used_up(queue, *jobs)
    kept = await asyncio.gather(keeper.sweep(), other.sweep())
    for sequence in range(1, 11):
        kept += [await keeper.bury(sequence, 2), await other.bury(sequence, 2)]
    assert sum(kept) == 10
    copies = [await queue.pull("low", worker="bo") for _ in jobs]
    assert sorted(copy.job for copy in copies if copy) == jobs
    assert await jobs_in_stream(queue.client) == 10
    histories = {id(its.history): its.history for its in (keeper, other)}.values()
    told = [event for its in histories for event in its]
    assert Counter(event.job for event in told if event.kind == "escalated") == dict.fromkeys(jobs, 1)
    assert not [event for event in told if event.kind == "late_success"]


async def test_two_stages_of_one_broker_escalate_once() -> None:
    """Advisories and sweeps of both, beside workers."""
    async with Stage(TIMING, escalate=True) as stage:
        url = f"nats://{stage.broker._token}@{stage.broker.address}"
        async with Stage(TIMING, url=url, escalate=True) as other:
            await stage.launch("ada", "bo")
            await stage.poison(*[f"poison-{number}" for number in range(5)], seconds=0)

            def moved() -> list[str]:
                return [e.job for its in (stage, other) for e in its.history.where("escalated")]

            await eventually(lambda: len(moved()) == 5)
            assert len(set(moved())) == 5
            await other.launch("cy", priority="low")
            await eventually(
                lambda: sum(len(its.history.where("dead_lettered")) for its in (stage, other)) == 5, within=15
            )
            assert len(await stage.letters()) == 5
            for its in (stage, other):
                assert not its.history.where("late_success")
                assert not its.failures


async def test_a_keeper_that_dies_after_the_copy_is_followed_by_one_that_makes_none(
    queue: WorkQueue, keeper: DeadLetters, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 0.2)
    await used_up(queue, "a")

    async def die(*_: object) -> bool:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(keeper._jetstream, "delete_msg", die)
        with pytest.raises(asyncio.CancelledError):
            await keeper.sweep()
    assert str(await summarise(keeper)) == "1 published = 1 waiting", "the copy counts, and the original no more"
    successor = await another(connect, queue)
    assert await successor.sweep() == 0
    await asyncio.sleep(0.2)
    assert await successor.sweep() == 1
    assert await jobs_in_stream(queue.client) == 1
    assert str(await summarise(successor)) == "1 published = 1 waiting"
    assert [event.job for event in successor.history.where("escalated")] == ["a"]


async def test_a_keeper_whose_removal_was_not_answered_goes_on_by_itself(
    queue: WorkQueue, keeper: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    await used_up(queue, "a")
    delete = keeper._jetstream.delete_msg

    async def delete_unheard(*args: Any) -> bool:
        await delete(*args)
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(keeper._jetstream, "delete_msg", delete_unheard)
        with pytest.raises(module.BrokerUnreachable):
            await keeper.sweep()
    assert str(await summarise(keeper)) == "1 published = 1 waiting"
    assert await keeper.sweep() == 1
    assert len(queue.history.where("escalated")) == 1
    assert str(await summarise(keeper)) == "1 published = 1 waiting"


# --- it lives after all ----------------------------------------------------------------------------


@pytest.mark.parametrize("copy", ["waits", "in flight", "done"])
async def test_an_ack_while_the_copy_is_made_withdraws_it(
    queue: WorkQueue, keeper: DeadLetters, history: History, run: Run, monkeypatch: pytest.MonkeyPatch, copy: str
) -> None:
    """Whatever a fast worker has made of the copy in that moment; the witness doesn't take it for a termination."""
    run(Witness(queue.client, queue.timing, history).run())
    await queue.publish("slow")
    first, zombie = [await queue.pull(worker="ada", timeout=5) for _ in range(2)]
    assert first
    assert zombie
    publish = keeper._jetstream.publish

    async def publish_then_the_worker_acks(*args: Any, **options: Any) -> Any:
        receipt = await publish(*args, **options)
        await zombie.ack()
        if copy != "waits":
            second = await queue.pull("low", worker="bo")
            assert second
            await second.ack() if copy == "done" else None
        return receipt

    monkeypatch.setattr(keeper._jetstream, "publish", publish_then_the_worker_acks)
    assert await keeper.bury(zombie.sequence, 2) is False
    assert await jobs_in_stream(queue.client) == 0
    assert [event.job for event in history.where("late_success")] == ["slow"]
    assert not history.where("escalated")
    assert str(await summarise(keeper)) == "1 published = 1 acked"
    await asyncio.sleep(0.7)  # the witness leaves a worker half a second for its own word
    assert not history.where("terminated")
    assert Timeline(history).jobs["slow"].state == "done"


async def test_an_ack_before_the_copy_is_a_late_success(
    queue: WorkQueue, keeper: DeadLetters, history: History
) -> None:
    await queue.publish("slow")
    _, zombie = [await queue.pull(worker="ada", timeout=5) for _ in range(2)]
    assert zombie
    await zombie.ack()
    assert await keeper.bury(zombie.sequence, 2) is False
    assert [event.job for event in history.where("late_success")] == ["slow"]
    assert str(await summarise(keeper)) == "1 published = 1 acked"


async def test_a_term_of_the_former_life_is_not_one_of_the_copy(
    queue: WorkQueue, keeper: DeadLetters, connect: Connect, run: Run
) -> None:
    """The broker sends its advisory even for a job that has left the stream; whose worker is none of ours."""
    history = queue.history
    run(Witness(queue.client, queue.timing, history).run())
    await queue.publish("slow", job_payload(seconds=0))
    stranger = WorkQueue(await connect("stranger"), queue.timing)
    deliveries: list[Delivery | None] = [await stranger.pull(worker="x", timeout=5) for _ in range(2)]
    assert await stranger.pull(worker="x", timeout=0.4) is None
    assert await keeper.sweep() == 1
    zombie = deliveries[1]
    assert zombie
    await zombie.term("too late")
    await asyncio.sleep(0.7)  # see above
    assert not history.where("terminated")
    assert await queue.pull("low", worker="bo")
    assert Timeline(history).jobs["slow"].state == "in flight"
