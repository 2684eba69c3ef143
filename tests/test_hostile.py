"""What a slip, a learner's own code, or a broker that goes away must not break."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually
from nats.js.errors import ServiceUnavailableError

from meetupq import Lab
from meetupq.broker import Broker
from meetupq.dead_letters import DeadLetters
from meetupq.errors import (
    BrokerUnreachable,
    JobRefused,
    LabClosed,
    LeaseError,
    LookInvalid,
    MeetupqError,
    NameInvalid,
    UnknownWorker,
)
from meetupq.hiring import Job
from meetupq.history import Event, History
from meetupq.ink import fit
from meetupq.panels import QueuePanel
from meetupq.stage import Stage
from meetupq.work_queue import WorkQueue


async def test_lease_workers_outlive_a_broker_that_is_away_for_longer_than_a_ttl() -> None:
    async with Stage("ci") as stage:
        await stage.add_work("import-eu", seconds=60)
        await stage.launch("ada", "bo", role="leases")
        await stage.history.until("claimed", job="import-eu")
        await stage.broker.kill()
        await stage.history.until("lost", job="import-eu", within=10)
        await stage.history.until("broker_killed", within=5)
        await asyncio.sleep(stage.timing.lease_ttl)  # the length of the outage is the subject
        await stage.broker.start()
        back = stage.history.now()
        await stage.history.until(
            lambda event: event.kind in ("claimed", "reclaimed", "renewed") and event.at > back, within=15
        )
        assert stage.crew.at_work == ["ada", "bo"]
        assert stage.failures == []


async def test_a_killed_server_is_written_down_and_so_is_its_return() -> None:
    async with Stage("ci") as stage:
        os.kill(stage.broker.pid, signal.SIGKILL)
        await stage.history.until("broker_killed", within=5)
        await stage.broker.start()
        await stage.history.until("broker_started", count=2, within=5)


@pytest.mark.parametrize("priority", ["", "a.b", "medium", None, 5])
async def test_a_worker_for_a_priority_without_a_consumer_is_refused(priority: object) -> None:
    async with Stage("ci") as stage:
        with pytest.raises(UnknownWorker, match="priority"):
            await stage.crew.launch("ada", Job(priority=priority))  # type: ignore[arg-type]
        assert stage.crew.names == []


async def test_a_condition_that_raises_does_so_where_it_is_awaited() -> None:
    history = History()

    def faulty(event: Event) -> bool:
        raise ZeroDivisionError(event.kind)

    waiting = asyncio.create_task(history.until(faulty, within=5))
    await asyncio.sleep(0)
    history.append("published", "resize-1")  # does not raise here
    with pytest.raises(ZeroDivisionError, match="published"):
        await waiting


async def test_rubbish_on_the_brokers_own_subjects_stops_nobody() -> None:
    async with Stage("ci") as stage:
        client = await stage.broker.connect("learner")
        jetstream = client.jetstream()
        for subject in ("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.jobs.x", "$JS.EVENT.METRIC.CONSUMER.ACK.jobs.x"):
            for data in (b"", b"{}", b"[1]", b'{"stream_seq": "x", "deliveries": 1}', b"[" * 100_000, b"\xff"):
                await client.publish(subject, data)
        leases, work = await jetstream.key_value("leases"), await jetstream.key_value("work")
        for number, data in enumerate((b"", b"[" * 100_000, b'{"steps": "x"}', b'{"owner": 1}', b"\xff")):
            await leases.put(f"rubbish-{number}", data)
            await work.put(f"rubbish-{number}", data)
            await work.put(f"a.b/c={number}", data)
        for subject in ("dead.foo", "dead.1.foo", "dead.1.jobs.high"):
            await jetstream.publish(subject, b"not a letter")
        await stage.launch("ada")
        await stage.launch("bo", role="leases")
        await stage.poison("poison-1", seconds=0.05)
        await stage.add_work("import-eu", seconds=0.5)
        await stage.history.until("dead_lettered", job="poison-1")
        await stage.history.until("finished", job="import-eu")
        assert [letter.job for letter in await stage.letters()] == ["poison-1"]
        assert await stage.redrive_all() == ["poison-1"]
        assert stage.failures == []
        await client.close()


async def test_a_frozen_server_is_given_up_on_in_time() -> None:
    async with Broker() as broker:
        os.kill(broker.pid, signal.SIGSTOP)
        with pytest.raises(BrokerUnreachable, match="can't connect"):
            await asyncio.wait_for(broker.connect(), 10)


async def test_a_temp_folder_with_any_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / 'ü 日本 "quoted" $HOME'
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    async with Broker() as broker:
        assert (await broker.connect()).is_connected
    assert not any(folder.iterdir())


def test_one_name_opened_by_many_threads_leaves_one_lab() -> None:
    before = threading.active_count()
    labs: list[Lab] = []
    threads = [threading.Thread(target=lambda: labs.append(Lab("ci", name="shared"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(not lab.closed for lab in labs) == 1
    for lab in labs:
        lab.close()
    assert threading.active_count() == before


def test_a_lab_without_a_proper_name_is_not_opened() -> None:
    before = threading.active_count()
    with pytest.raises(NameInvalid):
        Lab("ci", name=[])  # type: ignore[arg-type]
    assert threading.active_count() == before


def test_a_call_under_way_while_the_lab_closes_says_that_it_is_closed() -> None:
    lab = Lab("ci", name="closing")
    outcome: list[BaseException] = []

    def publish() -> None:
        try:
            lab.publish(count=50_000)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    deadline = time.monotonic() + 5
    while len(lab.history) < 50 and time.monotonic() < deadline:
        time.sleep(0.005)
    lab.close()
    thread.join()
    assert [type(error) for error in outcome] == [LabClosed]


def test_nonsense_arguments_get_a_sentence_and_change_nothing() -> None:
    with Lab("ci", name="nonsense") as lab:
        size = len(lab.history)
        for refused, call in [
            (NameInvalid, lambda: lab.publish("good-1", "bad.name", "good-2")),
            (NameInvalid, lambda: lab.publish("x", kind="a.b")),
            (JobRefused, lambda: lab.publish(count=-5)),
            (JobRefused, lambda: lab.publish("x", seconds=float("nan"))),
            (JobRefused, lambda: lab.publish("x", seconds="x")),  # type: ignore[arg-type]
            (JobRefused, lambda: lab.publish("x", ending="explode")),  # type: ignore[arg-type]
            (JobRefused, lambda: lab.publish("x", ending=["ack"])),  # type: ignore[arg-type]
            (JobRefused, lambda: lab.publish("x", ending="nak", after=0.5)),  # on top of a backoff
            (JobRefused, lambda: lab.publish("x", ending="nak", after=-1)),
            (JobRefused, lambda: lab.publish("x", ending="nak", after="x")),  # type: ignore[arg-type]
            (JobRefused, lambda: lab.slow("x", seconds=-1)),
            (JobRefused, lambda: lab.launch("ada", prefetch=0)),
            (JobRefused, lambda: lab.launch("ada", prefetch="3")),  # type: ignore[arg-type]
            (UnknownWorker, lambda: lab.heartbeats("nobody", True)),
            (UnknownWorker, lambda: lab.prefetch("nobody", 3)),
            (UnknownWorker, lambda: lab.prefetch(["ada"], 3)),  # type: ignore[arg-type]
            (LookupError, lambda: lab.letter("nobody")),
            (LookupError, lambda: lab.letter(5)),  # type: ignore[arg-type]
            (NameInvalid, lambda: lab.letters(kind=5)),  # type: ignore[arg-type]
            (NameInvalid, lambda: lab.redrive_all(job=None)),  # type: ignore[arg-type]
            (NameInvalid, lambda: lab.add_work("good", "a b", seconds=1)),
            (LeaseError, lambda: lab.add_work("good", seconds=float("inf"))),
            (LeaseError, lambda: lab.add_work("good", seconds=1, steps=0)),
            (LeaseError, lambda: lab.add_work("good", seconds=1, steps=1.5)),  # type: ignore[arg-type]
            (LeaseError, lambda: lab.owner("nothing")),
            (LookupError, lambda: lab.redrive(True)),
            (LookupError, lambda: lab.redrive(2**70)),
            (LookupError, lambda: lab.redrive("x")),  # type: ignore[arg-type]
            (UnknownWorker, lambda: lab.kill_all("quwue")),  # type: ignore[arg-type]
            (UnknownWorker, lambda: lab.kill(["ada"])),  # type: ignore[arg-type]
            (NameInvalid, lambda: lab.launch("ada", ["bo"])),  # type: ignore[arg-type]
            (MeetupqError, lambda: lab.press("nonsense")),
            (MeetupqError, lambda: lab.press("_fail")),
            (LookInvalid, lambda: lab.queue_panel(fps=0)),
            (LookInvalid, lambda: lab.queue_panel(width=10**6)),
            (LookInvalid, lambda: lab.lease_panel(pixel_ratio=float("nan"))),
        ]:
            with pytest.raises(refused) as caught:
                call()
            assert isinstance(caught.value, MeetupqError)
            assert "\n" not in str(caught.value)
        assert len(lab.history) == size


def test_a_delay_on_top_of_a_backoff_is_refused_and_names_both() -> None:
    with Lab("ci", name="delay") as lab:
        with pytest.raises(JobRefused, match=r"a nak after 0\.5 s on a queue with the backoff \(0\.6, 0\.8, 1\.0\) s"):
            lab.publish("x", ending="nak", after=0.5)
        with pytest.raises(
            JobRefused, match="no job ends with 'explode': choose 'ack', 'silence', 'nak', 'reject', 'te"
        ):
            lab.publish("x", ending="explode")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            lab.letters(colour="red")  # type: ignore[call-arg]


def test_a_panel_that_was_closed_is_made_anew() -> None:
    with Lab("ci", name="anew") as lab:
        first = lab.queue_panel()
        first.close()
        second = lab.queue_panel()
        assert isinstance(second, QueuePanel)
        assert second is not first
        assert not second.ended


def test_a_name_of_thousands_of_letters_is_cut_at_once() -> None:
    """Measuring every possible cut of it would take minutes, and the panel would stand still."""
    measured = fit("j" * 100_000, 80)
    assert measured.endswith("…")
    assert len(measured) < 40


# --- jobs that only an outsider would publish, and brokers at their worst ---------------------------


async def dies(stage: Stage, *, within: float = 10) -> None:
    """Until the keeper has moved a job that nobody can do, published the ordinary way: so it is alive."""
    await stage.publish("after-1", ending="nak", seconds=0)
    await stage.history.until("dead_lettered", job="after-1", within=within)


@pytest.mark.parametrize("escalate", [False, True])
async def test_a_dead_job_with_headers_and_a_kind_of_an_outsider_is_kept_and_put_back(escalate: bool) -> None:
    async with Stage("ci", escalate=escalate) as stage:
        client = await stage.broker.connect("outsider")
        headers = {"Author": "Jürgen", "Meetupq-Job": "my job"}
        await client.jetstream().publish("jobs.high.re$ize", b'{"ending": "nak", "seconds": 0}', headers=headers)
        await client.close()
        await stage.launch("ada")
        await stage.launch("dan", priority="low")
        await stage.history.until("dead_lettered", job="my job")
        await dies(stage)
        letter = await stage.letter("my job")
        assert letter.headers == {"Author": "Jürgen"}
        assert letter.kind == "re$ize"
        await stage.kill_all()
        await stage.launch("bo", fixed=True)
        await stage.launch("eve", fixed=True, priority="low")
        assert await stage.redrive_all(job="my job") == ["my job"]
        await stage.history.until("acked", job="my job")
        assert stage.failures == []


async def test_a_dead_job_that_is_too_large_for_a_copy_stays_and_stops_nobody() -> None:
    """Together with the headers that a copy needs it is larger than the broker takes, which would hang up."""
    async with Stage("ci", escalate=True) as stage:
        client = await stage.broker.connect("outsider")
        payload = b'{"ending": "nak", "seconds": 0}'.ljust(1024 * 1024 - 100)
        await client.jetstream().publish("jobs.high.resize", payload, headers={})
        await client.close()
        await stage.launch("ada")
        await stage.launch("dan", priority="low")
        await stage.history.until("exhausted", job="job-1")
        await dies(stage)
        assert (await stage.summary()).stuck == 1
        assert stage.failures == []


async def test_a_connection_that_the_broker_closes_is_a_failure() -> None:
    async with Stage("ci") as stage:
        assert stage._client is not None
        await stage._client.close()
        await eventually(lambda: [str(f) for f in stage.failures if "closed the lab's own connection" in str(f)])


async def test_a_removal_that_the_broker_could_not_do_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stage("ci") as stage:
        jetstream = stage.dead_letters._jetstream
        delete, refused = jetstream.delete_msg, []

        async def unavailable(*args: Any) -> bool:
            if len(refused) < 2:
                refused.append(args)
                raise ServiceUnavailableError
            return await delete(*args)

        monkeypatch.setattr(jetstream, "delete_msg", unavailable)
        await stage.launch("ada")
        await stage.publish("nak-1", ending="nak", seconds=0)
        await stage.history.until("dead_lettered", job="nak-1")
        assert len(refused) == 2
        assert not stage.history.where("late_success")
        counted = await stage.summary()
        assert (counted.stuck, counted.dead, counted.published) == (0, 1, 1)


async def test_a_zombies_reject_writes_no_letter_about_a_job_that_is_done(
    queue: WorkQueue, dead_letters: DeadLetters
) -> None:
    await queue.publish("late-1")
    zombie = await queue.pull(worker="ada")
    again = await queue.pull(worker="bo", timeout=5)
    assert zombie
    assert again
    await again.ack()
    await dead_letters.keep(zombie, "no worker can do this")
    assert await dead_letters.letters() == []
    assert not queue.history.where("dead_lettered")


async def test_two_clicks_on_start_are_one() -> None:
    async with Stage("ci") as stage:
        await stage.launch("ada")
        await stage.kill("ada")
        said = await asyncio.gather(stage.relaunch("ada"), stage.relaunch("ada"))
        assert sorted(said) == ["ada is at work again", "ada is at work already; nothing was changed"]


async def test_a_restart_between_two_looks_is_seen() -> None:
    async with Stage("ci") as stage:
        await stage.broker.kill()
        await stage.broker.start()
        await stage.history.until("broker_started", count=2)
        assert [e.kind for e in stage.history if e.kind.startswith("broker")] == [
            "broker_started", "broker_killed", "broker_started",
        ]  # fmt: skip
