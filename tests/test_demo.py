"""`meetupq demo`: the talk's workload, its performance, and what is told about it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time
from pathlib import Path

import psutil
import pytest
from command_rig import in_new_process

from meetupq import demo
from meetupq.broker import Broker
from meetupq.demo import Events, Rows, compare, settle, tell
from meetupq.errors import MeetupqError
from meetupq.history import Event, History
from meetupq.scenarios import ABSENCE, TRAFFIC, Traffic, kills, owner_deaths
from meetupq.stage import Stage
from meetupq.timing import Timing

TALK = Timing.preset("talk")
EMAILS, STATS = TRAFFIC

# --- the workload ------------------------------------------------------------------------------------


def test_the_same_seed_fails_and_kills_the_same_and_another_seed_others() -> None:
    def plan(seed: int) -> list[object]:
        return [*EMAILS.jobs(120, seed), *STATS.jobs(120, seed), *kills(120, seed)]

    assert plan(1) == plan(1)
    for seed in (2, -1):
        assert {*EMAILS.jobs(120, seed)} != {*EMAILS.jobs(120, 1)}
        assert [*kills(120, seed)] != [*kills(120, 1)]


@pytest.mark.parametrize("flow", TRAFFIC, ids=lambda flow: flow.name)
def test_two_jobs_in_every_ten_are_poison_and_the_same_ones_in_a_longer_run(flow: Traffic) -> None:
    long, short = ([*flow.jobs(seconds, seed=1)] for seconds in (300, 60))
    poison = {job for _, job, poison in long if poison}
    for first in range(1, len(long), 10):
        assert len(poison & {f"{flow.name}-{number}" for number in range(first, first + 10)}) == 2
    assert short == [job for job in long if job[0] < 60]


def test_jobs_come_at_the_talks_pace() -> None:
    assert [(flow.kind, flow.priority) for flow in TRAFFIC] == [("send_email", "high"), ("calc_stats", "low")]
    assert [at for at, _, _ in EMAILS.jobs(20, 1)] == [float(n) for n in range(20)]
    assert [at for at, _, _ in STATS.jobs(20, 1)] == [0, 5, 10, 15]
    assert [len(flow.workers) for flow in TRAFFIC] == [10, 2]


def test_whoever_dies_is_back_before_the_next_one_dies() -> None:
    deaths = [at for at, _ in kills(90, seed=1)]
    assert len(deaths) > 10
    assert all(0 <= at < 90 and 0 <= draw < 1 for at, draw in kills(90, seed=1))
    assert all(later - earlier > ABSENCE for earlier, later in itertools.pairwise(deaths))
    owners = [*owner_deaths(90, TALK.lease_ttl)]
    assert all(later - earlier > 2 * TALK.lease_ttl for earlier, later in itertools.pairwise(owners))


def test_owners_die_often_enough_that_every_minute_of_the_talks_timing_shows_a_reclaim() -> None:
    deaths = [*owner_deaths(600, TALK.lease_ttl)]
    assert deaths[0] == pytest.approx(6)
    assert all(later - earlier <= 45 for earlier, later in itertools.pairwise(deaths))
    assert 550 < deaths[-1] < 600


# --- history and broker ------------------------------------------------------------------------------


def happened(*what: str) -> tuple[Event, ...]:
    """Events from words like "acked 3": that happened to job 3."""
    history = History()
    for at, (kind, job) in enumerate(map(str.split, what)):
        worker = "" if kind == "published" else "ada"
        history.append(kind, job, worker, at=float(at), attempt=1, until=at + 5.0, revision=1, source="worker")
    return history.snapshot()


TEN = [f"published {job}" for job in range(10)] + ["acked 0", "acked 1", "acked 2", "acked 3"]
EVEN = [*TEN, "dead_lettered 4", "dead_lettered 5", "delivered 6", "exhausted 7"]


def add_up(rows: Rows) -> bool:
    return all(ours == theirs for ours, theirs in rows.values())


def test_it_adds_up_only_if_history_and_broker_agree_in_every_number() -> None:
    assert compare(happened(*EVEN), 10, 4, 2) == {
        "published": (10, 10),
        "acked": (4, 4),
        "dead": (2, 2),
        "in flight": (4, 4),
    }
    for books in ((11, 4, 2), (10, 5, 2), (10, 4, 3), (9, 4, 2), (11, 5, 2)):
        assert not add_up(compare(happened(*EVEN), *books)), books
    for surprise in ("published 10", "acked 6", "dead_lettered 6", "dead_lettered 3", "delivered 99"):
        assert not add_up(compare(happened(*EVEN, surprise), 10, 4, 2)), surprise


async def test_a_job_that_nobody_here_published_is_noticed() -> None:
    async with Stage("ci") as stage:
        await stage.publish(count=3)
        _, rows = await settle(stage)
        assert rows == {"published": (3, 3), "acked": (0, 0), "dead": (0, 0), "in flight": (3, 3)}
        client = await stage.broker.connect("stranger")
        await client.jetstream().publish("jobs.high.resize", b"{}")
        await client.close()
        _, rows = await settle(stage, within=0.3)
        assert not add_up(rows)
        assert rows["published"] == (3, 4)


async def test_an_ack_that_is_on_its_way_into_the_history_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, look = asyncio.Event(), demo.count

    async def looking_at(stage: Stage) -> tuple[int, int, int]:
        books = await look(stage)
        looked.set()
        return books

    monkeypatch.setattr(demo, "count", looking_at)
    async with Stage("ci") as stage:
        await stage.publish("slow")
        stage.history.append("acked", "slow", attempt=1, source="worker")  # said before the broker has heard it
        looking = asyncio.create_task(settle(stage, within=10))
        await looked.wait()
        client = await stage.broker.connect("worker")
        [message] = await (await client.jetstream().pull_subscribe_bind("worker_high", "jobs")).fetch(1)
        await message.ack_sync()
        _, rows = await looking
        await client.close()
        assert add_up(rows)
        assert rows["acked"] == (1, 1)


# --- the whole show ----------------------------------------------------------------------------------


def test_demo_tells_and_writes_everything(tmp_path: Path) -> None:
    process = in_new_process("demo", "--timing", "ci", "--seconds", "7", "--out", "show/new", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    rows = [line.rsplit(maxsplit=2) for line in out.splitlines()[1:5]]
    table = {what: int(ours) for what, ours, _ in rows}
    assert all(ours == theirs for _, ours, theirs in rows)
    assert table["published"] == 9 == table["acked"] + table["dead"] + table["in flight"]
    assert "HELD: 9 published = " in out
    assert out.count("HELD: ") == 2
    assert "reclaimed it" in out
    assert "email-3" in out
    folder = tmp_path / "show" / "new"
    for picture in ("deliveries.png", "leases.png"):
        data = (folder / picture).read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert int.from_bytes(data[16:20]) == 1920  # 960 CSS pixels, drawn for a screen of two to one
    recording = History.load(folder / "recording.jsonl")
    assert recording.meta == {"timing": "ci", "scenario": "meetup", "seconds": 7.0, "seed": 1}
    assert len({event.job for event in recording.where("published")}) == 9
    assert len(recording.where("dead_lettered")) == table["dead"]
    kinds = {event.kind for event in recording}
    assert {"killed", "failed", "dead_lettered", "claimed", "reclaimed", "checkpointed"} <= kinds
    poison = {job for flow in TRAFFIC for _, job, poison in flow.jobs(7, seed=1) if poison}
    assert {event.job for event in recording.where("failed")} == poison == {"email-3", "email-6"}
    started = [event.worker for event in recording.where("started")]
    assert any(started.count(event.worker) == 2 for event in recording.where("killed"))  # and back
    assert [line.split()[0] for line in err.splitlines()[1:]] == ["5.0", "7.0"]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_demo_that_is_interrupted_leaves_nothing(tmp_path: Path, how: signal.Signals, code: int) -> None:
    process = in_new_process("demo", "--seconds", "60", cwd=tmp_path)
    assert process.stderr
    assert process.stderr.readline().startswith("60 s of the talk's workload")
    time.sleep(0.5)  # now the crew is at work
    family = psutil.Process(process.pid).children(recursive=True)
    assert any("nats-server" in child.name() for child in family)
    process.send_signal(how)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert "Traceback" not in err
    assert out == ""
    _, alive = psutil.wait_procs(family, timeout=5)
    assert alive == []
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_an_interrupt_that_the_work_swallows_ends_it_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def deaf(*_: object, **__: object) -> None:
        begun.set()
        for _ in range(3):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue  # as asyncio.wait_for of Python 3.11 does when the result has just come
        ended.set()

    monkeypatch.setattr(demo, "perform", deaf)
    async with Stage("ci") as stage:
        playing = asyncio.create_task(demo._play(stage, 60, 1))
        await begun.wait()
        playing.cancel()
        await asyncio.wait({playing}, timeout=5)
        assert playing.cancelled()
        assert ended.is_set()  # nothing of it goes on in the background


async def test_an_interrupt_that_was_swallowed_while_the_stage_opened_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "perform", lambda *_, **__: asyncio.sleep(60))

    async def opens_then_plays(stage: Stage) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await demo._play(stage, 60, 1)

    async with Stage("ci") as stage:
        playing = asyncio.create_task(opens_then_plays(stage))
        await asyncio.sleep(0)
        playing.cancel()
        await asyncio.wait({playing}, timeout=5)
        assert playing.cancelled()


def test_demo_refuses_a_folder_that_cannot_be_written_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(demo, "_demo", lambda *_: pytest.fail("the demo was started"))
    with pytest.raises(
        MeetupqError, match=rf"^can't write to {tmp_path}/file/below \(Not a directory\): choose .*out$"
    ):
        demo.run(60, "ci", 1, str(tmp_path / "file" / "below"))


async def test_demo_refuses_a_server_that_had_jobs_before_and_shows_no_credentials(
    broker: Broker, tmp_path: Path
) -> None:
    url = f"nats://{broker._token}@{broker.address}"
    async with Stage("ci", url=url) as stage:
        await stage.publish("old")
    process = in_new_process("demo", "--timing", "ci", cwd=tmp_path, MEETUPQ_NATS_URL=url)
    out, err = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == 1
    assert "has had jobs before" in err
    assert broker._token not in out + err
    assert broker.running


# --- what is told ------------------------------------------------------------------------------------

PLAYED = happened("published one", "delivered one", "acked one")


def told(
    events: Events, folder: Path, *failures: object, stored: int = 1, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    code = tell(events, compare(events, stored, 0, 0), failures, {"seed": 3}, folder)
    return code, capsys.readouterr().out


def test_what_is_well_exits_with_zero_and_is_recorded_up_to_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = told(PLAYED, tmp_path, capsys=capsys)
    assert code == 0
    assert "HELD: 1 published = 1 acked + 0 dead + 0 in flight" in out
    assert "differs" not in out
    recording = History.load(tmp_path / "recording.jsonl")
    assert recording.snapshot() == PLAYED
    assert recording.meta == {"seed": 3}


def test_what_does_not_add_up_exits_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = told(PLAYED, tmp_path, stored=2, capsys=capsys)
    assert code == 1
    assert "<- differs" in out


def test_a_background_failure_fails_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = told(PLAYED, tmp_path, "worker ada crashed: ValueError: x", capsys=capsys)
    assert code == 1
    assert "BROKEN: in the background, worker ada crashed" in out


def test_a_broken_verdict_fails_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Two owners at once: the sums agree, the events don't.
    claims = [Event(at, "claimed", "work", who, 0, 1, at + 5, "worker", "") for at, who in ((3.0, "bo"), (3.5, "cy"))]
    code, out = told([*PLAYED, *claims], tmp_path, capsys=capsys)
    assert code == 1
    assert "differs" not in out
    assert "BROKEN: " in out
