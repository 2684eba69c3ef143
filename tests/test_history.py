"""The history: closed lists, threads, waiting, and files that come back as they were or are refused with a line."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meetupq.errors import NotSeen, RecordingBroken
from meetupq.history import KINDS, SOURCES, Event, History, events_of

TEXT = st.text(max_size=12)
NUMBERS = st.integers(-(10**12), 10**12)
SECONDS = st.floats(-1e6, 1e9, allow_nan=False)
EVENTS = st.builds(
    Event,
    at=SECONDS,
    kind=st.sampled_from(sorted(KINDS)),
    job=TEXT,
    worker=TEXT,
    attempt=NUMBERS,
    revision=NUMBERS,
    until=SECONDS,
    source=st.sampled_from(sorted(SOURCES)),
    detail=TEXT,
)


def replay(events: list[Event]) -> History:
    history = History()
    for event in events:
        fields = asdict(event)
        history.append(fields.pop("kind"), **fields)
    return history


# --- appending and reading -------------------------------------------------------------------------


def test_an_append_is_stamped_and_kept_in_order() -> None:
    readings = iter([100.0, 101.5, 104.0])
    history = History(clock=lambda: next(readings))
    first = history.append("published", "resize-1")
    second = history.append("acked", "resize-1", "ada", attempt=1, source="worker", detail="well done")
    assert history.snapshot() == (first, second)
    assert (first.at, second.at) == (1.5, 4.0)
    assert second == Event(4.0, "acked", "resize-1", "ada", 1, 0, 0.0, "worker", "well done")
    assert str(second) == "4.00 s acked resize-1 by ada attempt 1 (well done)"


def test_a_given_time_is_kept() -> None:
    assert History().append("acked", at=7.25).at == 7.25


@pytest.mark.parametrize(("kind", "source"), [("ackd", "worker"), ("acked", "ada"), ("", "lab")])
def test_kinds_and_sources_are_closed_lists(kind: str, source: str) -> None:
    history = History()
    with pytest.raises(ValueError, match="unknown event"):
        history.append(kind, source=source)
    assert len(history) == 0


def test_a_snapshot_does_not_grow() -> None:
    history = History()
    history.append("published", "a")
    before = history.snapshot()
    history.append("published", "b")
    assert [event.job for event in before] == ["a"]
    assert [event.job for event in history] == ["a", "b"]
    assert [event.job for event in history.since(1)] == ["b"]


def test_where_narrows_by_kind_job_worker_and_function() -> None:
    history = History()
    for job, worker in (("a", "ada"), ("b", "ada"), ("a", "bo")):
        history.append("delivered", job, worker)
    assert len(history.where("delivered")) == 3
    assert len(history.where("delivered", "a")) == 2
    assert len(history.where("delivered", "a", "bo")) == 1
    assert len(history.where(lambda event: event.worker == "ada")) == 2
    assert history.where("acked") == []


def test_events_of_takes_a_history_or_any_events() -> None:
    history = History()
    event = history.append("published", "a")
    assert events_of(history) == events_of([event]) == events_of(iter([event])) == (event,)


# --- subscribers -----------------------------------------------------------------------------------


def test_subscribers_hear_later_events_until_they_leave() -> None:
    history = History()
    heard: list[str] = []
    history.append("published", "too-early")
    leave = history.subscribe(lambda event: heard.append(event.job))
    history.append("published", "a")
    leave()
    leave()
    history.append("published", "too-late")
    assert heard == ["a"]


def test_one_subscriber_leaving_leaves_the_other() -> None:
    history = History()
    one: list[Event] = []
    other: list[Event] = []
    leave = history.subscribe(one.append)
    history.subscribe(other.append)
    leave()
    history.append("published")
    assert (len(one), len(other)) == (0, 1)


# --- waiting ---------------------------------------------------------------------------------------


async def test_until_sees_what_was_there_before() -> None:
    history = History()
    event = history.append("acked", "a")
    assert await history.until("acked", within=0.1) is event


async def test_until_waits_for_the_counted_one() -> None:
    history = History()
    waiting = asyncio.ensure_future(history.until("acked", worker="ada", count=3, within=5))
    for number in range(4):
        await asyncio.sleep(0)
        history.append("acked", f"job-{number}", "ada" if number else "bo")
    assert (await waiting).job == "job-3"


async def test_until_returns_the_event_that_made_the_count_full() -> None:
    history = History()
    events = [history.append("acked", f"job-{number}") for number in range(4)]
    assert await history.until("acked", count=2, within=0.1) is events[1]


async def test_until_takes_a_function() -> None:
    history = History()
    history.append("delivered", "a", attempt=1)
    history.append("delivered", "a", attempt=2)
    assert (await history.until(lambda event: event.attempt > 1, within=0.1)).attempt == 2


async def test_a_wait_in_vain_lists_what_was_seen() -> None:
    history = History()
    history.append("delivered", "resize-1", "ada", attempt=1)
    history.append("delivered", "other", "bo")
    with pytest.raises(NotSeen) as caught:
        await history.until("acked", job="resize-1", worker="ada", count=2, within=0.01)
    said = str(caught.value)
    assert "waited 0.01 s for 2 x acked of resize-1 by ada" in said
    assert "delivered resize-1 by ada attempt 1" in said
    assert "other" not in said


async def test_a_wait_in_vain_says_when_nothing_and_when_more_was_seen() -> None:
    history = History()
    with pytest.raises(NotSeen, match="seen so far:\n  nothing"):
        await history.until("acked", within=0.01)
    for number in range(20):
        history.append("published", f"job-{number}")
    with pytest.raises(NotSeen, match="the last 12 of 20") as caught:
        await history.until("acked", within=0.01)
    assert "job-19" in str(caught.value)
    assert "job-7 " not in str(caught.value)


async def test_until_refuses_a_kind_that_can_never_come() -> None:
    with pytest.raises(ValueError, match="unknown event kind 'ackd'"):
        await History().until("ackd", within=5)


async def test_a_finished_wait_leaves_no_subscriber_behind() -> None:
    history = History()
    history.append("acked")
    await history.until("acked", within=0.1)
    with pytest.raises(NotSeen):
        await history.until("naked", within=0.01)
    assert history._listeners == ()


async def test_four_threads_append_while_a_fifth_waits() -> None:
    """No event is lost or doubled, times never go back, and the waiter is woken from the other threads."""

    def clock() -> float:
        now = time.monotonic()
        time.sleep(0)  # let another thread in, here of all places
        return now

    history = History(clock)
    heard: list[Event] = []
    history.subscribe(heard.append)
    go = threading.Event()

    def append(name: str) -> None:
        go.wait()
        for number in range(500):
            history.append("published", f"{name}-{number}", name)

    threads = [threading.Thread(target=append, args=(f"t{number}",)) for number in range(4)]
    waiting = asyncio.ensure_future(history.until("published", count=2000, within=20))
    for thread in threads:
        thread.start()
    asyncio.get_running_loop().call_later(0.02, go.set)  # when the waiter's loop is asleep
    started = time.monotonic()
    last = await waiting
    assert time.monotonic() - started < 10, "woken by its own limit only, not by the other threads"
    for thread in threads:
        thread.join()
    events = history.snapshot()
    assert last is events[1999]
    assert len({event.job for event in events}) == len(heard) == 2000
    assert [event.at for event in events] == sorted(event.at for event in events)
    for name in ("t0", "t1", "t2", "t3"):
        assert [event.job for event in events if event.worker == name] == [f"{name}-{n}" for n in range(500)]


def test_an_append_after_the_waiters_loop_was_closed_is_harmless() -> None:
    """An interrupted cell leaves its loop closed, with the subscription of `until` still there."""
    history = History()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(history.until("acked", within=60))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    history.append("acked")
    assert len(history) == 1
    waiting._log_destroy_pending = False
    waiting.get_coro().close()


# --- files -----------------------------------------------------------------------------------------


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(events=st.lists(EVENTS, max_size=8), meta=st.dictionaries(TEXT, TEXT | NUMBERS, max_size=3))
def test_what_is_saved_is_loaded(tmp_path: Path, events: list[Event], meta: dict[str, object]) -> None:
    """Names and details may hold anything, line separators that only Unicode knows among it."""
    history = replay(events)
    history.meta = meta
    loaded = History.load(history.save(tmp_path / "run.jsonl"))
    assert loaded.snapshot() == tuple(events)
    assert loaded.meta == meta


def test_half_characters_and_odd_line_ends_are_kept(tmp_path: Path) -> None:
    events = [Event(1.0, "failed", "a\u2028b", detail="\ud800 \x85 \x0b")]
    assert History.load(replay(events).save(tmp_path / "run.jsonl")).snapshot() == tuple(events)


def test_a_loaded_history_stands_at_its_last_event(tmp_path: Path) -> None:
    history = replay([Event(1.0, "published", "a"), Event(8.5, "acked", "a")])
    loaded = History.load(history.save(tmp_path / "run.jsonl"))
    assert loaded.now() == loaded.now() == 8.5


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    events = [Event(1.0, "published", "a"), Event(2.0, "delivered", "a", "ada", 1), Event(3.0, "acked", "a", "ada", 1)]
    return replay(events).save(tmp_path / "run.jsonl")


def edit(path: Path, number: int, **changes: object) -> None:
    """Change fields of line `number` (from 1); None removes one."""
    lines = path.read_text().splitlines()
    raw = {**json.loads(lines[number - 1]), **changes}
    lines[number - 1] = json.dumps({name: value for name, value in raw.items() if value is not None})
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("line", "changes", "says"),
    [
        (1, {"format": "other"}, "line 1: this is not a meetupq recording"),
        (1, {"version": 2}, "line 1: format version 2, but this meetupq reads 1"),
        (1, {"version": None}, "line 1: format version None"),
        (1, {"events": "3"}, "line 1: the header lacks"),
        (1, {"meta": None}, "line 1: the header lacks"),
        (1, {"events": 4}, "has 3 events but line 1 promises 4"),
        (2, {"at": None}, "line 2: the field 'at' is missing"),
        (3, {"at": "2"}, "line 3: the field 'at' should be of type float"),
        (3, {"attempt": 1.5}, "line 3: the field 'attempt' should be of type int"),
        (3, {"attempt": True}, "line 3: the field 'attempt' should be of type int"),
        (4, {"worker": 7}, "line 4: the field 'worker' should be of type str"),
        (4, {"kind": "ackd"}, "line 4: unknown kind 'ackd'"),
        (4, {"source": "ada"}, "line 4: unknown kind 'acked' or source 'ada'"),
        (4, {"colour": "red"}, "line 4: unknown field 'colour'"),
    ],
)
def test_an_edited_file_is_refused_with_its_line(
    recording: Path, line: int, changes: dict[str, object], says: str
) -> None:
    edit(recording, line, **changes)
    with pytest.raises(RecordingBroken) as caught:
        History.load(recording)
    assert says in str(caught.value)
    assert str(recording) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "line 1: this is not"),
        (b"\n\n", "line 1: this is not"),
        (b"hello\n", "line 1: this is not"),
        (b"[1, 2]\n", "line 1: this is not"),
        (b"\x89PNG\r\n\xff\xfe", "is not text"),
        (b"[" * 100_000, "line 1: this is not"),
        (b"9" * 5_000, "line 1: this is not"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordingBroken, match=says):
        History.load(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "9" * 5_000, "[" * 100_000])
def test_numbers_that_are_none_are_refused(recording: Path, number: str) -> None:
    recording.write_text(recording.read_text().replace("2.0", number))
    with pytest.raises(RecordingBroken, match="line 3"):
        History.load(recording)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.jsonl", tmp_path):
        with pytest.raises(RecordingBroken, match="check the path"):
            History.load(path)


def test_a_file_that_was_cut_off_anywhere_is_refused(recording: Path) -> None:
    whole = recording.read_bytes()
    for end in range(len(whole) - 1):  # only the last line's end may be missing
        recording.write_bytes(whole[:end])
        with pytest.raises(RecordingBroken):
            History.load(recording)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_file_loads_or_is_refused_and_nothing_else(recording: Path, data: st.DataObject) -> None:
    whole = replay([Event(1.0, "published", "a"), Event(3.0, "acked", "a", "ada", 1)]).save(recording).read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 20)))
    junk = data.draw(
        st.binary(max_size=6) | st.sampled_from([b"\n", b"NaN", b"1e999", b"{}", b"null", b"\xe2\x80\xa8"])
    )
    recording.write_bytes(whole[:start] + junk + whole[end:])
    try:
        loaded = History.load(recording)
    except RecordingBroken as error:
        assert str(recording) in str(error)
    else:
        assert len(loaded.snapshot()) == 2
