"""Dead letters: found with and without the broker's help, kept whole and once, withdrawn if they live, put back."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest
from conftest import Connect, Run, eventually, jobs_in_stream

from meetupq import dead_letters as module
from meetupq.broker import Broker
from meetupq.crew import Crew
from meetupq.dead_letters import DeadLetters
from meetupq.errors import LetterUnknown, NameInvalid, QueueError
from meetupq.history import History
from meetupq.stage import Stage
from meetupq.tasks import drop
from meetupq.timeline import Timeline
from meetupq.timing import Timing
from meetupq.work_queue import Delivery, WorkQueue
from meetupq.workers import QueueWorker, job_payload


async def exhaust(queue: WorkQueue, *jobs: str, **options: Any) -> dict[str, int]:
    """Publish jobs and fail them until the broker gives up; nobody asks for work then, so it says nothing.

    Returns their sequences.
    """
    sequences = {job: (await queue.publish(job, **options)).seq for job in jobs}
    for _ in range(queue.timing.max_deliver * len(jobs)):
        delivery = await queue.pull(worker="ada", timeout=5)
        assert delivery
        await delivery.nak()
    return sequences


async def held(queue: WorkQueue, job: str, attempt: int) -> Delivery:
    """Publish a job and hold the given attempt of it; the attempts before it were failed."""
    await queue.publish(job)
    for number in range(1, attempt + 1):
        delivery = await queue.pull(worker="ada", timeout=5)
        assert delivery
        if number < attempt:
            await delivery.nak()
    return delivery


async def another(connect: Connect, queue: WorkQueue) -> DeadLetters:
    """Another keeper of the same queue, in another process as it were: own connection, own history."""
    return DeadLetters(WorkQueue(await connect("another keeper"), queue.timing))


# --- what a letter is ------------------------------------------------------------------------------


async def test_a_poison_job_ends_as_a_letter_with_everything_in_it(
    queue: WorkQueue, dead_letters: DeadLetters, history: History, connect: Connect, run: Run
) -> None:
    """From the advisory alone, while a worker waits for work."""
    run(dead_letters.run(sweeps=lambda: False))
    run(QueueWorker("ada", WorkQueue(await connect("ada"), queue.timing, history)).run())
    payload = job_payload(seconds=0, ending="silence")
    receipt = await queue.publish("poison-1", payload, kind="thumb", headers={"Colour": "red"})
    event = await history.until("dead_lettered", "poison-1")
    [letter] = await dead_letters.letters()
    assert (letter.job, letter.subject, letter.kind) == ("poison-1", "jobs.high.thumb", "thumb")
    assert (letter.payload, letter.headers) == (payload, {"Colour": "red"})
    assert (letter.deliveries, letter.last_worker) == (3, "ada")
    assert letter.reason == "not acked in 3 deliveries"
    assert letter.at is not None
    assert (event.attempt, event.worker, event.revision, event.source) == (3, "ada", receipt.seq, "broker")
    assert await jobs_in_stream(queue.client) == 0
    kinds = [event.kind for event in history if event.job == "poison-1"]
    assert kinds == ["published", *["delivered", "failed"] * 3, "exhausted", "dead_lettered"]


async def test_the_brokers_advisory_is_a_pointer_only(queue: WorkQueue, dead_letters: DeadLetters) -> None:
    """Neither payload nor name: who wants to keep the job must fetch it."""
    advisories = await queue.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.jobs.worker_high")
    [sequence] = (await exhaust(queue, "poison-1", payload=b"precious")).values()
    assert await queue.pull(worker="ada", timeout=0.1) is None
    advisory = json.loads((await advisories.next_msg(timeout=5)).data)
    assert (advisory["stream_seq"], advisory["deliveries"]) == (sequence, 3)
    assert "precious" not in str(advisory)
    assert "poison-1" not in str(advisory)


async def test_a_job_without_a_name_is_kept_too(queue: WorkQueue, dead_letters: DeadLetters) -> None:
    receipt = await queue.client.jetstream().publish("jobs.high.other", b"raw")
    for _ in range(3):
        delivery = await queue.pull(worker="ada")
        assert delivery
        await delivery.nak()
    assert await dead_letters.sweep() == 1
    [letter] = await dead_letters.letters()
    assert (letter.job, letter.payload) == (f"job-{receipt.seq}", b"raw")


async def test_headers_that_were_for_the_broker_do_not_stop_the_copy(
    queue: WorkQueue, dead_letters: DeadLetters
) -> None:
    """nats-py adds one to a publish that names its stream; in a letter it would be refused for ever."""
    await queue.client.jetstream().publish("jobs.high.other", b"raw", stream="jobs", headers={"Colour": "red"})
    for _ in range(3):
        delivery = await queue.pull(worker="ada")
        assert delivery
        await delivery.nak()
    assert await dead_letters.sweep() == 1
    [letter] = await dead_letters.letters()
    assert (letter.payload, letter.headers) == (b"raw", {"Colour": "red"})


async def test_one_that_can_not_be_kept_does_not_stand_in_the_way_of_the_others(
    queue: WorkQueue, dead_letters: DeadLetters, history: History, run: Run
) -> None:
    """With its letter's headers it is more than the broker takes."""
    await exhaust(queue, "huge", payload=b"x" * (2**20 - 200))
    await exhaust(queue, "small")
    with pytest.raises(QueueError, match="can't keep the dead job 1: maximum payload exceeded"):
        await dead_letters.sweep()
    assert [letter.job for letter in await dead_letters.letters()] == ["small"]
    assert await jobs_in_stream(queue.client) == 1
    run(dead_letters.run())
    await exhaust(queue, "later")
    await history.until("dead_lettered", "later")


async def test_a_single_delivery_is_told_as_one(queue: WorkQueue, dead_letters: DeadLetters) -> None:
    await exhaust(queue, "a")
    await dead_letters.bury(1, 1)
    assert [letter.reason for letter in await dead_letters.letters()] == ["not acked in 1 delivery"]


async def three_kinds(queue: WorkQueue, dead_letters: DeadLetters) -> None:
    for job, kind in (("thumb-1", "thumb"), ("thumb-2", "thumb"), ("resize-1", "resize")):
        await exhaust(queue, job, kind=kind)
        await dead_letters.sweep()


@pytest.mark.parametrize(
    ("which", "jobs"),
    [
        ({}, ["thumb-1", "thumb-2", "resize-1"]),
        ({"kind": "thumb"}, ["thumb-1", "thumb-2"]),
        ({"job": "*-1"}, ["thumb-1", "resize-1"]),
        ({"job": "*-1", "kind": "res*"}, ["resize-1"]),
        ({"worker": "ada"}, ["thumb-1", "thumb-2", "resize-1"]),
        ({"worker": "bo"}, []),
        ({"job": ""}, []),
        ({"job": "[a"}, []),
    ],
)
async def test_letters_are_chosen_and_redriven_by_kind_name_and_worker(
    queue: WorkQueue, dead_letters: DeadLetters, which: dict[str, str], jobs: list[str]
) -> None:
    await three_kinds(queue, dead_letters)
    assert [letter.job for letter in await dead_letters.letters(**which)] == jobs
    assert await dead_letters.redrive_all(**which) == jobs
    assert len(await dead_letters.letters()) == 3 - len(jobs)


@pytest.mark.parametrize("letters", [0, 1])
async def test_a_choice_that_can_not_be_meant_is_refused(
    queue: WorkQueue, dead_letters: DeadLetters, letters: int
) -> None:
    """Also while there is no letter yet that it could be compared with."""
    await exhaust(queue, *["a"] * letters)
    await dead_letters.sweep()
    for pattern in (5, None, b"resize", ["resize"]):
        for call in (dead_letters.letters, dead_letters.redrive_all):
            with pytest.raises(NameInvalid, match=r"kind is .*, but letters are chosen by a text such as 'resize-\*'"):
                await call(kind=pattern)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
                await call(colour="red")
    for letter in await dead_letters.letters():
        with pytest.raises(NameInvalid, match="job is 5"):
            letter.matches(job=5)  # type: ignore[arg-type]


async def test_letters_are_listed_oldest_first(queue: WorkQueue, dead_letters: DeadLetters) -> None:
    assert await dead_letters.letters() == []
    for job in ("b", "a", "c"):
        await exhaust(queue, job)
        await dead_letters.sweep()
    assert [letter.job for letter in await dead_letters.letters()] == ["b", "a", "c"]


async def test_ensuring_again_keeps_the_letters_and_a_foreign_stream_is_refused(
    queue: WorkQueue, dead_letters: DeadLetters
) -> None:
    await exhaust(queue, "a")
    await dead_letters.sweep()
    await dead_letters.ensure()
    assert len(await dead_letters.letters()) == 1
    await queue.client.jetstream().delete_stream("dead_letters")
    await queue.client.jetstream().add_stream(name="dead_letters", subjects=["other"])
    with pytest.raises(QueueError, match="can't set up the stream dead_letters"):
        await dead_letters.ensure()


# --- silence, and the sweep ------------------------------------------------------------------------


async def test_with_all_workers_dead_the_broker_says_nothing_until_the_sweep(
    broker: Broker, connect: Connect, history: History, run: Run
) -> None:
    """The advisory is only sent while somebody asks for work. The dead job stays in the stream, and no letter comes,
    for as long as you like; here for twice the time in which it should have died. Then one sweep is enough."""
    timing = Timing.preset("ci").but(backoff=(0.4, 0.4, 1.5))  # long enough to kill everybody in
    queue = WorkQueue(await connect(), timing, history)
    letters = DeadLetters(queue)
    await queue.ensure()
    await letters.ensure()
    run(letters.run(sweeps=lambda: False))
    crew = Crew(broker, timing, history)
    await crew.launch("ada")
    jobs = ["poison-1", "poison-2", "poison-3"]
    for job in jobs:
        await queue.publish(job, job_payload(seconds=0, ending="silence"))
    await history.until("failed", count=9)
    await crew.kill("ada")
    await asyncio.sleep(2 * timing.time_to_dead)
    assert not history.where("exhausted")
    assert await letters.letters() == []
    assert await jobs_in_stream(queue.client) == 3

    assert await letters.sweep() + len(history.where("exhausted")) >= 3
    await history.until("dead_lettered", count=3)
    assert sorted(letter.job for letter in await letters.letters()) == jobs
    assert Counter(event.job for event in history.where("dead_lettered")) == dict.fromkeys(jobs, 1)
    assert await jobs_in_stream(queue.client) == 0
    await crew.close()


async def test_one_sweep_brings_each_dead_job_once_and_the_next_none(
    queue: WorkQueue, dead_letters: DeadLetters
) -> None:
    """Nobody listens to the advisory here."""
    jobs = [f"job-{number}" for number in range(12)]
    await exhaust(queue, *jobs)
    assert await dead_letters.sweep() == 12
    assert await dead_letters.sweep() == 0
    assert sorted(letter.job for letter in await dead_letters.letters()) == sorted(jobs)


async def test_a_sweep_looks_at_every_priority_and_leaves_the_living_alone(
    queue: WorkQueue, dead_letters: DeadLetters
) -> None:
    await exhaust(queue, "dead")
    await queue.publish("low-dead", priority="low")
    for _ in range(3):
        delivery = await queue.pull("low", worker="ada", timeout=5)
        assert delivery
        await delivery.nak()
    await queue.publish("low-waiting", priority="low")
    await queue.publish("waiting")
    assert await dead_letters.sweep() == 2
    assert [letter.job for letter in await dead_letters.letters()] == ["dead", "low-dead"]
    assert await jobs_in_stream(queue.client) == 2


async def test_a_dead_job_behind_one_in_flight_is_found_when_that_one_has_ended(
    queue: WorkQueue, dead_letters: DeadLetters
) -> None:
    """The broker's ack floor stands still at a job that was never acked, as long as anything else is in flight. So
    without the advisory, which nobody heard here, the sweep must wait until nothing is."""
    await exhaust(queue, "dead")
    in_flight = await held(queue, "in-flight", 1)
    assert await dead_letters.sweep() == 0
    await in_flight.ack()
    assert await dead_letters.sweep() == 1
    assert [letter.job for letter in await dead_letters.letters()] == ["dead"]


async def test_who_stops_the_keeper_is_heard_at_once() -> None:
    """When the call returns, nothing is under way any more that began before it."""
    async with Stage("ci") as stage:
        await stage.set_keeper(burying=False)
        await exhaust(stage.queue, *(f"job-{number}" for number in range(12)))
        await stage.set_keeper(burying=True)
        await stage.history.until("dead_lettered")
        await stage.set_keeper(burying=False)
        kept = len(await stage.letters())
        await exhaust(stage.queue, "late-1")
        await asyncio.sleep(2 * stage.timing.sweep)  # that nothing happens is the subject
        assert len(await stage.letters()) == kept


async def test_with_the_advisory_a_dead_job_behind_one_in_flight_is_found_at_once(
    queue: WorkQueue, dead_letters: DeadLetters, history: History, run: Run
) -> None:
    """And it is the sweep's own pull request that makes the broker send it."""
    run(dead_letters.run())
    in_flight = await held(queue, "in-flight", 1)
    await exhaust(queue, "dead")
    await in_flight.in_progress()
    await history.until("dead_lettered", "dead")
    await in_flight.ack()


async def test_a_job_whose_last_attempt_still_runs_is_not_swept_away(
    queue: WorkQueue, dead_letters: DeadLetters
) -> None:
    delivery = await held(queue, "slow", 3)
    assert await dead_letters.sweep() == 0
    await delivery.in_progress()
    assert await dead_letters.sweep() == 0
    await delivery.ack()
    assert await dead_letters.letters() == []


async def test_a_sweep_every_20_ms_beside_workers_costs_no_delivery_and_steals_no_job(
    connect: Connect, history: History, run: Run
) -> None:
    """Delivery numbers stay consecutive, good jobs are delivered once, poison ones exactly three times."""
    timing = Timing.preset("ci").but(sweep=0.02)
    queue = WorkQueue(await connect(), timing, history)
    letters = DeadLetters(queue)
    await queue.ensure()
    await letters.ensure()
    run(letters.run())
    for name in ("ada", "bo", "cy"):
        run(QueueWorker(name, WorkQueue(await connect(name), timing, history)).run())
    good = [f"good-{number}" for number in range(40)]
    poison = [f"poison-{number}" for number in range(6)]
    for number, job in enumerate(good):
        await queue.publish(job, job_payload(seconds=0.02))
        if number < len(poison):
            await queue.publish(poison[number], job_payload(seconds=0, ending="silence"))
    await history.until("dead_lettered", count=len(poison), within=20)
    await history.until("acked", count=len(good))
    attempts = {job: [e.attempt for e in history.where("delivered", job)] for job in good + poison}
    assert attempts == {job: [1] if job in good else [1, 2, 3] for job in good + poison}
    assert sorted(letter.job for letter in await letters.letters()) == poison
    assert await jobs_in_stream(queue.client) == 0


async def test_the_keeper_outlives_a_kill_of_the_broker(
    broker: Broker, queue: WorkQueue, dead_letters: DeadLetters, history: History, run: Run
) -> None:
    run(dead_letters.run())
    await broker.kill()
    await broker.start()
    await eventually(lambda: queue.client.is_connected)
    await exhaust(queue, "poison-1")
    await history.until("dead_lettered", "poison-1", within=10)


# --- once, and never lost --------------------------------------------------------------------------


async def test_a_keeper_that_dies_between_copy_and_removal_leaves_one_letter(
    queue: WorkQueue, dead_letters: DeadLetters, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when the broker has forgotten the letter's Msg-Id by then, as it does after two minutes."""
    monkeypatch.setattr(module, "GRACE", 0.3)
    config = (await queue.client.jetstream().stream_info("dead_letters")).config
    config.duplicate_window = 0.1
    await queue.client.jetstream().update_stream(config)
    await exhaust(queue, "poison-1")

    async def die(*_: object) -> bool:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(dead_letters._jetstream, "delete_msg", die)
        with pytest.raises(asyncio.CancelledError):
            await dead_letters.sweep()
    assert (len(await dead_letters.letters()), await jobs_in_stream(queue.client)) == (1, 1)
    successor = await another(connect, queue)
    assert await successor.sweep() == 0, "the one who wrote the letter is given time to remove the original"
    await asyncio.sleep(0.3)
    assert await successor.sweep() == 1
    assert (len(await successor.letters()), await jobs_in_stream(queue.client)) == (1, 0)
    assert len(successor.history.where("dead_lettered")) == 1
    assert not dead_letters.history.where("late_success")


async def test_a_keeper_whose_removal_was_not_answered_goes_on_by_itself(
    queue: WorkQueue, dead_letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker did remove the job, and its answer was lost: the history hears of the letter all the same."""
    await exhaust(queue, "poison-1")
    delete = dead_letters._jetstream.delete_msg

    async def delete_unheard(*args: Any) -> bool:
        await delete(*args)
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(dead_letters._jetstream, "delete_msg", delete_unheard)
        with pytest.raises(module.BrokerUnreachable):
            await dead_letters.sweep()
    assert await dead_letters.sweep() == 1
    assert len(await dead_letters.letters()) == 1
    assert len(queue.history.where("dead_lettered")) == 1
    assert not queue.history.where("late_success")


async def test_two_keepers_write_one_letter_per_job_and_lose_none(
    queue: WorkQueue, dead_letters: DeadLetters, connect: Connect
) -> None:
    other = await another(connect, queue)
    jobs = [f"job-{number}" for number in range(30)]
    await exhaust(queue, *jobs)
    kept = await asyncio.gather(dead_letters.sweep(), other.sweep(), other.sweep())
    assert sum(kept) == len(jobs)
    assert sorted(letter.job for letter in await other.letters()) == sorted(jobs)
    assert await jobs_in_stream(queue.client) == 0
    events = [*dead_letters.history.where("dead_lettered"), *other.history.where("dead_lettered")]
    assert Counter(event.job for event in events) == dict.fromkeys(jobs, 1)
    late = [*dead_letters.history.where("late_success"), *other.history.where("late_success")]
    assert not late


async def test_two_keepers_at_work_beside_workers(
    queue: WorkQueue, dead_letters: DeadLetters, connect: Connect, history: History, run: Run
) -> None:
    """Advisories and sweeps of both at once."""
    other = await another(connect, queue)
    run(dead_letters.run())
    run(other.run())
    run(QueueWorker("ada", WorkQueue(await connect("ada"), queue.timing, history)).run())
    jobs = [f"poison-{number}" for number in range(8)]
    for job in jobs:
        await queue.publish(job, job_payload(seconds=0, ending="silence"))

    def kept() -> list[str]:
        return [event.job for its in (history, other.history) for event in its.where("dead_lettered")]

    await eventually(lambda: len(kept()) >= len(jobs), within=20)
    assert sorted(kept()) == jobs
    assert sorted(letter.job for letter in await other.letters()) == jobs
    assert await jobs_in_stream(queue.client) == 0


async def test_a_restart_of_the_broker_buries_nobody_again(
    broker: Broker, queue: WorkQueue, dead_letters: DeadLetters, connect: Connect, history: History
) -> None:
    await exhaust(queue, "poison-1")
    assert await dead_letters.sweep() == 1
    await broker.kill()
    await broker.start()
    await eventually(lambda: queue.client.is_connected)
    newcomer = await another(connect, queue)
    assert await queue.pull(worker="ada", timeout=1.0) is None
    assert (await dead_letters.sweep(), await newcomer.sweep()) == (0, 0)
    assert len(await newcomer.letters()) == 1
    assert len(history.where("dead_lettered")) == 1
    assert not newcomer.history.snapshot()


async def test_a_letter_that_a_worker_wrote_is_not_told_again_by_the_keeper(
    queue: WorkQueue, dead_letters: DeadLetters, connect: Connect, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rejected the job at its last attempt, and died before the term: the keeper removes the original, once there
    was time enough for the worker to do so, and nobody else."""
    monkeypatch.setattr(module, "GRACE", 0.2)
    delivery = await held(queue, "a", 3)
    await dead_letters.keep(delivery, "no such\n image")
    assert await queue.pull(worker="bo", timeout=queue.timing.patience(3) + 0.2) is None
    keeper = await another(connect, queue)
    for its in (dead_letters, keeper):
        assert await its.bury(delivery.sequence, 3) is False
    await asyncio.sleep(0.2)
    for its, kept in ((keeper, True), (dead_letters, False)):
        assert await its.bury(delivery.sequence, 3) is kept
        assert await jobs_in_stream(queue.client) == 0
    [letter] = await dead_letters.letters()
    assert (letter.reason, letter.last_worker, letter.deliveries) == ("no such image", "ada", 3)
    for its in (history, keeper.history):
        assert [(e.detail, e.worker) for e in its.where("dead_lettered")] == [("no such image", "ada")]
    assert not history.where("late_success") + keeper.history.where("late_success")


async def test_what_was_heard_and_must_wait_is_not_forgotten_without_the_sweep(
    queue: WorkQueue, dead_letters: DeadLetters, history: History, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 0.3)
    delivery = await held(queue, "a", 3)
    await dead_letters.keep(delivery, "no such image")
    run(dead_letters.run(sweeps=lambda: False))
    await queue.client.flush()  # it listens
    await delivery.nak()
    await queue.pull(worker="bo", timeout=0.1)
    await history.until("exhausted", "a")
    async with asyncio.timeout(5):
        while await jobs_in_stream(queue.client):
            await asyncio.sleep(0.02)
    assert len(await dead_letters.letters()) == 1


# --- a keeper that looks away ----------------------------------------------------------------------


async def test_a_keeper_that_buries_nothing_remembers_what_it_hears(
    queue: WorkQueue, dead_letters: DeadLetters, history: History, run: Run
) -> None:
    burying = False
    run(dead_letters.run(sweeps=lambda: False, buries=lambda: burying))
    await queue.client.flush()  # it listens
    await exhaust(queue, "a")
    assert await queue.pull(worker="ada", timeout=0.1) is None
    await history.until("exhausted", "a")
    await asyncio.sleep(queue.timing.sweep + 0.1)  # that nothing happens is the subject
    assert (await dead_letters.letters(), await jobs_in_stream(queue.client)) == ([], 1)
    burying = True
    event = await history.until("dead_lettered", "a")
    assert (event.attempt, event.detail) == (3, "not acked in 3 deliveries")
    assert await jobs_in_stream(queue.client) == 0


async def test_an_ack_while_the_keeper_looks_away_is_a_late_success(
    queue: WorkQueue, dead_letters: DeadLetters, history: History, run: Run
) -> None:
    """The advisory was heard, and yet no letter comes: who looks before he buries finds the job done."""
    burying = False
    run(dead_letters.run(buries=lambda: burying))
    await queue.client.flush()  # it listens
    zombie = await held(queue, "slow", 3)
    assert await queue.pull(worker="bo", timeout=queue.timing.patience(3) + 0.2) is None
    await history.until("exhausted", "slow")
    await zombie.ack()
    burying = True
    await history.until("late_success", "slow")
    assert await dead_letters.letters() == []
    line = Timeline(history).jobs["slow"]
    assert (line.state, line.late) == ("done", True)


async def test_a_term_while_the_keeper_looks_away_is_no_success(
    queue: WorkQueue, dead_letters: DeadLetters, history: History
) -> None:
    zombie = await held(queue, "slow", 3)
    assert await queue.pull(worker="bo", timeout=queue.timing.patience(3) + 0.2) is None
    await zombie.term("no such image")
    assert await dead_letters.bury(zombie.sequence, 3) is False
    assert not history.where("late_success")
    assert await dead_letters.letters() == []
    assert Timeline(history).jobs["slow"].state == "terminated"


# --- it lives after all ----------------------------------------------------------------------------


async def test_an_ack_after_the_death_and_before_the_keeper_is_a_late_success(
    queue: WorkQueue, dead_letters: DeadLetters, timing: Timing, history: History, run: Run
) -> None:
    delivery = await held(queue, "slow", 3)
    advisories = await queue.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.jobs.*")
    assert await queue.pull(worker="bo", timeout=timing.patience(3) + 0.5) is None
    advisory = json.loads((await advisories.next_msg(timeout=5)).data)
    await delivery.ack()
    assert await dead_letters.bury(advisory["stream_seq"], advisory["deliveries"]) is False
    [late] = history.where("late_success")
    assert (late.job, late.source) == ("slow", "inferred")
    assert await dead_letters.letters() == []
    assert await dead_letters.bury(advisory["stream_seq"], advisory["deliveries"]) is False
    assert len(history.where("late_success")) == 1
    assert Timeline(history).jobs["slow"].state == "done"


async def test_an_ack_while_the_letter_is_written_withdraws_it(
    queue: WorkQueue, dead_letters: DeadLetters, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = await held(queue, "slow", 3)
    publish = dead_letters._jetstream.publish

    async def publish_then_the_worker_acks(*args: Any, **options: Any) -> Any:
        receipt = await publish(*args, **options)
        await delivery.ack()
        return receipt

    monkeypatch.setattr(dead_letters._jetstream, "publish", publish_then_the_worker_acks)
    assert await dead_letters.bury(delivery.sequence, 3) is False
    assert await dead_letters.letters() == []
    assert [event.job for event in history.where("late_success")] == ["slow"]
    assert not history.where("dead_lettered")


# --- redrive ---------------------------------------------------------------------------------------


async def test_a_redriven_job_starts_at_1_again_and_gets_done(
    queue: WorkQueue, dead_letters: DeadLetters, history: History
) -> None:
    first = await exhaust(queue, "poison-1", payload=b"precious", kind="thumb", headers={"Colour": "red"})
    await dead_letters.sweep()
    [letter] = await dead_letters.letters()
    assert await dead_letters.redrive(letter.number) == "poison-1"
    assert await dead_letters.letters() == []
    delivery = await queue.pull(worker="bo")
    assert delivery
    assert (delivery.job, delivery.attempt, delivery.payload) == ("poison-1", 1, b"precious")
    assert (delivery.subject, delivery.headers["Colour"]) == ("jobs.high.thumb", "red")
    assert delivery.sequence > first["poison-1"]
    assert delivery.headers["Nats-Msg-Id"] != "poison-1"
    assert not [name for name in delivery.headers if name.startswith("Meetupq-") and name != "Meetupq-Job"]
    await delivery.ack()
    job = Timeline(history).jobs["poison-1"]
    assert (job.state, len(job.redriven), [attempt.number for attempt in job.attempts]) == ("done", 1, [1, 2, 3, 1])
    assert await jobs_in_stream(queue.client) == 0


async def test_a_redriven_job_that_fails_again_dies_again(queue: WorkQueue, dead_letters: DeadLetters) -> None:
    await exhaust(queue, "poison-1")
    for _ in range(2):
        await dead_letters.sweep()
        await dead_letters.redrive((await dead_letters.letters())[0].number)
        for attempt in (1, 2, 3):
            delivery = await queue.pull(worker="ada")
            assert delivery
            assert delivery.attempt == attempt
            await delivery.nak()
    assert await dead_letters.sweep() == 1
    assert [letter.job for letter in await dead_letters.letters()] == ["poison-1"]


async def test_redriving_all_empties_the_letters(queue: WorkQueue, dead_letters: DeadLetters) -> None:
    await exhaust(queue, "a", "b", "c")
    await dead_letters.sweep()
    letters = [letter.job for letter in await dead_letters.letters()]
    assert await dead_letters.redrive_all() == letters
    assert await dead_letters.letters() == []
    assert await jobs_in_stream(queue.client) == 3
    assert await dead_letters.redrive_all() == []


async def test_two_clicks_at_once_redrive_once(queue: WorkQueue, dead_letters: DeadLetters, history: History) -> None:
    await exhaust(queue, "a", "b", "c")
    await dead_letters.sweep()
    results = await asyncio.gather(dead_letters.redrive(1), dead_letters.redrive(1), return_exceptions=True)
    assert results[0] == "a"
    assert isinstance(results[1], LetterUnknown)
    both = await asyncio.gather(dead_letters.redrive_all(), dead_letters.redrive_all())
    assert sorted(both[0] + both[1]) == ["b", "c"]
    assert Counter(event.job for event in history.where("redriven")) == {"a": 1, "b": 1, "c": 1}
    assert await jobs_in_stream(queue.client) == 3
    assert not history.where("duplicate")


@pytest.mark.parametrize("number", [0, 2, 999, -1])
async def test_a_letter_that_is_not_there_is_unknown(queue: WorkQueue, dead_letters: DeadLetters, number: int) -> None:
    await exhaust(queue, "a")
    await dead_letters.sweep()
    with pytest.raises(LetterUnknown, match=f"there is no dead letter {number}"):
        await dead_letters.redrive(number)
    assert not queue.history.where("redriven")
    await dead_letters.redrive(1)
    with pytest.raises(LetterUnknown):
        await dead_letters.redrive(1)


async def test_a_redrive_that_was_cut_off_can_be_repeated(
    queue: WorkQueue, dead_letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    await exhaust(queue, "a")
    await dead_letters.sweep()

    async def die(*_: object) -> bool:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(dead_letters._jetstream, "delete_msg", die)
        with pytest.raises(asyncio.CancelledError):
            await dead_letters.redrive(1)
    assert await dead_letters.redrive(1) == "a"
    assert len(queue.history.where("redriven")) == 1
    assert await jobs_in_stream(queue.client) == 1
    assert await dead_letters.letters() == []


async def test_before_ensure_it_says_so(queue: WorkQueue) -> None:
    letters = DeadLetters(queue)
    for call in (letters.letters, lambda: letters.redrive(1)):
        with pytest.raises(QueueError, match="stream not found"):
            await call()


# --- the big one -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_of_200_jobs_under_fire_each_is_done_or_dead_once_and_none_is_lost(seed: int) -> None:
    """Five workers, killed and launched again at random (seeded) moments; the history and the broker must agree."""
    dice = random.Random(seed)
    names = ["ada", "bo", "cy", "di", "eve"]
    async with Stage("ci") as stage:
        await stage.launch(*names)
        jobs = [f"job-{number}" for number in range(200)]
        poison = set(dice.sample(jobs, 12))
        for job in jobs:
            await stage.publish(job, seconds=dice.uniform(0.0, 0.2), ending="silence" if job in poison else "ack")

        async def fire(name: str, dice: random.Random) -> None:
            while True:
                await asyncio.sleep(dice.uniform(0.05, 1.2))
                await stage.kill(name)
                await asyncio.sleep(dice.uniform(0.0, 0.3))
                await stage.relaunch(name)

        under_fire = [asyncio.ensure_future(fire(name, random.Random(f"{seed} {name}"))) for name in names]
        await asyncio.sleep(8)
        await drop(*under_fire)
        await stage.launch(*names)

        def open_jobs() -> list[str]:
            timeline = Timeline(stage.history)
            return [job for job in jobs if timeline.jobs[job].state not in ("done", "dead")]

        await eventually(lambda: not open_jobs(), within=30)
        await asyncio.sleep(1.0)  # anything that would come late, such as a second letter
        assert not stage.failures
        letters = Counter(letter.job for letter in await stage.letters())
        left = await jobs_in_stream(stage.queue.client)
        history = stage.history

    timeline = Timeline(history)
    done = {job for job in jobs if timeline.jobs[job].state == "done"}
    dead = {job for job in jobs if timeline.jobs[job].state == "dead"}
    assert left == 0
    assert letters == dict.fromkeys(dead, 1), "the broker's letters are the history's dead"
    assert done | dead == set(jobs)
    assert poison <= dead
    assert Counter(event.job for event in history.where("dead_lettered")) == letters
    assert {event.job for event in history.where("acked")} | {e.job for e in history.where("late_success")} >= done
    assert len(history.where("killed")) > 20, "otherwise nothing was shown"
    check_that_counts_add_up_at_every_moment(history)


def check_that_counts_add_up_at_every_moment(history: History) -> None:
    timeline, heard = Timeline(), set()
    for event in history:
        timeline.feed([event])
        heard |= {event.job} - {""}
        assert sum(timeline.counts.values()) == len(heard)
