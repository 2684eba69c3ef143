"""The claims roster: who owns which work, since when, for how long still, and how we know.

It watches the bucket, which is fast, and lists it again and again, which is certain: after a restart of the broker a
watcher can be blind for many seconds while leases are renewed and expire.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn

import nats.errors
import nats.js.errors

from meetupq import subjects
from meetupq.buckets import content_of, entries
from meetupq.leases import Leases
from meetupq.tasks import together

GRACE: Final = 0.5
"""Seconds that a worker's own word about its claim has before the broker's is written down in its place."""

ClaimState = Literal["held", "suspect", "expired", "released"]


@dataclass(frozen=True)
class Claim:
    """One line of the roster.

    Attributes:
        item: the work item.
        state: "held"; "suspect" when renewals are overdue; "expired" or "released" when nobody holds it.
        owner: the owner, or the last one.
        token: its fencing token.
        revision: of the last renewal seen.
        renewals: how many renewals the owner has counted.
        since: when this owner was first seen, in seconds of the history's clock.
        expires_in: seconds until the TTL is over, counted by this observer's clock from the last change it saw.
        evidence: how the last change was seen, "watch" or "list".
        evidence_age: seconds since then.
        past_owners: the owners before, oldest first.
    """

    item: str
    state: ClaimState
    owner: str
    token: int
    revision: int
    renewals: int
    since: float
    expires_in: float
    evidence: str
    evidence_age: float
    past_owners: tuple[str, ...]


@dataclass(slots=True)
class _Seen:
    revision: int = 0
    owner: str = ""
    nonce: str = ""
    token: int = 0
    renewals: int = 0
    since: float = 0.0
    at: float = 0.0
    evidence: str = ""
    ended: ClaimState | None = None
    past: list[str] = field(default_factory=list)


class Roster:
    """What one observer knows about the claims. `run` it; read `claims()` at any time.

    It records `expired` in the history: the broker's marker is the only witness of an owner's silent death.
    """

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self.history = leases.history
        self._seen: dict[str, _Seen] = {}
        self._heard: set[str] = set()
        self._outsiders: set[str] = set()

    def claims(self) -> list[Claim]:
        """The roster, by work item. Free of cost: it asks nobody."""
        now = time.monotonic()
        owned = [(item, seen) for item, seen in sorted([*self._seen.items()]) if seen.owner]
        return [self._claim(item, seen, now - seen.at) for item, seen in owned]

    def _claim(self, item: str, seen: _Seen, age: float) -> Claim:
        overdue = age > 2 * self.leases.timing.renew
        return Claim(
            item=item,
            state=seen.ended or ("suspect" if overdue else "held"),
            owner=seen.owner,
            token=seen.token,
            revision=seen.revision,
            renewals=seen.renewals,
            since=seen.since,
            expires_in=0.0 if seen.ended else max(0.0, self.leases.ttl - age),
            evidence=seen.evidence,
            evidence_age=age,
            past_owners=tuple(seen.past),
        )

    async def run(self) -> None:
        """Watch and list until cancelled. A broker that goes away is waited for."""
        await together(watch=self._watch(), list=self._list())

    async def _list(self) -> NoReturn:
        while True:
            try:
                await self.refresh()
            except (nats.errors.Error, TimeoutError):
                pass  # the broker is away: what we know grows old, and `evidence_age` says so
            self._tell_of_outsiders()
            await asyncio.sleep(self.leases.timing.lobby)

    async def refresh(self) -> None:
        """Read the whole bucket now."""
        for item, entry in (await entries(self.leases.jetstream, subjects.LEASES)).items():
            self._see(item, entry.seq, entry.headers or {}, entry.data, "list")
        # A key that the broker has removed for good, marker and all, was seen ended before; or we were blind, and then
        # its TTL is over by our own clock.
        for item, seen in self._seen.items():
            if seen.owner and not seen.ended and time.monotonic() - seen.at > self.leases.ttl + 1:
                self._end(item, seen, "expired")

    async def _watch(self) -> NoReturn:
        while True:
            try:
                watcher = await self.leases.keys.watchall()
                try:
                    async for entry in watcher:
                        if entry is not None:  # None: "you have seen what there was"
                            operation = {subjects.KV_OPERATION: entry.operation} if entry.operation else {}
                            self._see(entry.key, entry.revision, operation, entry.value, "watch")
                finally:
                    await watcher.stop()
            except (nats.errors.Error, TimeoutError):
                pass
            await asyncio.sleep(0.5)

    def _see(self, item: str, revision: int, headers: Mapping[str, str], data: bytes | None, evidence: str) -> None:
        seen = self._seen.setdefault(item, _Seen())
        if revision <= seen.revision:
            return
        seen.revision, seen.at, seen.evidence = revision, time.monotonic(), evidence
        operation = headers.get(subjects.KV_OPERATION)
        if operation == "DEL":
            self._end(item, seen, "released")
        elif operation or subjects.MARKER_REASON in headers:
            # A tombstone that ages away leaves a marker too: that is housekeeping, nobody died.
            if not seen.ended and seen.owner:
                self._end(item, seen, "expired")
        else:
            self._hold(seen, data)
            if seen.nonce in self._outsiders:
                self._record("renewed", item, seen)

    def _tell_of_outsiders(self) -> None:
        """Write down the claims of those who don't write into this history: somebody's own code, a guest.

        A worker of ours has its word first; what it has said is not said again.
        """
        now = self.history.now()
        news = [(item, s) for item, s in self._seen.items() if s.nonce not in self._heard and not s.ended]
        for item, seen in news:
            if seen.nonce and now - seen.since > GRACE:
                self._heard.add(seen.nonce)
                claims = [*self.history.where("claimed", item), *self.history.where("reclaimed", item)]
                if seen.token not in {event.revision for event in claims}:
                    self._outsiders.add(seen.nonce)
                    self._record("claimed", item, seen, at=seen.since)

    def _record(self, kind: str, item: str, seen: _Seen, *, at: float | None = None, detail: str = "") -> None:
        until = self.history.from_clock(seen.at) + self.leases.ttl if kind in ("claimed", "renewed") else 0.0
        facts: dict[str, Any] = {"revision": seen.token, "until": until, "source": "broker", "detail": detail}
        self.history.append(kind, item, seen.owner, at=at, **facts)

    def _hold(self, seen: _Seen, data: bytes | None) -> None:
        claim = content_of(data)
        try:
            owner, nonce, token = str(claim["owner"]), str(claim["nonce"]), int(claim["token"])
            renewals = int(claim["renewals"])
        except (ValueError, KeyError, TypeError):
            return  # somebody wrote rubbish into the bucket; it is nobody's claim
        if nonce != seen.nonce:
            if seen.owner:
                seen.past.append(seen.owner)
            seen.since = self.history.now()
        seen.owner, seen.nonce, seen.renewals = owner, nonce, renewals
        seen.token, seen.ended = token or seen.revision, None

    def _end(self, item: str, seen: _Seen, how: ClaimState) -> None:
        seen.ended = how
        if how == "expired":
            self._record("expired", item, seen, detail="the TTL ran out")
        elif seen.nonce in self._outsiders:
            self._record("released", item, seen)
