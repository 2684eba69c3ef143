"""The lab: one object, one thread, one broker; it opens twice, closes twice, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import measured

from meetupq.broker import Broker
from meetupq.errors import (
    BackgroundFailure,
    BrokerUnreachable,
    LabClosed,
    LetterUnknown,
    MeetupqError,
    NotSeen,
    ServerNotFound,
    TimingError,
    UnknownWorker,
)
from meetupq.lab import Lab
from meetupq.timing import Timing
from meetupq.work_queue import WorkQueue

FAST = Timing.preset("ci").but(ack_wait=0.3, heartbeat=0.1, max_deliver=3)


def footprint() -> tuple[list[str], list[int]]:
    """What a lab could leave behind: threads, child processes."""
    threads = [thread.name for thread in threading.enumerate() if "meetupq" in thread.name]
    return threads, [child.pid for child in psutil.Process().children(recursive=True)]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert footprint() == ([], [])
    assert not list(tmp_path.glob("meetupq-*"))


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab("ci") as lab:
        yield lab


def on_the_stage(lab: Lab, work: Any) -> Any:
    """Run a coroutine on the lab's own loop, as its background tasks do."""
    return asyncio.run_coroutine_threadsafe(work, lab._loop).result(20)


# --- opening and closing ---------------------------------------------------------------------------


async def test_the_first_win(lab: Lab) -> None:
    lab.launch("ada", "bo")
    assert lab.publish("resize-1", "resize-2", seconds=0) == ["resize-1", "resize-2"]
    await lab.until("acked", count=2)
    assert lab.publish(count=2, seconds=0) == ["resize-3", "resize-4"]
    await lab.until("acked", "resize-4")
    assert repr(lab).startswith("<Lab: open, timing 'ci', nats-server 2.")


def test_opening_it_again_closes_the_one_that_was_open(lab: Lab) -> None:
    before = footprint()
    with Lab("ci") as second:
        assert lab.closed
        assert not second.closed
        assert [len(part) for part in footprint()] == [len(part) for part in before]
        assert "it replaced the one that was open" in repr(second)
        with pytest.raises(LabClosed, match="run the cell that opens it"):
            lab.publish()
        second.publish()


def test_labs_of_two_names_live_side_by_side(lab: Lab) -> None:
    with Lab("ci", name="other") as other:
        lab.publish("resize-1")
        assert not lab.closed
        assert not other.history.where("published")


def test_ten_labs_one_after_the_other_cost_nothing() -> None:
    def open_files() -> int:
        return psutil.Process().num_fds()

    with Lab("ci"):
        pass
    before = open_files()
    for _ in range(9):
        lab = Lab("ci")
    lab.close()
    assert footprint() == ([], [])
    assert open_files() <= before


def test_closing_twice_does_no_harm(lab: Lab) -> None:
    lab.close()
    lab.close()
    assert repr(lab) == "<Lab: closed>"


def test_closing_in_the_middle_of_work(lab: Lab) -> None:
    lab.launch("ada", "bo")
    lab.launch("cy", role="leases")
    lab.add_work("import-eu", seconds=30)
    lab.publish(count=5, seconds=30)
    lab.close()


def test_closing_when_the_broker_is_dead(lab: Lab) -> None:
    lab.launch("ada")
    on_the_stage(lab, lab._stage.broker.kill())
    with pytest.raises(BrokerUnreachable):
        lab.publish()
    lab.close()


def test_the_past_can_be_read_after_the_end(lab: Lab) -> None:
    lab.publish("resize-1")
    lab.close()
    assert [event.job for event in lab.history.where("published")] == ["resize-1"]


def test_timing_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEETUPQ_TIMING", "ci")
    with Lab() as lab:
        assert lab.timing == Timing.preset("ci")
    with Lab(Timing.preset("ci").but(sweep=9)) as lab:
        assert lab.timing.sweep == 9


# --- opening in vain -------------------------------------------------------------------------------


def test_a_lab_that_finds_no_server_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEETUPQ_NATS_SERVER", "/nowhere/nats-server")
    with pytest.raises(ServerNotFound):
        Lab("ci")
    assert footprint() == ([], [])
    monkeypatch.delenv("MEETUPQ_NATS_SERVER")
    Lab("ci").close()


def test_a_lab_of_unknown_timing_leaves_nothing() -> None:
    with pytest.raises(TimingError, match="'fast'"):
        Lab("fast")
    assert footprint() == ([], [])


def test_a_lab_that_can_not_be_set_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: WorkQueue) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(WorkQueue, "ensure", refuse)
    with pytest.raises(ZeroDivisionError):
        Lab("ci")
    assert footprint() == ([], [])


@pytest.mark.parametrize("moment", ["_spawn", "_ready", "connect"])
def test_an_interrupt_while_it_opens_leaves_nothing(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """The stop button of a notebook, at three moments of the broker's start."""
    method: Callable[..., Any] = getattr(Broker, moment)

    def interrupted(self: Broker, *args: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        return method(self, *args, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Broker, moment, interrupted)
        Lab("ci")
    assert footprint() == ([], [])
    with Lab("ci") as lab:
        lab.publish()


# --- after the end ---------------------------------------------------------------------------------


async def test_after_the_end_every_call_says_so(lab: Lab) -> None:
    lab.close()
    for call in (
        lab.publish,
        lambda: lab.poison("a"),
        lambda: lab.slow("a"),
        lab.summary,
        lambda: lab.post_mortem("a"),
        lambda: lab.letter("a"),
        lab.hire,
        lambda: lab.heartbeats("ada", False),
        lambda: lab.prefetch("ada", 2),
        lambda: setattr(lab, "burying", False),
        lab.sweep,
        lab.letters,
        lambda: lab.redrive(1),
        lab.redrive_all,
        lambda: lab.add_work("a", seconds=1),
        lab.claims,
        lambda: lab.launch("ada"),
        lambda: lab.relaunch("ada"),
        lambda: lab.stop("ada"),
        lambda: lab.kill("ada"),
        lab.kill_all,
        lambda: setattr(lab, "sweeping", False),
    ):
        with pytest.raises(LabClosed):
            call()
    for wait in (lambda: lab.until("acked"), lab.connect):
        with pytest.raises(LabClosed):
            await wait()
    lab.press("kill", "ada")


# --- what fails in the background ------------------------------------------------------------------


async def fail() -> None:
    raise ZeroDivisionError("a bug of ours")


def fail_in_the_background(lab: Lab) -> None:
    async def begin() -> None:
        await asyncio.wait({lab._stage.background(fail(), "the failing task")})

    on_the_stage(lab, begin())


def test_what_failed_in_the_background_is_raised_by_the_next_call_once(lab: Lab) -> None:
    fail_in_the_background(lab)
    with pytest.raises(BackgroundFailure, match="the failing task: ZeroDivisionError: a bug of ours") as caught:
        lab.publish()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    lab.publish()
    assert [failure.what for failure in lab.failures] == ["the failing task"]


async def test_reading_the_history_waiting_and_closing_raise_it_too(lab: Lab) -> None:
    fail_in_the_background(lab)
    with pytest.raises(BackgroundFailure):
        len(lab.history)
    fail_in_the_background(lab)
    with pytest.raises(BackgroundFailure):
        await lab.until("acked")
    fail_in_the_background(lab)
    with pytest.raises(BackgroundFailure):
        lab.close()
    lab.close()
    assert footprint() == ([], [])


async def test_a_worker_that_crashes_is_reported(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    async def crash(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(WorkQueue, "pull_batch", crash)
    lab.launch("ada")
    await lab._stage.history.until("killed", worker="ada")
    with pytest.raises(BackgroundFailure, match="worker ada crashed: ZeroDivisionError"):
        lab.publish()


# --- buttons ---------------------------------------------------------------------------------------


async def test_a_button_does_what_the_method_does(lab: Lab) -> None:
    lab.press("launch", "ada")
    lab.press("publish", "resize-1", seconds=0)
    await lab.until("acked", "resize-1", worker="ada")
    lab.press("kill", "ada")
    await lab.until("killed", worker="ada")


async def test_a_double_click_launches_one_worker_and_kills_it_once(lab: Lab) -> None:
    for action in ("launch", "launch", "kill_all"):
        lab.press(action, *([] if action == "kill_all" else ["ada"]))
    await lab.until("started", worker="ada")
    for _ in range(2):
        lab.press("kill", "ada")
    await lab.until("killed", worker="ada")
    lab.publish("resize-1", seconds=0)
    with pytest.raises(NotSeen):
        await lab.until("delivered", "resize-1", within=0.5)
    assert len(lab.history.where("started")) == len(lab.history.where("killed")) == 1


def test_a_button_never_blocks(lab: Lab) -> None:
    """Not even while the stage's own loop is stuck."""
    lab._loop.call_soon_threadsafe(time.sleep, 1.5)
    with measured() as seconds:
        for _ in range(10):
            lab.press("publish")
    assert seconds() < 1
    lab.kill_all()


async def test_a_buttons_error_is_kept_and_raised_by_the_next_call(lab: Lab) -> None:
    lab.press("kill", "nobody")
    on_the_stage(lab, asyncio.sleep(0.05))
    assert "no worker is called 'nobody'" in str(lab.failures[0])
    with pytest.raises(BackgroundFailure, match="kill nobody: UnknownWorker"):
        lab.publish()
    lab.publish()


# --- threads and loops -----------------------------------------------------------------------------


def test_calls_may_come_from_any_thread(lab: Lab) -> None:
    published: list[str] = []

    def publish(name: str) -> None:
        for number in range(10):
            published.extend(lab.publish(f"{name}-{number}"))

    threads = [threading.Thread(target=publish, args=(f"thread{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(published)) == len(lab.history.where("published")) == 40


def test_numbered_names_are_unique_over_threads(lab: Lab) -> None:
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.extend(lab.publish(count=10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names) == sorted(f"resize-{number}" for number in range(1, 41))


async def test_connections_and_waits_live_on_the_callers_loop(lab: Lab) -> None:
    client = await lab.connect()
    queue = WorkQueue(client, lab.timing)
    lab.publish("resize-1")
    delivery = await queue.pull(worker="me")
    assert delivery
    assert delivery.job == "resize-1"
    await delivery.ack()
    await client.close()
    acked = await lab.until("acked", "resize-1", within=5)
    assert acked.source == "broker", "an ack by a stranger is known from the broker"


async def test_a_term_by_a_stranger_is_known_from_the_broker() -> None:
    with Lab(FAST) as lab:
        client = await lab.connect()
        queue = WorkQueue(client, lab.timing)
        lab.publish("resize-1", "resize-2")
        for _ in range(2):
            delivery = await queue.pull(worker="me")
            assert delivery
            await delivery.term("no such image")
        await client.close()
        for job in ("resize-1", "resize-2"):
            event = await lab.until("terminated", job, within=5)
            assert (event.source, event.attempt) == ("broker", 1)
        assert str(lab.summary()) == "2 published = 2 terminated"


async def test_a_priority_of_its_own_patience_is_watched_by_it() -> None:
    """The job has no delivery left after two, and says so although the broker doesn't yet."""
    with Lab(FAST.but(low=FAST.but(ack_wait=0.5, max_deliver=2))) as lab:
        lab.sweeping = False
        lab.launch("ada", priority="low")
        lab.publish("poison-1", priority="low", seconds=0, ending="silence")
        await lab.until("failed", "poison-1", count=2)
        lab.kill("ada")
        assert (await lab.until("exhausted", "poison-1")).source == "inferred"
        last, over = lab.history.where("delivered")[-1], lab.history.where("timed_out")[-1]
        assert (last.attempt, over.attempt) == (2, 2)
        assert 0.45 < over.at - last.at < 0.55


async def test_two_loops_wait_at_once(lab: Lab) -> None:
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(lab.until("published")).job))
    thread.start()
    waiting = asyncio.ensure_future(lab.until("published"))
    await asyncio.to_thread(lab.publish, "resize-1")
    assert (await waiting).job == "resize-1"
    await asyncio.to_thread(thread.join)
    assert results == ["resize-1"]


def test_a_call_from_the_labs_own_thread_is_refused_not_stuck(lab: Lab) -> None:
    errors: list[BaseException] = []
    done = threading.Event()

    def call() -> None:
        try:
            lab.publish()
        except MeetupqError as error:
            errors.append(error)
        done.set()

    lab._loop.call_soon_threadsafe(call)
    assert done.wait(5)
    assert "would wait for itself" in str(errors[0])


# --- both halves through the one object ------------------------------------------------------------


async def test_dead_letters_through_the_lab(lab: Lab) -> None:
    lab.launch("ada")
    assert lab.poison("poison-1", seconds=0) == ["poison-1"]
    await lab.until("dead_lettered", "poison-1")
    [letter] = lab.letters()
    assert letter.job == "poison-1"
    with pytest.raises(LetterUnknown):
        lab.redrive(99)
    lab.kill("ada")
    lab.launch("bo", fixed=True)
    assert lab.redrive(letter.number) == "poison-1"
    await lab.until("acked", "poison-1", worker="bo")
    assert lab.letters() == lab.redrive_all() == []


async def test_without_the_sweep_nobody_hears_of_the_dead() -> None:
    """The last patience is long, so that ada is certainly dead before it ends, and asks for no more work."""
    with Lab(Timing.preset("ci").but(backoff=(0.4, 0.4, 2.5))) as lab:
        lab.sweeping = False
        assert lab.sweeping is False
        lab.launch("ada")
        lab.poison("poison-1", seconds=0)
        await lab.until("failed", "poison-1", count=3)
        lab.kill("ada")
        inferred = await lab.until("exhausted", "poison-1")
        assert inferred.source == "inferred"
        assert lab.letters() == []
        lab.sweep()
        await lab.until("dead_lettered", "poison-1")


async def test_a_keeper_that_looks_away_through_the_lab() -> None:
    with Lab(FAST) as lab:
        assert (lab.burying, lab.sweeping) == (True, True)
        lab.burying = False
        assert lab.burying is False
        lab.launch("ada")
        lab.poison("poison-1", seconds=0)
        await lab.until(lambda event: event.kind == "exhausted" and event.source == "broker", "poison-1")
        assert str(lab.summary()) == "1 published = 1 stuck"
        with pytest.raises(LetterUnknown, match="there is no dead letter of 'poison-1': letters\\(\\) lists those"):
            lab.letter("poison-1")
        lab.burying = True
        await lab.until("dead_lettered", "poison-1")
        assert lab.letter("poison-1").last_worker == "ada"
        assert str(lab.summary()) == "1 published = 1 dead"


async def test_every_ending_and_the_choice_of_letters_through_the_lab() -> None:
    with Lab(FAST) as lab:
        lab.launch("ada")
        lab.publish("bad-1", "bad-2", seconds=0, ending="reject")
        lab.publish("bad-3", seconds=0, ending="reject", kind="thumb")
        lab.publish("gone", seconds=0, ending="term")
        lab.publish("later", seconds=0, ending="nak", after=0.2)
        await lab.until("terminated", count=4)
        await lab.until("naked", "later")
        assert [letter.job for letter in lab.letters(kind="thumb")] == ["bad-3"]
        assert [letter.job for letter in lab.letters(job="*-1", worker="a*")] == ["bad-1"]
        assert lab.redrive_all(job="nothing-*") == []
        lab.kill("ada")
        assert lab.redrive_all(kind="resize") == ["bad-1", "bad-2"]
        with pytest.raises(LetterUnknown, match="there is no dead letter of 'nobody'"):
            lab.letter("nobody")


async def test_the_newest_of_a_jobs_letters_is_meant() -> None:
    with Lab(FAST) as lab:
        lab.launch("ada")
        lab.publish("bad", seconds=0, ending="reject")
        await lab.until("terminated")
        first = lab.letter("bad")
        lab.redrive(first.number)
        await lab.until("terminated", count=2)
        assert lab.letter("bad").number > first.number


async def test_escalation_through_the_lab_and_how_the_job_died() -> None:
    """The wait is, by default, long enough for a job that dies twice."""
    low = FAST.but(ack_wait=0.4, max_deliver=2)
    with Lab(FAST.but(low=low), escalate=True) as lab:
        assert "was not delivered to anybody" in lab.post_mortem("poison-1")
        lab.launch("ada")
        lab.launch("bo", priority="low")
        lab.poison("poison-1", seconds=0)
        await lab.until("delivered", "poison-1")
        assert lab.post_mortem("poison-1") == "poison-1 is not dead: it is in flight."
        event = await lab.until("dead_lettered", "poison-1")
        assert event.detail == "not acked in 2 deliveries, after 3 as high"
        told = lab.post_mortem("poison-1")
        assert told.startswith("poison-1: 5 deliveries, dead ")
        assert "adds up to 0.3 + 0.3 + 0.3 + 0.4 + 0.4 = 1.7 s." in told


async def test_a_wait_is_as_long_as_both_priorities_take(monkeypatch: pytest.MonkeyPatch) -> None:
    with Lab(FAST.but(low=FAST.but(ack_wait=20, max_deliver=3))) as lab:
        limits: list[float] = []

        async def until(*_: object, within: float, **__: object) -> None:
            limits.append(within)

        monkeypatch.setattr(lab._stage.history, "until", until)
        await lab.until("acked")
        assert limits[0] >= 3 * FAST.ack_wait + 3 * 20


async def test_tuning_hiring_and_slow_jobs_through_the_lab() -> None:
    with Lab(FAST) as lab:
        assert lab.hire() == "ada is at work"
        lab.launch("bo", role="leases")
        assert lab.hire() == "cy is at work"
        assert lab.heartbeats("ada", False) == "ada is at work as queue high, heartbeats off, prefetch 1"
        assert lab.prefetch("ada", 2) == "ada is at work as queue high, heartbeats off, prefetch 2"
        lab.heartbeats("cy", False)
        assert lab.slow() == ["slow-1"]
        await lab.until("acked", "slow-1", count=2)
        assert [event.attempt for event in lab.history.where("delivered", "slow-1")] == [1, 2]
        assert not lab.history.where("killed")


async def test_two_clicks_on_hire_hire_two(lab: Lab) -> None:
    for _ in range(2):
        lab.press("hire")
    await lab.until("started", worker="ada")
    await lab.until("started", worker="bo")


async def test_a_lab_on_a_store_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    with Lab(FAST, store=tmp_path / "store") as lab:
        lab.launch("ada")
        lab.publish("bad", seconds=0, ending="reject")
        await lab.until("terminated")
        lab.kill("ada")
        lab.publish(count=2)
    with Lab(FAST, store=str(tmp_path / "store")) as lab:
        assert [letter.job for letter in lab.letters()] == ["bad"]
        assert str(lab.summary()) == "3 published = 2 waiting + 1 dead"
        assert not set(lab.publish(count=2)) & {"resize-1", "resize-2"}


async def test_leases_through_the_lab(lab: Lab) -> None:
    assert lab.add_work("import-eu", "import-us", seconds=30) == ["import-eu", "import-us"]
    assert lab.add_work("import-eu", seconds=30) == []
    lab.launch("ada", "bo", role="leases")
    await lab.until("claimed", "import-eu")
    await lab.until("claimed", "import-us")
    await asyncio.sleep(2 * lab.timing.lobby)
    assert sorted((claim.item, claim.state) for claim in lab.claims()) == [("import-eu", "held"), ("import-us", "held")]
    lab.stop("ada")
    await lab.until("released", worker="ada")
    await lab.until("stopped", worker="ada")


def test_an_unknown_worker_is_named(lab: Lab) -> None:
    for call in (lab.kill, lab.stop, lab.relaunch):
        with pytest.raises(UnknownWorker, match="no worker is called 'ada'"):
            call("ada")


# --- somebody else's server ------------------------------------------------------------------------


async def test_a_lab_on_a_foreign_server_leaves_it_as_it_is() -> None:
    async with Broker() as foreign:
        url = f"nats://{foreign._token}@{foreign.address}"
        with await asyncio.to_thread(Lab, "ci", url=url) as lab:
            await asyncio.to_thread(lab.publish, "resize-1")
            assert foreign._token not in repr(lab)
        assert foreign.running
        client = await foreign.connect()
        assert (await client.jetstream().stream_info("jobs")).state.messages == 1
        await client.close()


async def test_closing_in_the_middle_of_a_trial_is_told_as_that() -> None:
    lab = Lab("ci")
    trial = asyncio.ensure_future(lab.trial("observe", kills=2, standbys=1, others=0))
    await asyncio.sleep(0)  # it has begun
    await asyncio.to_thread(lab.close)
    with pytest.raises(LabClosed):
        await trial
