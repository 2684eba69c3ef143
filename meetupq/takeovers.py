"""Four ways for a standby to learn that a lease has ended, behind one interface.

    standby = takeover("observe", client, timing)
    await standby.leases.ensure()
    watching = asyncio.create_task(standby.run())
    lease = await standby.take_over("import-eu", owner="bo")    # waits for as long as somebody else holds it

| name | how it learns of the end | how late, after the TTL |
|--|--|--|
| poll | it doesn't: it tries to create the key again and again | the broker's step, and the time between two tries |
| marker | the broker removes the key and leaves a note, which it watches | the broker's step |
| key_ttl | the same, with a TTL of each key's own, which the broker times more closely | mostly some milliseconds |
| observe | by its own clock, a TTL after the last change that it saw | some milliseconds |

The last one needs no clock that agrees with another. The observer sees a renewal after its owner has sent it, so its
TTL ends after the owner's deadline, which is counted from before the sending. A renewal that it has missed has changed
the revision, so its compare-and-set fails, and it counts anew from what it then reads. What is left is how far two
clocks can drift apart within one TTL (the owner's margin covers that), and an owner that is frozen (fencing does).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import ClassVar, Final

from nats.aio.client import Client
from nats.js.errors import APIError, KeyWrongLastSequenceError

from meetupq.broker import asking
from meetupq.buckets import NOTHING_LEFT, Ended
from meetupq.errors import LeaseError, TimingError
from meetupq.history import History
from meetupq.leases import Lease, Leases
from meetupq.observer import Observer, Sight
from meetupq.subjects import EXPECTED_LAST, LEASES, MESSAGE_TTL, WRONG_LAST_SEQUENCE
from meetupq.timing import Timing

JITTER: Final = 0.008
"""Seconds within which those who run for the same lease start."""


class Takeover:
    """What one standby knows of the leases, and how it takes one over.

    Args:
        leases: the bucket, on a connection of the standby's own.

    Attributes:
        news: set whenever a lease may have ended; `wait` clears it.
        heard: when this standby saw the last note of an end, by key; readings of time.monotonic().
    """

    name: ClassVar[str]
    owns: ClassVar[type[Leases]] = Leases
    """How the claims are written, by all who share the bucket."""

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self.news = asyncio.Event()
        self.heard: dict[str, float] = {}
        self._of_key: dict[str, asyncio.Event] = {}  # for those who wait for one key: the others' news don't wake them
        self._observer = Observer(leases, self._see)

    def _see(self, key: str, sight: Sight, before: Sight | None) -> None:
        if sight.note:
            self.heard[key] = sight.at
            self.news.set()
            if key in self._of_key:
                self._of_key[key].set()

    @property
    def _look_again(self) -> float:
        """Seconds after which `take_over` tries, although it has heard nothing."""
        return self.leases.ttl

    async def run(self) -> None:
        """Watch the bucket until cancelled. A broker that goes away is waited for."""
        await self._observer.run()

    def ended(self, key: str) -> Ended | None:
        """How the lease on this key has ended, as far as this standby knows; None if it stands."""
        sight = self._observer.sights.get(key)
        if sight is None:
            return NOTHING_LEFT  # not heard of; if that is wrong the claim fails, and we know more
        return sight.ended if sight.note else None

    async def claim(self, key: str, owner: str, *, handicap: int = 0) -> Lease | None:
        """Try once to claim a key, if its lease has ended as far as we know.

        Args:
            key, owner: as in `Leases.claim`.
            handicap: how many leases the owner has; who has less starts earlier.

        Raises:
            LeaseError, BrokerUnreachable, NameInvalid.
        """
        if self.ended(key) is None:
            return None
        # Not all at once: who starts later mostly sees the winner's claim, and leaves it.
        await asyncio.sleep(random.uniform(0, JITTER) * (1 + handicap))
        over = self.ended(key)
        if over is None:
            return None
        lease = await self.leases.claim(key, owner, over)
        if lease is None:
            await self._look(key)
        return lease

    async def _look(self, key: str) -> None:
        """Learn from a claim that has failed."""
        with asking(f"see who holds {key}", LeaseError):
            await self._observer.look(key)

    async def wait(self, at_most: float, key: str | None = None) -> None:
        """Return when a lease (on this key) may have ended, or after `at_most` seconds."""
        news = self.news if key is None else self._of_key.setdefault(key, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most):
                await news.wait()
        news.clear()

    async def take_over(self, key: str, owner: str) -> Lease:
        """Wait until the lease on a key is ours.

        Raises:
            LeaseError, BrokerUnreachable, NameInvalid.
        """
        while not (lease := await self.claim(key, owner)):
            await self.wait(self._look_again, key)
        return lease


class Poll(Takeover):
    """As in the talk: try to create the key every `lobby` seconds; without markers there is nothing to watch."""

    name = "poll"

    @property
    def _look_again(self) -> float:
        return self.leases.timing.lobby

    async def run(self) -> None:
        """Nothing to watch: never returns."""
        await asyncio.Event().wait()

    def ended(self, key: str) -> Ended | None:
        """Whoever only tries knows nothing."""
        return NOTHING_LEFT

    async def _look(self, key: str) -> None:
        """Whoever only tries learns nothing: a look at each of many keys would cost it as much as the tries."""


class Marker(Takeover):
    """Watch for the broker's note of an expiry, and claim the key over exactly that note."""

    name = "marker"


class LeasesWithKeyTtl(Leases):
    """Each claim carries a TTL of its own: a header that nats-py's `update` doesn't send, anew with every renewal."""

    async def ensure(self) -> None:
        """As in `Leases`.

        Raises:
            TimingError: a TTL that is no whole number of seconds: the broker would cut it down.
        """
        await super().ensure()
        if self.ttl != int(self.ttl):
            raise TimingError(f"lease_ttl is {self.ttl:g} s, but the TTL of a key takes whole seconds: choose another")

    async def put(self, key: str, claim: bytes, last: int) -> int:
        """As in `Leases`."""
        headers = {EXPECTED_LAST: str(last), MESSAGE_TTL: f"{int(self.ttl)}s"}
        try:
            return int((await self.jetstream.publish(f"$KV.{self.name}.{key}", claim, headers=headers)).seq)
        except APIError as error:
            if error.err_code in WRONG_LAST_SEQUENCE:
                raise KeyWrongLastSequenceError from error
            raise


class KeyTtl(Takeover):
    """The same as `Marker`, where each key has a TTL of its own."""

    name = "key_ttl"
    owns = LeasesWithKeyTtl


class Observe(Takeover):
    """Time every lease by the own clock since the last change that was seen, and claim it over exactly that change.

    This is how Kubernetes' leader election does it. The TTL of the bucket is only the janitor.
    """

    name = "observe"

    def ended(self, key: str) -> Ended | None:
        """By our own clock."""
        sight = self._observer.sights.get(key)
        if sight is None or sight.note or time.monotonic() < sight.at + self.leases.ttl:
            return super().ended(key)
        return Ended(sight.revision, expired=True)

    async def wait(self, at_most: float, key: str | None = None) -> None:
        """Return when a lease (on this key) may have ended, by our own clock or the broker's."""
        sights = self._observer.sights
        now = time.monotonic()
        known = sights.values() if key is None else [sights[key]] if key in sights else []
        due = [sight.at + self.leases.ttl - now for sight in known if not sight.note]
        await super().wait(min([at_most, *(wait for wait in due if wait > 0)]), key)


TAKEOVERS: Final[dict[str, type[Takeover]]] = {each.name: each for each in (Poll, Marker, KeyTtl, Observe)}


def takeover(
    how: str, client: Client, timing: Timing, history: History | None = None, bucket: str = LEASES
) -> Takeover:
    """A standby of the given kind, on a connection of its own.

    Raises:
        LeaseError: there is no such kind.
    """
    if not isinstance(how, str) or how not in TAKEOVERS:
        raise LeaseError(f"no takeover is called {how!r}: choose {', '.join(map(repr, TAKEOVERS))}")
    kind = TAKEOVERS[how]
    return kind(kind.owns(client, timing, history, bucket))
