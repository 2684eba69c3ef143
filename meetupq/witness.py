"""The witness: tells the history what no worker can.

- An ack that reached the broker although its worker died before it heard the answer (the broker's ack metric says so).
- Patience that ran out. NATS has no message for that, so it is inferred from the clock, and marked as inferred.
- A job that was terminated by somebody who told only the broker.
- A job whose last attempt's patience ran out: exhausted, even while the broker says nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn

from nats.aio.client import Client

from meetupq import subjects
from meetupq.buckets import delivery_of
from meetupq.history import History
from meetupq.tasks import together
from meetupq.timeline import Timeline
from meetupq.timing import Timing

TICK: Final = 0.05
GRACE: Final = 0.5
"""Seconds that a worker's own word has before the broker's is written down in its place."""


class Witness:
    """Listens to the broker's metrics and watches the clock. `run` it on a connection that lives as long as the lab."""

    def __init__(self, client: Client, timing: Timing, history: History) -> None:
        self._client = client
        self._timing = timing
        self._history = history
        self._timeline = Timeline()
        self._heard: dict[int, tuple[str, float, int]] = {}
        self._jobs: dict[int, str] = {}
        self._newest: dict[str, int] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        await together(
            acks=self._listen(subjects.ACK_METRIC, "acked"),
            terms=self._listen(subjects.MSG_TERMINATED, "terminated"),
            look=self._look_again_and_again(),
        )

    async def _look_again_and_again(self) -> NoReturn:
        while True:
            self._look()
            await asyncio.sleep(TICK)

    async def _listen(self, subject: str, kind: str) -> None:
        reports = await self._client.subscribe(f"{subject}.{subjects.JOBS}.*")
        async for message in reports.messages:
            if delivery := delivery_of(message.data):
                sequence, deliveries = delivery
                self._heard[sequence] = (kind, self._history.now(), deliveries)

    def _look(self) -> None:
        news = self._history.since(self._timeline.seen)
        self._timeline.feed(news)
        for event in news:
            if event.kind in ("published", "delivered", "escalated") and event.revision:
                self._jobs[event.revision] = event.job
                self._newest[event.job] = max(event.revision, self._newest.get(event.job, 0))
        now = self._history.now()
        self._untold(now)
        for job, attempt in self._timeline.overdue(now):
            self._history.append(
                "timed_out", job.name, attempt.worker, at=attempt.until, attempt=attempt.number, source="inferred"
            )
            if attempt.number >= self._timing.of(subjects.priority_of(job.subject)).max_deliver:
                self._history.append(
                    "exhausted",
                    job.name,
                    attempt=attempt.number,
                    source="inferred",
                    detail="the last attempt's patience ran out; the broker has not said so yet",
                )

    def _untold(self, now: float) -> None:
        for sequence in [s for s, (_, heard, _) in self._heard.items() if now - heard > GRACE]:
            kind, heard, deliveries = self._heard.pop(sequence)
            line = self._timeline.jobs.get(self._jobs.get(sequence, ""))
            if line is None or line.state in ("done", "dead", "terminated"):
                continue
            if self._newest[line.name] != sequence:
                continue  # about an earlier life of a job that was put back since: it says nothing about this one
            worker = next((a.worker for a in reversed(line.attempts) if a.number == deliveries), "")
            self._history.append(
                kind,
                line.name,
                worker,
                at=heard,
                attempt=deliveries,
                revision=sequence,
                source="broker",
                detail="no worker has said so: it did not live to hear it, or it is none of ours",
            )
