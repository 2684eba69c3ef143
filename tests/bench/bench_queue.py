"""What a long queue costs, on a real broker and in the pictures, each figure beside the bare minimum or a naive way.

python tests/bench/bench_queue.py [--jobs 10000] [--letters 200] [--frames 30]

Prints a table. It promises nothing: compare the two columns, not the seconds of two machines.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psutil
from nats.aio.client import Client
from nats.js.api import RetentionPolicy, StorageType, StreamConfig

from meetupq import subjects
from meetupq.broker import sever
from meetupq.dead_letters import DeadLetter
from meetupq.figures import DeliveryPicture, delivery_attempts
from meetupq.history import History
from meetupq.ink import encode
from meetupq.letters import LettersPanel
from meetupq.panels import QueuePanel
from meetupq.stage import TOGETHER, Stage
from meetupq.timeline import Timeline
from meetupq.timing import Timing
from meetupq.twins import describe_deliveries
from meetupq.view import Controls
from meetupq.workers import job_payload

FEW: Final = 100
"""The short queue that the long one is compared with."""
LEFT: Final = 50
"""So many jobs still wait when the pictures are drawn."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure, and what it is compared with."""

    what: str
    figure: float
    unit: str
    beside: float
    beside_what: str

    def __str__(self) -> str:
        ratio = f"{self.figure / self.beside:7.2f}" if self.beside else "      -"
        told = f"{self.what:<44}{self.figure:>12.3f}{self.beside:>12.3f} {self.unit:<9}{ratio} x {self.beside_what}"
        return told if self.beside_what else f"{self.what:<44}{self.figure:>12.3f}{'':13}{self.unit}"


async def fill(stage: Stage, jobs: int, letters: int) -> float:
    """Publish, and let workers do nearly all; some become dead letters. Returns the seconds of publishing."""
    started = time.perf_counter()
    await stage.publish(count=jobs - letters - LEFT, seconds=0)
    took = time.perf_counter() - started
    await stage.publish(count=letters, kind="broken", seconds=0, ending="reject")
    await stage.launch("ada", "bo", "cy", "dan")
    done = Timeline()
    while not done.jobs or done.by_state["waiting"] or done.by_state["in flight"]:
        await asyncio.sleep(0.1)
        done.feed(stage.history.since(done.seen))
    for name in stage.crew.at_work:
        await stage.crew.stop(name)
    await stage.publish(count=LEFT, kind="later")
    return took


async def publish_raw(client: Client, jobs: int) -> float:
    """The same without meetupq: into a stream of the same kind, as many at once. Returns the seconds."""
    jetstream = client.jetstream()
    kind = {"retention": RetentionPolicy.WORK_QUEUE, "storage": StorageType.FILE}
    await jetstream.add_stream(StreamConfig(name="bare", subjects=["bare.*"], **kind))
    payload, started = job_payload(seconds=0), time.perf_counter()
    for start in range(0, jobs, TOGETHER):
        numbers = range(start, min(start + TOGETHER, jobs))
        headers = ({subjects.JOB: f"bare-{number}", subjects.MSG_ID: f"bare-{number}"} for number in numbers)
        await asyncio.gather(*(jetstream.publish("bare.job", payload, headers=header) for header in headers))
    took = time.perf_counter() - started
    await jetstream.delete_stream("bare")
    return took


async def clocked(call: Callable[[], Awaitable[object]], times: int = 10) -> float:
    """Milliseconds of a call; the median."""
    took = []
    for _ in range(times):
        started = time.perf_counter()
        await call()
        took.append(time.perf_counter() - started)
    return statistics.median(took) * 1000


def cpu(call: Callable[[], object], frames: int) -> float:
    """Milliseconds of this thread's processor time for a call."""
    call()  # the first one draws the background, loads fonts, ...
    started = time.thread_time()
    for _ in range(frames):
        call()
    return (time.thread_time() - started) / frames * 1000


def frame_costs(history: History, letters: Sequence[DeadLetter], frames: int) -> dict[str, float]:
    """Milliseconds of CPU for everything that is done for a frame, each time at a later moment."""
    timeline, picture = Timeline(history), DeliveryPicture()
    clock = [timeline.last + 0.5]

    def later() -> float:
        clock[0] += 0.001
        return clock[0]

    def draw() -> None:
        picture.update(timeline, later())
        picture.png()

    controls = Controls(lambda *_, **__: None, Timing.preset("ci"), list, list, letters=lambda: letters)
    whole, table = QueuePanel(history, controls), LettersPanel(history, controls)
    costs = {
        "picture": cpu(draw, frames),
        "counts for the bar": cpu(lambda: timeline.counts, frames),
        "text twin": cpu(lambda: describe_deliveries(timeline, now=later()), frames),
        "whole queue panel": cpu(whole._frame, frames),
        "table of dead letters": cpu(table._frame, frames),
        "naive: a fresh figure": cpu(lambda: encode(delivery_attempts(history, now=later())), max(frames // 10, 1)),
    }
    for panel in (whole, table):
        panel.close()
    return costs


def append_rate(count: int, subscribers: int) -> float:
    """Events a second."""
    history = History()
    for _ in range(subscribers):
        history.subscribe(lambda event: None)
    started = time.perf_counter()
    for number in range(count):
        history.append("published", f"job-{number}", revision=number)
    return count / (time.perf_counter() - started)


def kilobytes(make: Callable[[], Any]) -> float:
    """What is kept in memory by what `make` returns."""
    gc.collect()
    tracemalloc.start()
    kept = make()
    size = tracemalloc.get_traced_memory()[0] / 1024
    tracemalloc.stop()
    del kept
    return size


async def measure(jobs: int = 10_000, letters: int = 200, frames: int = 30) -> list[Row]:
    """All figures, on a broker of our own with the timing `ci`."""
    few_letters = max(FEW * letters // jobs, 1)
    async with Stage("ci") as stage:
        await fill(stage, FEW + LEFT, few_letters)
        few, few_dead = stage.history, await stage.letters()
    async with Stage("ci") as stage:
        raw = await stage.broker.connect("bare")
        try:
            bare = await publish_raw(raw, jobs)
            ours = await fill(stage, jobs, letters)
            # Before and after: whatever else runs on this machine comes and goes.
            bare = (bare + await publish_raw(raw, jobs)) / 2
            jetstream = raw.jetstream()
            numbers = [letter.number for letter in await stage.letters()]

            async def get_all() -> None:
                for number in numbers:
                    await jetstream.get_msg(subjects.DEAD, seq=number)

            rows = [
                Row("publish", (jobs - letters - LEFT) / ours, "jobs/s", jobs / bare, "nats-py alone"),
                Row(
                    "summary()", await clocked(stage.summary), "ms",
                    await clocked(lambda: jetstream.stream_info(subjects.JOBS)), "one stream_info",
                ),
                Row(
                    f"letters(), {len(numbers)} of them", await clocked(stage.letters, 3), "ms",
                    await clocked(get_all, 3), "as many get_msg",
                ),
            ]  # fmt: skip
            many, dead = stage.history, await stage.letters()
        finally:
            await sever(raw)
    long, short = frame_costs(many, dead, frames), frame_costs(few, few_dead, frames)
    rows += [
        Row(f"frame, {what}, {jobs} jobs", long[what], "ms CPU", short[what], f"with {FEW + LEFT} jobs")
        for what in long
    ]
    rows.append(
        Row(f"frame, picture, {jobs} jobs", long["picture"], "ms CPU", long["naive: a fresh figure"], "a fresh figure")
    )
    rows.append(Row("History.append", append_rate(10 * jobs, 3), "events/s", append_rate(10 * jobs, 0), "no listener"))
    events = many.snapshot()
    size = kilobytes(lambda: Timeline(events))
    rows.append(Row(f"memory of the timeline, {jobs} jobs", size, "KiB", size / jobs, "a single job"))
    resident = psutil.Process().memory_info().rss / 2**20
    rows.append(Row(f"memory of the process, {len(events)} events", resident, "MiB", 0, ""))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--letters", type=int, default=200)
    parser.add_argument("--frames", type=int, default=30)
    chosen = parser.parse_args(arguments)
    print(f"{'':<44}{'figure':>12}{'beside':>12} {'unit':<9}{'ratio':>7}")
    for row in asyncio.run(measure(chosen.jobs, chosen.letters, chosen.frames)):
        print(row)


if __name__ == "__main__":
    main()
