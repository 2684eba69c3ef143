"""A worker as a process of its own: `python -m meetupq.worker_process`, started by a crew through its guard.

Its first line of stdin says what to be (see `crew.config`). It answers on stdout, one JSON line for each event of its
history, so that the lab hears of it even while the worker is cut off from the broker. Later lines of stdin ask it to
stop, or set something; the end of stdin means that its guard is gone, and so is it, at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, BinaryIO, Final

from meetupq.broker import Broker
from meetupq.errors import MeetupqError
from meetupq.hiring import Job, make_worker
from meetupq.history import Event, History
from meetupq.timing import Timing

LONGEST: Final = getattr(select, "PIPE_BUF", 512)
"""Bytes that the system writes to a pipe in one piece, whoever else writes there."""
ROOM: Final = 100
"""Bytes of a line that are left for what is around its text."""
GOODBYE: Final = 1.0
"""Seconds that a polite goodbye to the broker may take."""
ABANDONED: Final = 3
"""The exit code of a worker whose guard is gone."""


def timing_of(settings: dict[str, Any]) -> Timing:
    """A timing as it was before JSON: with a timing for the low priority, or none."""
    low = settings["low"]
    return Timing(**{**settings, "low": timing_of(low) if low else None})


class Speaker:
    """Says lines to the lab, each in one write, which the system mixes with nobody else's."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def say(self, **line: Any) -> None:
        try:
            os.write(self._pipe, json.dumps({"from": os.getpid(), **line}).encode() + b"\n")
        except OSError:
            os._exit(ABANDONED)  # nobody listens any more

    def tell(self, event: Event) -> None:
        self.say(event=fitted(asdict(event), "detail", "job"))


def fitted(facts: dict[str, Any], *texts: str) -> dict[str, Any]:
    """The facts with these texts shortened, as far as they have to be for a single write."""
    for text in texts:
        while facts[text] and len(json.dumps(facts)) > LONGEST - ROOM:
            facts[text] = facts[text][: len(facts[text]) * 3 // 4]
    return facts


async def work(first: dict[str, Any], orders: BinaryIO, speaker: Speaker) -> None:
    """Connect, say that it is ready, and work until asked to stop."""
    history = History(start=first["start"])
    history.subscribe(speaker.tell)
    client = await Broker(first["url"]).connect(first["name"], **first["options"])
    worker = await make_worker(first["name"], Job(**first["job"]), client, timing_of(first["timing"]), history)

    def obey(order: dict[str, Any]) -> None:
        for what, value in order.get("set", {}).items():
            setattr(worker, what, value)
        if order.get("stop"):
            worker.stop()

    loop = asyncio.get_running_loop()
    threading.Thread(target=_hear, args=(orders, loop, obey), daemon=True).start()
    speaker.say(ready=True)
    await worker.run()
    with contextlib.suppress(Exception):  # a broker that is away can't say goodbye
        await asyncio.wait_for(client.close(), GOODBYE)


def _hear(orders: BinaryIO, loop: asyncio.AbstractEventLoop, obey: Callable[[dict[str, Any]], None]) -> None:
    for line in orders:
        loop.call_soon_threadsafe(obey, json.loads(line))
    os._exit(ABANDONED)


def main() -> None:
    """The process, from its first line to its end: exit code 0 after a stop, 1 after a crash."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which the guard ignores, and we would inherit
    speaker = Speaker(os.dup(1))
    os.dup2(2, 1)  # what anybody prints must not come between our lines
    first = sys.stdin.buffer.readline()
    if not first:
        os._exit(ABANDONED)
    try:
        asyncio.run(work(json.loads(first), sys.stdin.buffer, speaker))
    except Exception as error:  # noqa: BLE001 - whatever it is, the lab is told
        said = str(error) if isinstance(error, MeetupqError) else f"{type(error).__name__}: {error}"
        speaker.say(**fitted({"crashed": said, "error": type(error).__name__}, "crashed"))
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
