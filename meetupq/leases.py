"""The long-running queue: nobody hands out the work, workers lobby for it.

A claim is a key in a KV bucket whose entries die after a TTL. Who creates the key owns the work; who wants to keep it
renews it; when the owner dies the key dies too, and somebody else claims the work.

    leases = Leases(client, timing)
    await leases.ensure()
    if lease := await leases.claim("import-eu", owner="ada"):
        await lease.hold(work())        # renews, and cancels the work if the lease is lost
        await lease.release()

What it does NOT promise: that two workers never believe in the same lease at once. A frozen owner wakes up believing.
What it does promise: an owner that can run stops before its lease ends, by its own clock; and each owner's token is
larger than the one before it, so that a resource can refuse the older one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

import nats.js.errors
from nats.aio.client import Client
from nats.js.api import KeyValueConfig
from nats.js.kv import KeyValue

from meetupq.broker import asking
from meetupq.buckets import NOTHING_LEFT, Ended, content_of, ended, is_free, last_entry
from meetupq.errors import LeaseError, LeaseLost, MeetupqError
from meetupq.history import History
from meetupq.subjects import LEASES, WRONG_LAST_SEQUENCE, checked
from meetupq.tasks import drop
from meetupq.timing import Timing

T = TypeVar("T")


class Token(NamedTuple):
    """The fencing token: it only grows. `bucket` tells a bucket from its successor, whose revisions start again."""

    bucket: str
    revision: int


class Leases:
    """The bucket of claims: one key per work item, each with a TTL.

    Args:
        client: an open nats-py connection. Each worker needs one of its own.
        timing: gives the TTL of a new bucket, how often to renew, and the margin.
        history: where what happens is recorded.
        name: of the bucket.

    Attributes:
        bucket: which of the buckets that had this name it is, told by the time of its creation.
        marker: how many seconds a new bucket keeps the broker's note of an expiry; None: then nobody hears of one.
    """

    def __init__(self, client: Client, timing: Timing, history: History | None = None, name: str = LEASES) -> None:
        self.timing, self.name = timing, name
        self.history = history if history is not None else History()
        self.ttl = timing.lease_ttl
        self.marker: float | None = timing.marker
        self.bucket, self.client = "", client
        self.jetstream = client.jetstream(timeout=timing.renew)
        self._keys: KeyValue | None = None

    async def ensure(self) -> None:
        """Create the bucket, or open the one that exists. The TTL in force is the bucket's: there is one source of it.

        Raises:
            LeaseError: the broker refuses, or a bucket that exists has no TTL.
            TimingError: the TTL of a bucket that exists doesn't fit renew and margin.
        """
        with asking(f"set up the bucket {self.name}", LeaseError):
            try:
                self._keys = await self.jetstream.key_value(self.name)
            except nats.js.errors.BucketNotFoundError:
                config = KeyValueConfig(self.name, ttl=self.timing.lease_ttl, limit_marker_ttl=self.marker)
                self._keys = await self.jetstream.create_key_value(config)
            status = await self._keys.status()
        if not status.ttl:
            raise LeaseError(f"the bucket {self.name} has no TTL, so that a dead owner's claim would never end")
        self.ttl = self.timing.but(lease_ttl=status.ttl).lease_ttl
        self.bucket = f"{status.stream_info.created:%Y%m%dT%H%M%S.%f}"

    @property
    def keys(self) -> KeyValue:
        """The KV bucket itself.

        Raises:
            LeaseError: `ensure` has not run.
        """
        if self._keys is None:
            raise LeaseError("the bucket of leases is not open: run ensure() first")
        return self._keys

    async def put(self, key: str, claim: bytes, last: int) -> int:
        """Compare-and-set: write a key, if its last revision is `last` (0: none). Returns the new one."""
        return int(await self.keys.update(key, claim, last=last))

    async def claim(self, key: str, owner: str, over: Ended = NOTHING_LEFT) -> Lease | None:
        """Try once to become the owner of a work item; of any number of workers that try, one succeeds.

        Args:
            key: the work item.
            owner: the worker.
            over: how the key was seen to have ended, by whoever has watched it; see `takeovers`.

        Returns:
            The lease, or None if somebody holds it.

        Raises:
            LeaseError, BrokerUnreachable, NameInvalid.
        """
        checked(key, "the work item")
        lease = Lease(self, key, owner)
        with asking(f"claim {key}", LeaseError):
            # Compare-and-set: only if nobody has written this key; or else, if only a note is left there (an owner's
            # release, or the broker's marker of an expiry), only over that note. Notes age away too: then once more.
            while not await lease._write(last=over.revision):
                found = ended(await last_entry(self.jetstream, self.name, key))
                if found is None:
                    return None
                over = found
        lease._claimed(over.expired)
        return lease


class Lease:
    """A claim that was granted.

    Attributes:
        key: the work item.
        owner: the worker.
        token: the fencing token, fixed from claim to end.
        revision: of the last renewal; a renewal succeeds only over exactly this one.
        valid_until: a reading of time.monotonic(); from then on the owner must not work. It is counted from BEFORE the
            last confirmed renewal was sent, so it comes before the broker's own expiry, whatever the delays.
    """

    def __init__(self, leases: Leases, key: str, owner: str) -> None:
        self._leases = leases
        self.key, self.owner = key, owner
        self.revision = 0
        self.token = Token("", 0)
        self.valid_until = 0.0
        self._nonce = secrets.token_hex(8)  # tells our own claim from one by a worker of the same name
        self._renewals = 0

    def __repr__(self) -> str:
        return f"<Lease: {self.key}, owner {self.owner}, token {self.token.revision}>"

    def remaining(self) -> float:
        """Seconds that the owner may still work without a renewal; negative when it must have stopped."""
        return self.valid_until - time.monotonic()

    async def renew(self) -> None:
        """Rewrite the claim over its own revision, which starts its TTL anew.

        Raises:
            LeaseLost: somebody else has the key, or nobody: stop the work.
            BrokerUnreachable: no answer. The lease may still be ours: try again, until `valid_until`.
        """
        self._renewals += 1
        with asking(f"renew {self.key}", LeaseError):
            while not await self._write(last=self.revision):
                await self._adopt()
        self._record("renewed", until=self._expiry())

    async def _adopt(self) -> None:
        """After "wrong last sequence": a renewal sent while offline may have arrived later, unknown to us.

        Then the last entry carries our nonce, and its revision is the one to go on from.
        """
        entry = await last_entry(self._leases.jetstream, self._leases.name, self.key)
        if entry is None or is_free(entry):
            raise self.lost("it has expired")
        if content_of(entry.data).get("nonce") != self._nonce:
            raise self.lost("somebody else holds it now")
        self.revision = entry.seq

    async def release(self) -> None:
        """Give the lease back, so that it can be claimed at once.

        Raises:
            LeaseLost: it wasn't ours any more.
        """
        with asking(f"release {self.key}", LeaseError):
            while not await self._delete(last=self.revision):
                await self._adopt()
        self.valid_until = 0.0
        self._record("released")

    async def hold(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` while renewing the lease; cancel it the moment the lease is lost, or its deadline has come.

        Returns:
            What `work` returns.

        Raises:
            LeaseLost: the work was cancelled, and had time to stop before anybody else can have begun it.
        """
        working = asyncio.ensure_future(work)
        renewing = asyncio.ensure_future(self._renew_until_lost())
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await drop(working)
                renewing.result()  # raises LeaseLost: renewing ends by an error only
            return working.result()
        finally:
            await drop(working, renewing)

    async def _renew_until_lost(self) -> None:
        pause = self._leases.timing.renew
        while True:
            try:
                # The deadline also ends a renewal that hangs.
                async with asyncio.timeout(self.remaining()):
                    await asyncio.sleep(pause)
                    await self.renew()
                pause = self._leases.timing.renew
            except TimeoutError:
                raise self.lost("no renewal was confirmed in time") from None
            except LeaseLost:
                raise
            except MeetupqError:
                pause = min(0.1, pause)  # not renewed, not lost: try again soon, until the deadline

    async def _write(self, last: int) -> bool:
        """Write the claim if the key's last revision is `last`. False if it is another."""
        # The token is 0 in the claim itself: it is the revision that this first write gets.
        claim = {"owner": self.owner, "nonce": self._nonce, "token": self.token.revision, "renewals": self._renewals}
        sent = time.monotonic()
        try:
            self.revision = await self._leases.put(self.key, json.dumps(claim).encode(), last)
        except nats.js.errors.KeyWrongLastSequenceError:
            return False
        self.valid_until = sent + self._leases.ttl - self._leases.timing.margin
        return True

    async def _delete(self, last: int) -> bool:
        """The same for removing it: never a claim that somebody else has made. (Never purge: that asks nobody.)"""
        try:
            return bool(await self._leases.keys.delete(self.key, last=last))
        except nats.js.errors.BadRequestError as error:
            if error.err_code not in WRONG_LAST_SEQUENCE:
                raise
            return False

    def _claimed(self, expired: bool) -> None:
        self.token = Token(self._leases.bucket, self.revision)
        self._record("reclaimed" if expired else "claimed", until=self._expiry())

    def lost(self, why: str) -> LeaseLost:
        """The owner gives up without a release, and says why; the lease ends by its TTL. Returns the error to raise."""
        self.valid_until = 0.0
        self._record("lost", detail=why)
        return LeaseLost(f"{self.owner} lost {self.key}: {why}; stop the work on it")

    def _expiry(self) -> float:
        """The nominal expiry, in seconds of the history's clock."""
        return self._leases.history.from_clock(self.valid_until + self._leases.timing.margin)

    def _record(self, kind: str, **facts: Any) -> None:
        self._leases.history.append(kind, self.key, self.owner, revision=self.token.revision, source="worker", **facts)
