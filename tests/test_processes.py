"""Workers as real processes: killed by SIGKILL, frozen by SIGSTOP, cut off from the network, and never left behind."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Connect, eventually, jobs_in_stream, measured

import meetupq
from meetupq import checks
from meetupq import crew as crew_module
from meetupq.broker import Broker
from meetupq.crew import Crew
from meetupq.errors import ActionImpossible, BrokerUnreachable, LeaseError, MeetupqError, UnknownWorker, WorkerBusy
from meetupq.hiring import Job
from meetupq.history import Event, History
from meetupq.leases import Leases
from meetupq.processes import Child, Processes
from meetupq.stage import Stage
from meetupq.timing import Timing
from meetupq.work_items import WorkItems
from meetupq.work_queue import WorkQueue
from meetupq.worker_process import LONGEST, fitted, timing_of
from meetupq.workers import job_payload

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="freezing and the guard rest on POSIX signals")

QUEUE = Job(process=True)
LEASES = Job("leases", process=True)
PACKAGE = str(Path(meetupq.__file__).parent.parent)


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
    server = psutil.Process(broker.pid) if broker.running else None
    left = psutil.Process().children(recursive=True)
    assert [one for one in left if server and one not in (server, server.parent())] == []


def child_of(crew: Crew, name: str) -> Child:
    child = crew._members[name].child
    assert child
    return child


def process_of(crew: Crew, name: str) -> psutil.Process:
    return psutil.Process(child_of(crew, name).pid)


def guard_of(crew: Crew) -> psutil.Process:
    assert crew._processes._guard
    return psutil.Process(crew._processes._guard.pid)


def after(history: History, moment: Event, worker: str) -> list[str]:
    """The kinds of the events of a worker that stand behind another event in the history."""
    events = history.snapshot()
    return [event.kind for event in events[events.index(moment) + 1 :] if event.worker == worker]


# --- at work ---------------------------------------------------------------------------------------


async def test_a_process_takes_jobs_and_acks_them(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada", QUEUE)
    assert crew.at_work == ["ada"]
    assert process_of(crew, "ada").parent() == guard_of(crew)
    for number in range(3):
        await queue.publish(f"resize-{number}", job_payload(seconds=0))
    await history.until("acked", worker="ada", count=3)
    assert await jobs_in_stream(queue.client) == 0
    kinds = [event.kind for event in history if event.worker == "ada"]
    assert kinds == ["started", *["delivered", "acked"] * 3]
    assert {event.source for event in history.where("acked")} == {"worker"}


async def test_a_process_owns_long_work_and_finishes_it(
    crew: Crew, leases: Leases, items: WorkItems, history: History
) -> None:
    await items.add("import-eu", seconds=1.5, steps=3)
    await crew.launch("ada", LEASES)
    await history.until("finished", "import-eu", "ada")
    await history.until("released", "import-eu", "ada")
    claimed = history.where("claimed")[0]
    assert history.where("renewed")[0].revision == claimed.revision
    assert 0 < claimed.until - claimed.at <= leases.ttl
    assert next(event.kind for event in history if event.worker == "ada") == "started"


async def test_the_moments_of_a_process_are_on_our_clock(crew: Crew, queue: WorkQueue, history: History) -> None:
    late: list[float] = []
    history.subscribe(lambda event: late.append(history.now() - event.at) if event.source == "worker" else None)
    await crew.launch("ada", QUEUE)
    for number in range(20):
        await queue.publish(f"resize-{number}", job_payload(seconds=0.01))
    await history.until("acked", count=20)
    assert min(late) >= 0, "nothing is known before it has happened"
    assert statistics.median(late) < 0.2
    moments = [event.at for event in history if event.worker == "ada" and event.source == "worker"]
    assert moments == sorted(moments)


async def test_heartbeats_and_prefetch_of_a_process_can_be_set(
    crew: Crew, queue: WorkQueue, history: History, timing: Timing
) -> None:
    await crew.launch("ada", QUEUE)
    await queue.publish("long", job_payload(seconds=timing.patience(1) * 2.5))
    await history.until("progressed", "long")
    assert crew.set_heartbeats("ada", False) == "ada is at work as queue high, heartbeats off, prefetch 1, process"
    assert crew.set_prefetch("ada", 3) == "ada is at work as queue high, heartbeats off, prefetch 3, process"
    beats = len(history.where("progressed"))
    await history.until("acked", "long")
    assert len(history.where("progressed")) <= beats + 1
    await crew.freeze("ada")
    for number in range(4):  # the first one goes to a pull that waits already
        await queue.publish(f"resize-{number}", job_payload(seconds=0.1))
    await crew.thaw("ada")
    await history.until("acked", "resize-3")
    steps = [{"delivered": 1, "acked": -1}.get(event.kind, 0) for event in history if event.job.startswith("resize")]
    assert max(itertools.accumulate(steps)) == 3, "three at once"
    await crew.kill("ada")
    await crew.relaunch("ada")
    assert history.where("started")[-1].detail == "queue high, heartbeats off, prefetch 3, process"


async def test_a_stopped_process_finishes_its_job_and_ends(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada", QUEUE)
    await queue.publish("resize-1", job_payload(seconds=0.3))
    await history.until("delivered", "resize-1")
    process = process_of(crew, "ada")
    assert await crew.stop("ada") == "ada finished and stopped"
    assert [event.kind for event in history if event.worker == "ada"][-2:] == ["acked", "stopped"]
    assert crew.at_work == []
    assert not process.is_running()
    assert await crew.stop("ada") == "ada is not at work; nothing was changed"
    assert await crew.relaunch("ada") == "ada is at work again"


async def test_a_patience_for_low_priority_reaches_a_process(crew: Crew, timing: Timing) -> None:
    both = timing.but(low=timing.but(work=0.7))
    from_there = timing_of(json.loads(json.dumps(crew_module.asdict(both))))
    assert from_there == both


# --- kill ------------------------------------------------------------------------------------------


async def test_a_kill_is_sigkill_and_the_job_comes_again_after_the_patience(
    crew: Crew, queue: WorkQueue, history: History, timing: Timing
) -> None:
    await crew.launch("ada", Job(process=True, heartbeats=False))
    await queue.publish("resize-1", job_payload(seconds=30))
    first = await history.until("delivered", "resize-1", "ada")
    child, process = child_of(crew, "ada"), process_of(crew, "ada")
    assert await crew.kill("ada") == "ada was killed"
    assert child.exit.result() == -signal.SIGKILL
    assert not process.is_running()
    assert await crew.kill("ada") == "ada is dead already; nothing was changed"
    assert crew.at_work == []
    kinds = [event.kind for event in history if event.worker == "ada"]
    assert (kinds[-1], kinds.count("killed")) == ("killed", 1)
    await crew.launch("bo", QUEUE)
    again = await history.until("delivered", "resize-1", "bo")
    assert again.attempt == 2
    assert again.at >= first.at + timing.patience(1) - 0.05


async def test_two_clicks_at_once_kill_once_and_a_relaunch_waits_for_the_end(
    crew: Crew, queue: WorkQueue, history: History
) -> None:
    await crew.launch("ada", QUEUE)
    killing = [asyncio.create_task(crew.kill("ada")) for _ in range(2)]
    await asyncio.sleep(0)
    assert await crew.relaunch("ada") == "ada is at work again"
    assert await asyncio.gather(*killing) == ["ada was killed", "ada is dead already; nothing was changed"]
    assert [event.kind for event in history if event.worker == "ada"] == ["started", "killed", "started"]


@pytest.mark.parametrize("state", ["frozen", "cut", "stopping"])
@pytest.mark.parametrize("job", [QUEUE, LEASES], ids=["queue", "leases"])
async def test_a_process_is_killed_and_launched_again_in_every_state(
    crew: Crew, queue: WorkQueue, leases: Leases, items: WorkItems, history: History, state: str, job: Job
) -> None:
    await queue.publish("resize-1", job_payload(seconds=30))
    await items.add("import-eu", seconds=60, steps=2)
    await crew.launch("ada", job)
    await history.until(lambda event: event.kind in ("delivered", "claimed"))
    stopping = asyncio.create_task(crew.stop("ada")) if state == "stopping" else None
    if state == "frozen":
        await crew.freeze("ada")
    elif state == "cut":
        await crew.cut("ada")
    await asyncio.sleep(0.05)
    process = process_of(crew, "ada")
    with measured() as seconds:
        assert await crew.kill("ada") == "ada was killed"
    assert seconds() < 3
    assert not process.is_running()
    assert [event.kind for event in history if event.worker == "ada"][-1] == "killed"
    if stopping:
        assert await stopping == "ada was killed before it had finished"
    await crew.relaunch("ada")
    assert await crew.cut("ada") == "ada was cut off", "its new line was whole"


async def test_a_cut_task_is_killed_and_launched_again(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada")
    await queue.publish("resize-1", job_payload(seconds=0.2))
    await history.until("delivered", "resize-1")
    assert await crew.cut("ada") == "ada was cut off"
    await asyncio.sleep(0.4)  # its ack is on the wire
    assert await crew.kill("ada") == "ada was killed"
    assert await jobs_in_stream(queue.client) == 1, "the ack of the dead never arrives"
    await crew.relaunch("ada")
    assert (await history.until("acked", "resize-1")).attempt == 2


async def test_kill_all_kills_the_frozen_too(crew: Crew, queue: WorkQueue, leases: Leases, items: WorkItems) -> None:
    await crew.launch("ada", QUEUE)
    await crew.launch("bo", LEASES)
    await crew.launch("cy")
    await crew.freeze("ada")
    await crew.freeze("bo")
    assert crew.at_work == ["ada", "bo", "cy"]
    assert await crew.kill_all("leases") == "killed: bo"
    assert await crew.kill_all() == "killed: ada, cy"


@pytest.mark.parametrize(("how", "frozen"), [("SIGKILL", False), ("SIGKILL", True), ("SIGTERM", False)])
async def test_a_kill_from_outside_is_written_down_and_reported(
    crew: Crew, queue: WorkQueue, history: History, crashes: list[tuple[str, BaseException]], how: str, frozen: bool
) -> None:
    await crew.launch("ada", QUEUE)
    if frozen:
        await crew.freeze("ada")
    process_of(crew, "ada").send_signal(getattr(signal, how))
    killed = await history.until("killed", worker="ada")
    assert killed.detail == f"crashed: its process was ended by {how}, which did not come from here"
    [(what, error)] = crashes
    assert (what, isinstance(error, MeetupqError)) == ("worker ada crashed", True)
    assert crew.at_work == []
    assert await crew.relaunch("ada") == "ada is at work again"


async def test_an_interrupt_leaves_a_process_alone(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada", QUEUE)
    for process in (process_of(crew, "ada"), guard_of(crew)):
        process.send_signal(signal.SIGINT)
    await queue.publish("resize-1", job_payload(seconds=0))
    await history.until("acked", worker="ada")
    assert os.getsid(child_of(crew, "ada").pid) != os.getsid(0), "nor does a Ctrl-C for our group reach it"


# --- freeze and thaw -------------------------------------------------------------------------------


async def test_a_frozen_owner_renews_nothing_and_after_the_thaw_finds_out(
    crew: Crew, leases: Leases, items: WorkItems, history: History
) -> None:
    await items.add("import-eu", seconds=60, steps=60)
    await crew.launch("ada", LEASES)
    await history.until("renewed", worker="ada")
    await crew.launch("bo", LEASES)
    assert await crew.freeze("ada") == "ada was frozen"
    assert await crew.freeze("ada") == "ada is frozen already; nothing was changed"
    assert process_of(crew, "ada").status() == psutil.STATUS_STOPPED
    assert crew.is_frozen("ada")
    assert crew.at_work == ["ada", "bo"]
    frozen = history.where("frozen")[0]
    assert (frozen.worker, frozen.source) == ("ada", "lab")
    await history.until("reclaimed", "import-eu", "bo")
    assert after(history, frozen, "ada") == []

    assert await crew.thaw("ada") == "ada was thawed"
    assert await crew.thaw("ada") == "ada is not frozen; nothing was changed"
    thawed = history.where("thawed")[0]
    lost = await history.until("lost", "import-eu", "ada")
    assert after(history, thawed, "ada")[0] == "lost"
    assert lost.at >= thawed.at
    assert crew.at_work == ["ada", "bo"]


async def test_the_ack_of_a_thawed_zombie_is_accepted(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada", QUEUE)
    await queue.publish("resize-1", job_payload(seconds=0.4))
    await history.until("delivered", "resize-1", "ada")
    await crew.freeze("ada")
    assert not history.where("acked")
    await crew.launch("bo", Job(heartbeats=True))
    await history.until("delivered", "resize-1", "bo")
    await crew.thaw("ada")
    zombie = await history.until("acked", "resize-1", "ada")
    other = await history.until("acked", "resize-1", "bo")
    assert (zombie.attempt, other.attempt) == (1, 2)
    assert await jobs_in_stream(queue.client) == 0
    assert not [event for event in history.where("progressed", worker="ada") if event.at > history.where("frozen")[0].at
                and event.at < history.where("thawed")[0].at]  # fmt: skip


async def test_two_clicks_at_once_freeze_once_and_thaw_once(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada", QUEUE)
    said = await asyncio.gather(crew.freeze("ada"), crew.freeze("ada"), crew.thaw("ada"), crew.thaw("ada"))
    assert said == [
        "ada was frozen", "ada is frozen already; nothing was changed",
        "ada was thawed", "ada is not frozen; nothing was changed",
    ]  # fmt: skip
    assert [event.kind for event in history if event.worker == "ada"] == ["started", "frozen", "thawed"]
    await queue.publish("resize-1", job_payload(seconds=0))
    await history.until("acked", worker="ada")


async def test_a_kill_that_comes_between_is_stronger_than_the_freeze(
    crew: Crew, queue: WorkQueue, history: History
) -> None:
    await crew.launch("ada", QUEUE)
    said = await asyncio.gather(crew.freeze("ada"), crew.kill("ada"), crew.thaw("ada"))
    assert said == ["ada was dead before it was frozen", "ada was killed", "ada is not at work; nothing was changed"]
    assert [event.kind for event in history if event.worker == "ada"] == ["started", "killed"]


async def test_what_can_not_be_done_is_refused_in_a_sentence(crew: Crew, queue: WorkQueue, history: History) -> None:
    await crew.launch("ada")
    await crew.launch("bo", QUEUE)
    before = len(history)
    with pytest.raises(ActionImpossible, match="ada is a task and shares our process: launch it with process=True"):
        await crew.freeze("ada")
    assert await crew.thaw("ada") == "ada is not frozen; nothing was changed"
    assert await crew.thaw("bo") == "bo is not frozen; nothing was changed"
    assert await crew.restore("bo") == "bo is not cut off; nothing was changed"
    for action in (crew.freeze, crew.thaw, crew.cut, crew.restore):
        for name in ("cy", "", None, ["ada"]):
            with pytest.raises(UnknownWorker):
                await action(name)  # type: ignore[arg-type]
    with pytest.raises(WorkerBusy):
        await crew.launch("bo")
    assert len(history) == before
    await crew.kill_all()
    for action in (crew.freeze, crew.thaw, crew.cut, crew.restore):
        assert await action("bo") == "bo is not at work; nothing was changed"


async def test_where_nothing_can_be_frozen_that_is_said(
    crew: Crew, queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crew.launch("ada", QUEUE)
    monkeypatch.delattr(signal, "SIGSTOP")
    with pytest.raises(ActionImpossible, match="need Linux or macOS"):
        await crew.freeze("ada")


async def test_a_frozen_worker_has_to_be_thawed_before_it_can_stop(crew: Crew, queue: WorkQueue) -> None:
    await crew.launch("ada", QUEUE)
    await crew.freeze("ada")
    assert await crew.stop("ada") == ("ada is frozen and hears nothing: thaw it first, or kill it; nothing was changed")
    await crew.thaw("ada")
    assert await crew.stop("ada") == "ada finished and stopped"


async def test_a_frozen_process_that_is_told_much_does_not_hold_up_the_guard(crew: Crew, queue: WorkQueue) -> None:
    for name in ("ada", "bo"):
        await crew.launch(name, QUEUE)
    await crew.freeze("ada")
    for number in range(3000):  # more than fits into a pipe
        crew.set_prefetch("ada", number % 100 + 1)
    async with asyncio.timeout(5):
        assert await crew.freeze("bo") == "bo was frozen"
        await crew.kill_all()


# --- cut and restore -------------------------------------------------------------------------------


@pytest.mark.parametrize("process", [True, False], ids=["process", "task"])
async def test_an_owner_that_is_cut_off_stops_by_its_own_clock_before_anybody_can_have_its_lease(
    crew: Crew, leases: Leases, items: WorkItems, history: History, process: bool
) -> None:
    await items.add("import-eu", seconds=60, steps=60)
    await crew.launch("ada", Job("leases", process=process))
    await history.until("renewed", worker="ada")
    await crew.launch("bo", Job("leases"))
    assert await crew.cut("ada") == "ada was cut off"
    assert await crew.cut("ada") == "ada is cut off already; nothing was changed"
    cut = history.where("cut")[0]
    assert (cut.worker, cut.source) == ("ada", "lab")
    lost = await history.until("lost", "import-eu", "ada")
    assert not history.where("reclaimed")
    assert not history.where("restored"), "we hear it although its network is cut"
    reclaimed = await history.until("reclaimed", "import-eu", "bo")
    assert lost.at < reclaimed.at
    assert [kind for kind in after(history, cut, "ada") if kind != "lobbied"] == ["lost"]

    assert await crew.restore("ada") == "ada is connected again"
    assert history.where("restored")[0].worker == "ada"
    await history.until("renewed", worker="bo", count=2)
    assert not history.where("lost", worker="bo"), "what ada sent late has harmed nobody"
    assert crew.at_work == ["ada", "bo"]


@pytest.mark.parametrize("process", [True, False], ids=["process", "task"])
async def test_an_owner_whose_line_is_restored_in_time_keeps_its_lease_by_a_ghost_renewal(
    broker: Broker, connect: Connect, items: WorkItems, history: History, process: bool
) -> None:
    timing = Timing.preset("ci").but(lease_ttl=6, renew=0.5, margin=0.5)
    leases = Leases(await connect("leases"), timing, history)
    await leases.ensure()
    crew = Crew(broker, timing, history)
    await items.add("import-eu", seconds=60, steps=2)
    try:
        await crew.launch("ada", Job("leases", process=process))
        claimed = await history.until("claimed", worker="ada")
        await history.until("renewed", worker="ada")
        await crew.cut("ada")
        confirmed = len(history.where("renewed"))
        stream = f"KV_{leases.name}"
        stored = (await leases.jetstream.stream_info(stream)).state.last_seq
        await asyncio.sleep(1.6)  # a renewal was sent, and given up, and another one
        assert (await leases.jetstream.stream_info(stream)).state.last_seq == stored, "no renewal arrives"
        await crew.restore("ada")
        restored = history.where("restored")[0]
        renewed = await history.until(lambda event: event.kind == "renewed" and event.at > restored.at)
        now = (await leases.jetstream.stream_info(stream)).state.last_seq
        assert now - stored > len(history.where("renewed")) - confirmed, "one more was stored than ada knows of"
        assert renewed.revision == claimed.revision
        await history.until("renewed", count=confirmed + 3)
        assert not history.where("lost")
    finally:
        await crew.close()


async def test_a_worker_that_is_cut_off_can_stop(crew: Crew, queue: WorkQueue) -> None:
    for name, job in (("ada", QUEUE), ("bo", Job())):
        await crew.launch(name, job)
        await crew.cut(name)
        async with asyncio.timeout(10):
            assert await crew.stop(name) == f"{name} finished and stopped"


async def test_a_server_that_was_there_before_has_processes_but_no_line_to_cut(
    broker: Broker, queue: WorkQueue, history: History, timing: Timing
) -> None:
    outside = Broker(f"nats://{broker._token}@127.0.0.1:{broker.port}")
    await outside.start()
    crew = Crew(outside, timing, history)
    try:
        await crew.launch("ada", QUEUE)
        await crew.launch("bo")
        for name in ("ada", "bo"):
            with pytest.raises(ActionImpossible, match="server that was there before"):
                await crew.cut(name)
            assert await crew.restore(name) == f"{name} is not cut off; nothing was changed"
        assert await crew.freeze("ada") == "ada was frozen"
        assert await crew.kill_all() == "killed: ada, bo"
    finally:
        await crew.close()


async def test_a_process_goes_on_after_the_broker_was_killed(
    broker: Broker, crew: Crew, queue: WorkQueue, history: History
) -> None:
    await crew.launch("ada", QUEUE)
    await broker.kill()
    with pytest.raises(BrokerUnreachable, match="the broker is not running"):
        await crew.launch("bo", QUEUE)
    await broker.start()
    await eventually(lambda: queue.client.is_connected)
    await queue.publish("resize-1", job_payload(seconds=0))
    await history.until("acked", "resize-1", "ada")


# --- nothing is left -------------------------------------------------------------------------------


async def test_closing_ends_everybody_the_frozen_too_records_nothing_and_can_be_repeated(
    crew: Crew, queue: WorkQueue, leases: Leases, items: WorkItems, history: History,
    crashes: list[tuple[str, BaseException]],
) -> None:  # fmt: skip
    for name, job in (("ada", QUEUE), ("bo", LEASES), ("cy", QUEUE), ("dan", Job())):
        await crew.launch(name, job)
    await crew.freeze("ada")
    await crew.cut("cy")
    await history.until("lobbied", worker="bo")
    processes = [guard_of(crew), *(process_of(crew, name) for name in ("ada", "bo", "cy"))]
    ports = [crew._members[name].wire.port for name in crew.names]  # type: ignore[union-attr]
    before = history.snapshot()
    with measured() as seconds:
        await crew.close()
        await crew.close()
    assert seconds() < 3
    assert not any(process.is_running() for process in processes)
    assert history.snapshot() == before
    assert crashes == []
    assert crew.at_work == []
    listening = {c.laddr.port for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}
    assert not listening & set(ports)
    with pytest.raises(MeetupqError, match="the crew is closed"):
        await crew.launch("eve", QUEUE)


async def test_closing_while_a_process_starts_leaves_nothing(
    broker: Broker, queue: WorkQueue, timing: Timing, history: History
) -> None:
    for wait in (0.0, 0.03, 0.1, 0.15):
        crew = Crew(broker, timing, history)
        launching = asyncio.create_task(crew.launch("ada", QUEUE))
        await asyncio.sleep(wait)
        await crew.close()
        await asyncio.gather(launching, return_exceptions=True)
        await crew.close()
        server = psutil.Process(broker.pid)
        assert set(psutil.Process().children(recursive=True)) <= {server, server.parent()}


async def test_a_launch_that_is_given_up_leaves_no_process(crew: Crew, queue: WorkQueue) -> None:
    await crew.launch("bo", QUEUE)
    for wait in (0.0, 0.01, 0.1):
        launching = asyncio.create_task(crew.launch("ada", QUEUE))
        await asyncio.sleep(wait)
        launching.cancel()
        await asyncio.gather(launching, return_exceptions=True)
        await eventually(lambda: [p.pid for p in guard_of(crew).children()] == [child_of(crew, "bo").pid])
    launching = asyncio.create_task(crew.launch("ada", QUEUE))
    while not crew._processes._starting:  # the guard is asked, and has not answered
        await asyncio.sleep(0)
    launching.cancel()
    await asyncio.gather(launching, return_exceptions=True)
    await asyncio.sleep(0.1)
    await eventually(lambda: [p.pid for p in guard_of(crew).children()] == [child_of(crew, "bo").pid])
    assert crew.at_work == ["bo"]
    await crew.launch("ada", QUEUE)


async def test_when_the_guard_is_killed_its_workers_die_and_that_is_reported(
    crew: Crew, queue: WorkQueue, history: History, crashes: list[tuple[str, BaseException]]
) -> None:
    if sys.platform != "linux":
        pytest.skip("elsewhere a frozen worker outlives its guard")
    for name in ("ada", "bo"):
        await crew.launch(name, QUEUE)
    await crew.freeze("ada")
    processes = [process_of(crew, name) for name in ("ada", "bo")]
    guard_of(crew).kill()
    await history.until("killed", count=2)
    assert {what for what, _ in crashes} == {"worker ada crashed", "worker bo crashed"}
    await eventually(lambda: not any(process.is_running() for process in processes))
    assert crew.at_work == []
    await crew.relaunch("ada")
    await queue.publish("resize-1", job_payload(seconds=0))
    await history.until("acked", worker="ada")


OPEN_AND_REPORT = """
import asyncio, os, signal, sys
from meetupq.crew import Crew
from meetupq.stage import Stage

async def main():
    async with Stage("ci") as stage:
        await stage.launch("ada", "bo", process=True)
        await stage.launch("cy", role="leases", process=True)
        await stage.freeze("ada")
        await stage.cut("bo")
        crew = stage.crew
        pids = [crew._members[name].child.pid for name in crew.names]
        print(*pids, crew._processes._guard.pid, stage.broker.pid, stage.broker._folder, flush=True)
        while sys.argv[1] == "wait":
            await asyncio.sleep(1)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT", "SIGTERM", "close"])
async def test_nothing_outlives_us(tmp_path: Path, how: str) -> None:
    """Two workers, one of them frozen, and one that is cut off: all gone within five seconds of our own end."""
    parent = subprocess.Popen(
        [sys.executable, "-c", OPEN_AND_REPORT, "go on" if how == "close" else "wait"],
        env={**os.environ, "PYTHONPATH": PACKAGE, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout
    try:
        *pids, folder = (await asyncio.to_thread(parent.stdout.readline)).split()
        left = [int(pid) for pid in pids]
        assert len(left) == 5
        if how != "close":
            os.killpg(parent.pid, getattr(signal, how))
        await asyncio.to_thread(parent.wait, 10)
        await eventually(lambda: not any(map(psutil.pid_exists, left)))
        await eventually(lambda: not Path(folder).exists())
        assert list(tmp_path.iterdir()) == []
    finally:
        parent.kill()
        parent.communicate()


def test_a_lab_has_all_of_it() -> None:
    lab = meetupq.Lab("ci")
    try:
        lab.launch("ada", process=True)
        lab.launch("bo", role="leases", process=True, takeover="observe", slots=2)
        assert lab.freeze("ada") == "ada was frozen"
        assert lab.stop("ada").startswith("ada is frozen and hears nothing")
        assert lab.thaw("ada") == "ada was thawed"
        assert lab.cut("bo") == "bo was cut off"
        assert lab.restore("bo") == "bo is connected again"
        assert lab.kill_all() == "killed: ada, bo"
        assert [event.detail for event in lab.history.where("started")] == [
            "queue high, heartbeats on, prefetch 1, process", "leases by observe, 2 slots, process",
        ]  # fmt: skip
    finally:
        lab.close()


LAB = """
import sys
import meetupq
lab = meetupq.Lab("ci")
lab.launch("ada", "bo", process=True)
lab.freeze("ada")
print(lab, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("last_line", "code"), [("", 0), ("lab.close()", 0), ("sys.exit(3)", 3)])
def test_a_script_that_ends_with_processes_says_nothing_and_leaves_nothing(last_line: str, code: int) -> None:
    """At the end of a script Python starts no threads any more, but its labs still have to be closed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LAB + last_line],
        env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (code, "", 1)


async def test_the_end_does_not_wake_the_frozen_for_a_last_word(tmp_path: Path) -> None:
    processes = Processes()
    trace = tmp_path / "trace"
    busy = saying(
        f"file = os.open({str(trace)!r}, os.O_CREAT | os.O_WRONLY | os.O_APPEND)\nwhile True: os.write(file, b'.')"
    )
    for end in ("close", "our death", "close"):
        children = [await processes.start(busy, {}, lambda line: None) for _ in range(3)]
        await eventually(trace.exists)
        for child in children:
            await processes.signal(child, signal.SIGSTOP)
        size = trace.stat().st_size
        if end == "close":
            await processes.close()
            processes = Processes()
        else:
            assert processes._guard and processes._guard.stdin
            processes._guard.stdin.close()
            await asyncio.wait([child.exit for child in children])
            await asyncio.to_thread(processes._guard.wait)
        assert trace.stat().st_size == size
    await processes.close()


async def test_the_token_is_in_no_command_line(broker: Broker, crew: Crew, queue: WorkQueue) -> None:
    await crew.launch("ada", QUEUE)
    everybody = psutil.Process().children(recursive=True)
    assert process_of(crew, "ada") in everybody
    for process in everybody:
        assert broker._token not in " ".join(process.cmdline())
        assert broker._token not in " ".join(process.environ().values())


# --- hostile ---------------------------------------------------------------------------------------


def saying(code: str) -> list[str]:
    """The command line of a process that isn't ours: it reads its first line, then does what `code` says."""
    return [sys.executable, "-c", f"import json, os, sys, time\nfirst = json.loads(sys.stdin.readline())\n{code}"]


async def test_rubbish_between_the_lines_is_passed_over(crew: Crew, queue: WorkQueue, history: History) -> None:
    rubbish = r"""
me = os.getpid()
for line in [b"\xff\xfe", b"{", b"[1]", b"3", b"null", b"", b"[" * 100_000, b'{"from": []}', b'{"from": "x"}',
             b'{"exit": 1, "pid": 1}', b'{"signalled": 9, "pid": %d}' % me, b'{"from": %d}' % me,
             b'{"from": %d, "event": 3}' % me, b'{"from": %d, "event": {"kind": "exploded"}}' % me,
             b'{"from": %d, "event": {"colour": "red"}}' % me, b'{"pid": "no"}', b'{"failed": "no"}']:
    os.write(1, line + b"\n")
os.write(1, b'{"from": %d, "ready": true}\n' % me)
os.write(1, b'{"from": %d, "ready": true}\n' % me)
time.sleep(60)
"""
    stumbled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: stumbled.append(context))
    await launch_as(crew, "ada", saying(rubbish))
    await crew.launch("bo", QUEUE)
    assert stumbled == []
    assert [event.kind for event in history if event.worker] == ["started", "started"]
    assert await crew.freeze("ada") == "ada was frozen"
    assert await crew.kill("ada") == "ada was killed"


async def launch_as(crew: Crew, name: str, argv: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew_module, "WORKER", argv)
        await crew.launch(name, QUEUE)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["/nowhere/python"], "no process can be started: .*No such file"),
        (saying("sys.exit(0)"), "ada can't start: its process ended at once"),
        (saying("os.kill(os.getpid(), 9)"), "ada can't start: its process ended at once"),
        (saying("print(json.dumps({'from': os.getpid(), 'crashed': 'a bug'}), flush=True)"), "a bug"),
        (saying("time.sleep(60)"), "ada can't start: not ready within 0.5 s"),
    ],
)
async def test_a_worker_that_can_not_start_says_why_and_leaves_nothing(
    crew: Crew, queue: WorkQueue, history: History, monkeypatch: pytest.MonkeyPatch, argv: list[str], why: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(crew_module, "START_LIMIT", 0.5)
        with pytest.raises(MeetupqError, match=why):
            await launch_as(crew, "ada", argv)
    assert crew.names == []
    assert guard_of(crew).children() == []
    await crew.launch("ada", QUEUE)
    assert [event.kind for event in history if event.worker] == ["started"]


async def test_what_keeps_a_process_from_starting_is_raised_as_the_error_that_it_is(
    crew: Crew, connect: Connect, timing: Timing
) -> None:
    keys = (await connect()).jetstream()
    await keys.create_key_value(bucket=Leases(await connect(), timing).name)  # without a TTL
    with pytest.raises(LeaseError, match="has no TTL"):
        await crew.launch("ada", LEASES)


async def test_a_crash_in_a_process_is_reported_with_its_reason(
    crew: Crew, queue: WorkQueue, history: History, crashes: list[tuple[str, BaseException]]
) -> None:
    code = """
import asyncio
from meetupq import worker_process
from meetupq.workers import QueueWorker
async def run(self):
    raise ZeroDivisionError("a bug of ours")
QueueWorker.run = run
worker_process.sys.stdin = open(0)
worker_process.main()
"""
    await launch_as(crew, "ada", [sys.executable, "-c", code])
    killed = await history.until("killed", worker="ada")
    assert killed.detail == "crashed: ZeroDivisionError: a bug of ours"
    assert [what for what, _ in crashes] == ["worker ada crashed"]
    await crew.relaunch("ada")


async def test_what_a_worker_prints_does_not_come_between_its_lines(
    crew: Crew, queue: WorkQueue, history: History
) -> None:
    code = """
import os
from meetupq import worker_process, workers
init = workers.QueueWorker.__init__
def loud(self, *args, **options):
    init(self, *args, **options)
    print("half a line", end="", flush=True)
    os.write(1, b"half a line")
workers.QueueWorker.__init__ = loud
worker_process.main()
"""
    await launch_as(crew, "ada", [sys.executable, "-c", code])
    await queue.publish("resize-1", job_payload(seconds=0))
    await history.until("acked", worker="ada")


async def test_one_that_has_lost_its_guard_ends_by_itself(broker: Broker, crew: Crew, queue: WorkQueue) -> None:
    """Its stdin ends; on Linux it would be killed before that."""
    await crew.launch("ada", QUEUE)
    member = crew._members["ada"]
    first = json.dumps(crew_module.config(member, broker, crew.timing, crew.history))
    orphan = await asyncio.create_subprocess_exec(
        *crew_module.WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": PACKAGE}
    )
    assert orphan.stdin and orphan.stdout
    orphan.stdin.write(first.encode() + b"\n")
    assert json.loads(await asyncio.wait_for(orphan.stdout.readline(), 10))["ready"] is True
    orphan.stdin.close()
    assert await asyncio.wait_for(orphan.wait(), 5) == 3


@pytest.mark.parametrize("text", ["x" * 100_000, "\N{SNOWMAN}" * 5000, "\n\x00" * 5000])
async def test_an_event_too_long_for_one_write_is_shortened(text: str) -> None:
    event: dict[str, Any] = {"at": 1.5, "kind": "failed", "job": "resize-1", "worker": "ada", "detail": text}
    short = fitted(dict(event), "detail", "job")
    assert len(json.dumps({"from": 2**22, "event": short})) < LONGEST
    assert {**short, "detail": text} == event
    assert text.startswith(short["detail"]) and len(short["detail"]) > LONGEST // 20
    assert fitted({**event, "detail": "short"}, "detail", "job")["detail"] == "short"


# --- the guard of many -----------------------------------------------------------------------------


async def test_many_processes_share_one_guard_and_their_lines_come_whole_and_in_order() -> None:
    processes = Processes()
    heard: dict[int, list[Any]] = {}
    shout = "for number in range(300): os.write(1, json.dumps({'from': os.getpid(), 'n': number, 'x': 'x' * 3000})"
    argv = saying(shout + ".encode() + b'\\n')")
    try:
        children = []
        for number in range(4):
            heard[number] = []
            children.append(await processes.start(argv, {}, heard[number].append))
        for child in children:
            assert await asyncio.wait_for(child.exit, 20) == 0
        # All that a process wrote is there when its exit is.
        assert all([line["n"] for line in lines] == list(range(300)) for lines in heard.values())
    finally:
        await processes.close()


async def test_a_process_is_told_and_signalled_by_its_own_handle(tmp_path: Path) -> None:
    processes = Processes()
    echo = saying(
        "for line in sys.stdin: os.write(1, json.dumps({'from': os.getpid(), 'said': line}).encode() + b'\\n')"
    )
    heard: list[list[Any]] = [[], []]
    try:
        one, two = [await processes.start(echo, {}, lines.append) for lines in heard]
        processes.tell(one, {"hello": 1})
        processes.tell(two, {"hello": 2})
        await eventually(lambda: all(heard))
        assert [json.loads(lines[0]["said"]) for lines in heard] == [{"hello": 1}, {"hello": 2}]
        await processes.signal(one, signal.SIGKILL)
        assert await one.exit == -9
        await processes.signal(one, signal.SIGKILL)
        processes.tell(one, {"hello": 3})
        assert not two.exit.done()
    finally:
        await processes.close()
        await processes.close()


# --- light -----------------------------------------------------------------------------------------


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_worker_process_loads_neither_widgets_nor_pictures() -> None:
    heavy = {"ipywidgets", "IPython", "matplotlib", "numpy", "PIL", "jupyterlab", "meetupq.lab", "meetupq.panels"}
    loaded = set(run_python("import sys, meetupq.worker_process; print(*sys.modules)").split())
    assert "meetupq.workers" in loaded
    assert not loaded & heavy


def test_the_front_door_opens_only_what_is_asked_for() -> None:
    said = run_python("""
import sys, meetupq
assert not [name for name in sys.modules if name.startswith("meetupq.")]
assert set(meetupq.__all__) <= set(dir(meetupq))
assert meetupq.Timing.__module__ == "meetupq.timing" and meetupq.Timing is meetupq.Timing
assert "meetupq.lab" not in sys.modules
try:
    meetupq.Rubbish
except AttributeError as error:
    print(error)
from meetupq import *
print(Lab.__module__, LettersPanel.__module__)
for name in meetupq.__all__:
    assert getattr(meetupq, name).__name__ == name
""")
    assert said.splitlines() == ["module 'meetupq' has no attribute 'Rubbish'", "meetupq.lab meetupq.letters"]


async def test_a_thawed_owner_writes_once_more_and_then_finds_out() -> None:
    """No check before the write would help: the pause can come after the check. The ledger's fence does."""
    async with Stage("ci") as stage:
        await stage.launch("ada", role="leases", process=True)
        await stage.add_work("import-eu", seconds=40, steps=80)
        await stage.history.until("checkpointed", "import-eu", worker="ada", count=2)
        await stage.launch("bo", role="leases", process=True)
        await stage.history.until("lobbied", worker="bo")
        await stage.history.until("checkpointed", "import-eu", worker="ada", count=5)  # she has just begun a step
        await stage.freeze("ada")
        await stage.history.until("checkpointed", "import-eu", worker="bo", count=2)
        await stage.thaw("ada")
        stale = await stage.history.until(lambda event: event.kind == "written" and event.detail.startswith("stale"))
        refused = await stage.history.until("fenced", "import-eu", worker="ada")
        lost = await stage.history.until("lost", "import-eu", worker="ada")
        assert stale.worker == "ada" and stale.attempt == refused.attempt == 6
        assert stage.ledger.unfenced.damage() and not stage.ledger.fenced.damage()
        thawed = stage.history.where("thawed")[0]
        assert thawed.at <= lost.at and thawed.at <= stale.at, "both only when she runs again"
        assert checks.two_believers(stage.history, "import-eu").status == "HELD"
