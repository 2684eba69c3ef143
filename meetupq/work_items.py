"""The long work that workers lobby for: a list of items in a KV bucket, each with the progress it has reached.

Each owner begins by writing its fencing token to the item; from then on every step is written by compare-and-set over
the last one. An owner that was taken over without knowing finds the item changed, and its step is refused; the next
owner goes on from the last step that was written.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from nats.aio.client import Client
from nats.js.api import KeyValueConfig, RawStreamMsg, StorageType
from nats.js.errors import BucketNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from meetupq import subjects
from meetupq.broker import asking
from meetupq.buckets import content_of, last_entry
from meetupq.errors import LeaseError, LeaseLost, WorkCancelled
from meetupq.leases import Token

NO_TOKEN: Final = Token("", 0)
"""Of an item that nobody has taken so far."""
MOST_STEPS: Final = 10_000
"""Of one item."""


@dataclass(frozen=True)
class WorkItem:
    """One piece of long work.

    Attributes:
        name: also the key of its lease.
        steps: how many steps it takes.
        done: how many are done.
        step_seconds: how long a step takes.
        revision: of its entry; a step is written only over exactly this one.
        token: of the owner who took it last.
        cancelled: whether somebody doesn't want it any more.
    """

    name: str
    steps: int
    done: int
    step_seconds: float
    revision: int
    token: Token = NO_TOKEN
    cancelled: bool = False

    @property
    def finished(self) -> bool:
        return self.done >= self.steps

    @property
    def over(self) -> bool:
        """Whether nobody needs to work on it any more."""
        return self.finished or self.cancelled


@dataclass
class _Read:
    """What was read of the bucket: of which one, as it was after which message; None for an entry that is no item."""

    created: datetime | None = None
    last: int = 0
    items: dict[str, WorkItem | None] = field(default_factory=dict)


class WorkItems:
    """The bucket `work`, seen through one connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._jetstream = client.jetstream(timeout=2)
        self._keys: KeyValue | None = None
        self._read = _Read()
        self._reading = asyncio.Lock()

    async def ensure(self) -> None:
        """Create the bucket, or open the one that exists."""
        with asking(f"set up the bucket {subjects.WORK}", LeaseError):
            try:
                self._keys = await self._jetstream.key_value(subjects.WORK)
            except BucketNotFoundError:
                self._keys = await self._jetstream.create_key_value(
                    KeyValueConfig(bucket=subjects.WORK, history=1, storage=StorageType.FILE)
                )

    async def add(self, name: str, *, seconds: float, steps: int = 10) -> bool:
        """Put up an item of work that takes `seconds` in `steps` steps. False if there is one of this name already."""
        subjects.checked(name, "the work item")
        if type(steps) is not int or not 1 <= steps <= MOST_STEPS or not subjects.is_seconds(seconds) or seconds == 0:
            raise LeaseError(
                f"{name} can't take {seconds!r} s in {steps!r} steps: give 1 step or more, and seconds above 0"
            )
        return await self._write(WorkItem(name, steps, 0, seconds / steps, revision=0)) is not None

    async def all(self) -> list[WorkItem]:
        """All items, by name."""
        with asking("read the list of work", LeaseError):
            async with self._reading:
                await self._read_on()
                items = [self._read.items[name] for name in sorted(self._read.items)]
        return [item for item in items if item]

    async def _read_on(self) -> None:
        """Read what was written since the last time: a standby lists the work every moment, and mostly it is as it was.

        What somebody has removed by hand, or a bucket made anew, shows in the count or the creation: then all again.
        """
        info = await self._jetstream.stream_info(f"KV_{subjects.WORK}")
        if self._read.created != info.created or self._read.last > info.state.last_seq:
            self._read = _Read(info.created)
        await self._read_up_to(info.state.last_seq)
        if len(self._read.items) != info.state.messages and self._read.last == info.state.last_seq:
            self._read = _Read(info.created)
            await self._read_up_to(info.state.last_seq)

    async def _read_up_to(self, last: int) -> None:
        """An item that moves on meanwhile comes later in the stream, so it is read to its very end."""
        prefix, read = f"$KV.{subjects.WORK}.", self._read
        if read.last == last:
            return
        while True:
            try:
                entry = await self._jetstream.get_msg(
                    f"KV_{subjects.WORK}", read.last + 1, subject=f"{prefix}>", next=True
                )
            except NotFoundError:
                read.last = max(read.last, last)
                return
            name = (entry.subject or "").removeprefix(prefix)
            read.items[name], read.last = _item(name, entry), entry.seq

    async def unfinished(self) -> list[WorkItem]:
        """The items that somebody needs to work on, by name."""
        return [item for item in await self.all() if not item.over]

    async def get(self, name: str) -> WorkItem | None:
        """One item with its progress as it is now."""
        with asking(f"read the progress of {name}", LeaseError):
            entry = await last_entry(self._jetstream, subjects.WORK, name)
        return _item(name, entry) if entry else None

    async def take(self, name: str, token: Token) -> WorkItem | None:
        """Begin to work on an item under a lease: from now on, no step of an earlier owner is accepted.

        Returns:
            The item with the progress that the earlier owners have reached; None if it is not on the list.

        Raises:
            LeaseLost: a newer owner has taken it.
        """
        while item := await self.get(name):
            if item.token > token:
                raise LeaseLost(f"{name} was taken by a newer owner; stop the work on it")
            if item.over or (item := await self._write(replace(item, token=token))):
                return item
            # The last owner has written one more step since we looked.
        return None

    async def checkpoint(self, item: WorkItem) -> WorkItem:
        """Write down that one more step is done. Returns the item as it is then.

        After BrokerUnreachable it may be called again with the same item: the step counts once.

        Raises:
            BrokerUnreachable: no answer; the step may be written, or may be later.
            WorkCancelled: nobody wants it any more.
            LeaseLost: somebody else has taken it since: they own the work now.
        """
        if written := await self._write(replace(item, done=item.done + 1)):
            return written
        now = await self.get(item.name)
        if now and now.token == item.token != NO_TOKEN and now.done == item.done + 1 and not now.cancelled:
            return now  # our own write, since nobody else has our token: it had arrived, but its answer was lost
        if now is None or (now.cancelled and now.token == item.token):
            raise WorkCancelled(f"{item.name} was cancelled; stop the work on it")
        raise LeaseLost(f"{item.name} was written by somebody else; stop the work on it")

    async def cancel(self, name: str) -> bool:
        """Take an item off the list; its owner stops with the next step. False if it is finished or cancelled already.

        Raises:
            LeaseError: there is no such item.
        """
        while item := await self.get(subjects.checked(name, "the work item")):
            if item.over:
                return False
            if await self._write(replace(item, cancelled=True)):
                return True
        raise LeaseError(f"there is no work called {name!r}: add_work puts some up")

    async def _write(self, item: WorkItem) -> WorkItem | None:
        """Compare-and-set: over the item's own revision. None if it is another one by now."""
        if self._keys is None:
            raise LeaseError("the list of work is not open: run ensure() first")
        value = {"steps": item.steps, "done": item.done, "step_seconds": item.step_seconds, "token": item.token}
        value |= {"cancelled": True} if item.cancelled else {}
        with asking(f"write the progress of {item.name}", LeaseError):
            try:
                revision = await self._keys.update(item.name, json.dumps(value).encode(), last=item.revision)
            except KeyWrongLastSequenceError:
                return None
        return replace(item, revision=revision)


def _item(name: str, entry: RawStreamMsg) -> WorkItem | None:
    """The item in an entry; None if somebody has written something else there."""
    value = content_of(entry.data)
    steps, done, seconds, token = (value.get(field) for field in ("steps", "done", "step_seconds", "token"))
    if type(steps) is not int or type(done) is not int or not (1 <= steps <= MOST_STEPS and 0 <= done <= steps):
        return None
    if not subjects.is_name(name) or not isinstance(seconds, (int, float)) or not subjects.is_seconds(seconds):
        return None
    if not isinstance(token, list) or len(token) != 2 or seconds == 0:
        return None
    bucket, revision = token
    if not isinstance(bucket, str) or type(revision) is not int or not 0 <= revision < 2**63:
        return None
    return WorkItem(name, steps, done, seconds, entry.seq, Token(bucket, revision), value.get("cancelled") is True)
