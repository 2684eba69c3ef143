"""The long work that workers lobby for: a list of items in a KV bucket, each with the progress it has reached.

Progress is written with compare-and-set. An owner that was taken over without knowing finds the item changed, and its
step is refused; the next owner goes on from the last step that was written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from nats.aio.client import Client
from nats.js.api import KeyValueConfig, RawStreamMsg, StorageType
from nats.js.errors import BucketNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from meetupq import subjects
from meetupq.broker import asking
from meetupq.buckets import content_of, entries, last_entry
from meetupq.errors import LeaseError, LeaseLost


@dataclass(frozen=True)
class WorkItem:
    """One piece of long work.

    Attributes:
        name: also the key of its lease.
        steps: how many steps it takes.
        done: how many are done.
        step_seconds: how long a step takes.
        revision: of its entry; a step is written only over exactly this one.
    """

    name: str
    steps: int
    done: int
    step_seconds: float
    revision: int

    @property
    def finished(self) -> bool:
        return self.done >= self.steps


class WorkItems:
    """The bucket `work`, seen through one connection."""

    def __init__(self, client: Client) -> None:
        self._jetstream = client.jetstream(timeout=2)
        self._keys: KeyValue | None = None

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
        if type(steps) is not int or not 1 <= steps <= 10_000 or not subjects.is_seconds(seconds) or seconds == 0:
            raise LeaseError(
                f"{name} can't take {seconds!r} s in {steps!r} steps: give 1 step or more, and seconds above 0"
            )
        try:
            await self._write(WorkItem(name, steps, 0, seconds / steps, revision=0))
        except LeaseLost:
            return False
        return True

    async def unfinished(self) -> list[WorkItem]:
        """All items with steps left, by name."""
        with asking("read the list of work", LeaseError):
            found = await entries(self._jetstream, subjects.WORK)
        items = [_item(name, entry) for name, entry in found.items()]
        return [item for item in items if item and not item.finished]

    async def get(self, name: str) -> WorkItem | None:
        """One item with its progress as it is now."""
        with asking(f"read the progress of {name}", LeaseError):
            entry = await last_entry(self._jetstream, subjects.WORK, name)
        return _item(name, entry) if entry else None

    async def checkpoint(self, item: WorkItem) -> WorkItem:
        """Write down that one more step is done. Returns the item as it is then.

        Raises:
            LeaseLost: somebody else has written since: they own the work now.
        """
        return await self._write(replace(item, done=item.done + 1))

    async def _write(self, item: WorkItem) -> WorkItem:
        if self._keys is None:
            raise LeaseError("the list of work is not open: run ensure() first")
        value = {"steps": item.steps, "done": item.done, "step_seconds": item.step_seconds}
        with asking(f"write the progress of {item.name}", LeaseError):
            try:
                revision = await self._keys.update(item.name, json.dumps(value).encode(), last=item.revision)
            except KeyWrongLastSequenceError:
                raise LeaseLost(f"{item.name} was written by somebody else; stop the work on it") from None
        return replace(item, revision=revision)


def _item(name: str, entry: RawStreamMsg) -> WorkItem | None:
    """The item in an entry; None if somebody has written something else there."""
    value = content_of(entry.data)
    steps, done, seconds = value.get("steps"), value.get("done"), value.get("step_seconds")
    numbers = isinstance(steps, int) and isinstance(done, int) and isinstance(seconds, (int, float))
    return WorkItem(name, steps, done, seconds, entry.seq) if numbers and subjects.is_name(name) else None  # type: ignore[arg-type]
