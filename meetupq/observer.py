"""What one observer knows of the claims: the last change of each key, when it was seen, and how.

It watches the bucket, which is fast, and reads again whatever is overdue, which is certain: after a restart of the
broker a watcher can be blind for many seconds while leases are renewed and expire.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

import nats.errors
from nats.js.api import RawStreamMsg
from nats.js.kv import KeyValue

from meetupq import subjects
from meetupq.buckets import Ended, has_expired, last_entry
from meetupq.leases import Leases
from meetupq.tasks import together

WATCH_AGAIN: Final = 0.25
"""Seconds after which a watcher that has heard nothing asks whether its connection was renewed, which blinds it."""


@dataclass(slots=True)
class Sight:
    """The last change of a key that was seen.

    Attributes:
        revision: of the change; 0 if the key is gone without a trace.
        at: when it was seen, a reading of time.monotonic().
        evidence: how, "watch" or "list".
        data: the claim; empty in a note.
        note: "" for a claim; "released" for an owner's note, "expired" for the broker's, or none where one should be.
        asked: when it was read last.
    """

    revision: int
    at: float
    evidence: Literal["watch", "list"]
    data: bytes = b""
    note: Literal["", "released", "expired"] = ""
    asked: float = 0.0

    @property
    def ended(self) -> Ended:
        """The same for whoever claims the key over this."""
        return Ended(self.revision, self.note == "expired")


class Observer:
    """Sees the changes of a bucket of leases. `run` it; read `sights` at any time.

    Args:
        leases: the bucket, on a connection of the observer's own.
        on_change: called with the key, what is seen now, and what was seen before, if anything was.
    """

    def __init__(
        self, leases: Leases, on_change: Callable[[str, Sight, Sight | None], None] = lambda key, now, before: None
    ) -> None:
        self.leases = leases
        self.sights: dict[str, Sight] = {}
        self._on_change = on_change

    async def run(self) -> None:
        """Watch, and read what is overdue, until cancelled. A broker that goes away is waited for."""
        await together(watch=self._watch(), list=self._list())

    async def _watch(self) -> NoReturn:
        while True:
            try:
                connection, bucket = self.leases.client.stats["reconnects"], self.leases.bucket
                watcher = await self.leases.keys.watchall()
                try:
                    # A new connection means a new watcher: the old one is blind until the broker misses it. A new
                    # bucket does, too.
                    while (self.leases.client.stats["reconnects"], self.leases.bucket) == (connection, bucket):
                        await self._next(watcher)
                finally:
                    await watcher.stop()
            except (nats.errors.Error, TimeoutError):
                pass
            await asyncio.sleep(0.1)

    async def _next(self, watcher: KeyValue.KeyWatcher) -> None:
        try:
            entry = await watcher.updates(timeout=WATCH_AGAIN)
        except nats.errors.TimeoutError:
            return
        if entry is not None and subjects.is_name(entry.key):  # None: "you have seen what there was"
            note = {"DEL": "released", "PURGE": "expired"}.get(entry.operation or "", "")
            self._see(entry.key, Sight(entry.revision, time.monotonic(), "watch", entry.value or b"", note))  # type: ignore[arg-type]

    async def _list(self) -> NoReturn:
        while True:
            try:
                await self.refresh(overdue=True)
            except (nats.errors.Error, TimeoutError):
                pass  # the broker is away: what we know grows old, and its age says so
            await asyncio.sleep(self.leases.timing.lobby)

    async def refresh(self, *, overdue: bool = False) -> None:
        """Read every key now; or only those that we haven't heard of, or not for longer than a renewal takes."""
        bucket = f"$KV.{self.leases.name}."
        info = await self.leases.jetstream.stream_info(f"KV_{self.leases.name}", subjects_filter=f"{bucket}>")
        self._begin_anew_unless(f"{info.created:%Y%m%dT%H%M%S.%f}")
        # Anybody may write other keys by hand, such as "*"; nobody of us can claim them.
        keys = {key for subject in info.state.subjects or {} if subjects.is_name(key := subject.removeprefix(bucket))}
        now = time.monotonic()
        for key in sorted(keys | {key for key, sight in self.sights.items() if not sight.note}):
            sight = self.sights.get(key)
            quiet = 1.5 * self.leases.timing.renew if overdue and sight and key in keys else 0.0
            if sight is None or not overdue or (not sight.note and now - max(sight.at, sight.asked) > quiet):
                await self.look(key)

    def _begin_anew_unless(self, bucket: str) -> None:
        """If the bucket was made anew: all claims in the earlier one are over, and revisions begin at 1 again."""
        if bucket != self.leases.bucket:
            self.leases.bucket = bucket
            for key in list(self.sights):
                self._see(key, Sight(0, time.monotonic(), "list", note="expired"))

    async def look(self, key: str) -> None:
        """Read one key now."""
        asked = time.monotonic()
        entry = await last_entry(self.leases.jetstream, self.leases.name, key)
        if entry is not None:
            self._see(key, _sight(entry))
        elif (sight := self.sights.get(key)) and not sight.note and sight.at < asked:
            # Gone, marker and all: we were blind when it ended.
            self._see(key, Sight(0, time.monotonic(), "list", note="expired"))
        if sight := self.sights.get(key):
            sight.asked = asked

    def _see(self, key: str, sight: Sight) -> None:
        before = self.sights.get(key)
        if before and sight.revision and sight.revision <= before.revision:
            return
        if before and before.note and sight.note:
            # A release that ages away leaves the broker's note too: that is housekeeping, nobody died.
            sight.note = before.note
        self.sights[key] = sight
        self._on_change(key, sight, before)


def _sight(entry: RawStreamMsg) -> Sight:
    operation = (entry.headers or {}).get(subjects.KV_OPERATION)
    note = "expired" if has_expired(entry) or operation == "PURGE" else "released" if operation else ""
    return Sight(entry.seq, time.monotonic(), "list", entry.data or b"", note)  # type: ignore[arg-type]
