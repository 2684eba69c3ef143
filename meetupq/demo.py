"""`meetupq demo`: the talk's workload without Jupyter; then what became of it, told, drawn and recorded."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import Any

from meetupq import checks, figures, ink, subjects, twins
from meetupq.broker import asking
from meetupq.errors import MeetupqError, QueueError
from meetupq.history import Event, History
from meetupq.scenarios import perform
from meetupq.stage import Stage
from meetupq.tasks import together
from meetupq.timeline import Timeline

Events = Sequence[Event]
Rows = dict[str, tuple[int, int]]
"""What is counted: by the history, by the broker."""


def run(seconds: float, timing: str, seed: int, out: str) -> int:
    """Run the demo and tell about it. Returns the exit code: 1 if anything doesn't add up.

    Raises:
        MeetupqError: `out` can't be written, or the broker refuses, is gone, or has jobs of somebody else.
    """
    folder = Path(out).expanduser().absolute()
    with _writing(folder):  # an hour's run must not fail at its end
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    return asyncio.run(_demo(seconds, timing, seed, folder))


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MeetupqError(f"can't write to {folder} ({error.strerror or error}): choose another with --out") from error


async def _demo(seconds: float, timing: str, seed: int, folder: Path) -> int:
    async with Stage(timing) as stage:
        events, rows = await _play(stage, seconds, seed)
        failures = [*stage.failures]
    return tell(events, rows, failures, stage.history.meta, folder)


async def _play(stage: Stage, seconds: float, seed: int) -> tuple[Events, Rows]:
    if (await count(stage))[0]:
        raise MeetupqError(
            f"the server at {stage.broker.address} has had jobs before, and the demo counts from nothing: "
            "unset MEETUPQ_NATS_URL, or remove the streams and buckets of meetupq there"
        )
    stage.history.meta.update(scenario="meetup", seconds=seconds, seed=seed)
    setting = f"timing {stage.timing.name!r}, nats-server {stage.broker.version}"
    print(f"{seconds:g} s of the talk's workload, {setting}", file=sys.stderr)
    if (task := asyncio.current_task()) and task.cancelling():
        raise asyncio.CancelledError  # Ctrl-C came as the stage opened, and nats-py swallowed it (see `drop`)
    await together(show=perform(stage, seconds=seconds, seed=seed), progress=_progress(stage.history, seconds))
    return await settle(stage)


async def _progress(history: History, seconds: float) -> None:
    """A line on stderr every five seconds, and one at the end."""
    timeline, began = Timeline(), time.monotonic()
    for at in [*range(5, ceil(seconds), 5), seconds]:
        await asyncio.sleep(began + at - time.monotonic())
        timeline.feed(history.since(timeline.seen))
        counts = ", ".join(f"{count} {state}" for state, count in timeline.counts.items() if count)
        print(f"{at:5.1f} of {seconds:g} s: {counts}", file=sys.stderr)


async def count(stage: Stage) -> tuple[int, int, int]:
    """The broker's books: the jobs that it ever stored, those that it has now, and the dead letters.

    Raises:
        QueueError, BrokerUnreachable: it can't be asked.
    """
    client = await stage.broker.connect("demo")
    try:
        with asking("count the jobs and the dead letters", QueueError):
            dead = (await client.jetstream(timeout=2).stream_info(subjects.DEAD)).state
            jobs = (await client.jetstream(timeout=2).stream_info(subjects.JOBS)).state
            return jobs.last_seq, jobs.messages, dead.messages
    finally:
        await client.close()


def compare(events: Events, stored: int, queued: int, letters: int) -> Rows:
    """The history beside the broker's books. Those forget a job that is done: what is missing there was acked."""
    counts = Timeline(events).counts
    done, dead = counts["done"], counts["dead"]
    return {
        "published": (len({event.job for event in events if event.kind == "published"}), stored),
        "acked": (done, stored - queued - letters),
        "dead": (dead, letters),
        "in flight": (sum(counts.values()) - done - dead, queued),
    }


async def settle(stage: Stage, within: float = 5.0) -> tuple[Events, Rows]:
    """The history up to a moment when the broker agrees with it; if there is none in time, as it is then.

    The two can't be read in one moment, and an ack is in the broker's books a little before it is in the history.
    """
    late = time.monotonic() + within
    while True:
        books, events = await count(stage), stage.history.snapshot()
        rows = compare(events, *books)
        if all(ours == theirs for ours, theirs in rows.values()) or time.monotonic() > late:
            return events, rows
        await asyncio.sleep(0.1)


def tell(events: Events, rows: Rows, failures: Sequence[object], meta: Mapping[str, Any], folder: Path) -> int:
    """Print and write everything about a run. Returns the exit code."""
    print(f"{'':12}{'history':>9}{'broker':>9}")
    for what, (ours, theirs) in rows.items():
        print(f"{what:<12}{ours:>9}{theirs:>9}{'' if ours == theirs else '   <- differs'}")
    print("", twins.describe_deliveries(events), twins.describe_leases(events), "", sep="\n")
    verdicts = [
        checks.nothing_lost(events, in_stream=rows["in flight"][1], letters=rows["dead"][1]),
        checks.never_two_owners(events),
    ]
    print(*verdicts, *(f"BROKEN: in the background, {failure}" for failure in failures), sep="\n")
    recording = History()  # of exactly these events, so that it ends where the books were read
    recording.meta.update(meta)
    for event in events:
        recording.append(**asdict(event))
    with _writing(folder):
        for name, drawn in (("deliveries", figures.delivery_attempts), ("leases", figures.lease_ownership)):
            (folder / f"{name}.png").write_bytes(ink.encode(drawn(events, pixel_ratio=2.0)))
        recording.save(folder / "recording.jsonl")
    print(f"wrote deliveries.png, leases.png and recording.jsonl into {folder}")
    broken = any(verdict.status == "BROKEN" for verdict in verdicts)
    return int(broken or bool(failures) or any(ours != theirs for ours, theirs in rows.values()))
