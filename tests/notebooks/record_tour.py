"""Records the run that the guided tour shows: ten real seconds in which everything happens that the picture can show.

python tests/notebooks/record_tour.py

It takes another turn until the run tells its story cleanly: which of the waiting workers gets a job is the broker's
choice. Look at the tour afterwards; its steps are found in the recording, not written here.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from meetupq.history import History
from meetupq.stage import Stage
from meetupq.timeline import Timeline
from meetupq.timing import Timing

RECORDING: Final = Path(__file__).parents[2] / "meetupq" / "recordings" / "tour.jsonl"
# The same patience with every attempt, so that nobody has to think about backoff yet; else as in the lessons.
TIMING: Final = Timing.preset("class").but(ack_wait=1.5, heartbeat=0.5, sweep=60)
TURNS: Final = 10


async def perform() -> History:
    """A job done, a worker killed at its job, and a poison job: to the dead letters, and back to mended workers."""
    async with Stage(TIMING) as stage:
        stage.burying = False  # the dead job is to be seen as the broker leaves it before it is brought to the DLQ
        history = stage.history
        await _at(history, 0.3)
        await stage.publish("resize-1", seconds=0.9)
        await _at(history, 1.0)
        await stage.launch("ada")
        await history.until("progressed", "resize-1")
        await asyncio.sleep(0.15)
        await stage.publish("video-1", kind="video", seconds=1.6)  # while ada is busy
        await stage.launch("bo")
        await history.until("progressed", "video-1", count=2)
        await asyncio.sleep(0.35)
        await stage.kill("bo")
        await asyncio.sleep(0.6)
        await stage.launch("cy")
        await stage.poison(seconds=0.4)
        await history.until(lambda e: e.kind == "exhausted" and e.source == "broker", "poison-1", within=20)
        await asyncio.sleep(0.8)
        await stage.sweep()
        await stage.stop("ada")
        await stage.stop("cy")
        await history.until("stopped", count=2)
        await asyncio.sleep(0.3)
        await stage.redrive_all()
        await asyncio.sleep(0.3)
        await stage.launch("ada", "cy", fixed=True)
        await history.until("acked", "poison-1")
        await asyncio.sleep(0.2)
        assert not stage.failures, stage.failures
    return history


async def _at(history: History, moment: float) -> None:
    await asyncio.sleep(max(moment - history.now(), 0))


def flaw(history: History) -> str:
    """Why this run is not fit to be shown; "" if it is."""
    timeline = Timeline(history)
    video, poison = timeline.jobs["video-1"], timeline.jobs["poison-1"]
    if {job.state for job in timeline.jobs.values()} != {"done"}:
        return "not all jobs are done"
    if [a.how for a in video.attempts] != ["killed", "acked"] or len(poison.attempts) != 4:
        return "an attempt too many or too few"
    if len({a.worker for a in poison.attempts[:3]}) < 2:
        return "the poison job went to one worker only"
    return ""


def main() -> None:
    for turn in range(1, TURNS + 1):
        history = asyncio.run(perform())
        if not (why := flaw(history)):
            RECORDING.parent.mkdir(exist_ok=True)
            print(f"turn {turn}: {len(history)} events, {Timeline(history).last:.1f} s; {history.save(RECORDING)}")
            return
        print(f"turn {turn}: {why}")
    raise SystemExit(f"none of {TURNS} turns was fit to be shown")


if __name__ == "__main__":
    main()
