"""Reading KV buckets raw: nats-py shows the broker's expiry markers as ordinary entries with an empty value."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from meetupq import subjects


async def last_entry(jetstream: JetStreamContext, bucket: str, key: str) -> RawStreamMsg | None:
    """The last message of a key, whatever it is; None if there is none."""
    try:
        return await jetstream.get_last_msg(f"KV_{bucket}", f"$KV.{bucket}.{key}")
    except NotFoundError:
        return None


async def entries(jetstream: JetStreamContext, bucket: str) -> dict[str, RawStreamMsg]:
    """The last message of every key, read one by one from the stream: the truth, also when a watcher is blind."""
    prefix = f"$KV.{bucket}."
    info = await jetstream.stream_info(f"KV_{bucket}", subjects_filter=f"{prefix}>")
    keys = sorted(subject.removeprefix(prefix) for subject in info.state.subjects or {})
    found = {key: await last_entry(jetstream, bucket, key) for key in keys}
    return {key: entry for key, entry in found.items() if entry is not None}


def content_of(data: bytes | None) -> dict[str, Any]:
    """The JSON object in an entry; {} if somebody has written rubbish there."""
    try:
        content = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def delivery_of(data: bytes) -> tuple[int, int] | None:
    """Which job's sequence and which delivery an advisory or a metric is about; None if the broker hasn't written it.

    Anybody may publish on the broker's own subjects.
    """
    content = content_of(data)
    sequence, deliveries = content.get("stream_seq"), content.get("deliveries")
    return (sequence, deliveries) if isinstance(sequence, int) and isinstance(deliveries, int) else None


class Ended(NamedTuple):
    """How a key stands that nobody holds: its last revision (0: nothing is left), and whether a TTL ran out."""

    revision: int
    expired: bool


NOTHING_LEFT: Final = Ended(0, expired=False)


def ended(entry: RawStreamMsg | None) -> Ended | None:
    """How a key stands whose last message this is; None if somebody holds it."""
    if entry is None:
        return NOTHING_LEFT
    return Ended(entry.seq, has_expired(entry)) if is_free(entry) else None


def is_free(entry: RawStreamMsg) -> bool:
    """Whether this last message of a key says that nobody owns it: an expiry marker, or a tombstone of a release."""
    headers = entry.headers or {}
    return subjects.MARKER_REASON in headers or subjects.KV_OPERATION in headers


def has_expired(entry: RawStreamMsg) -> bool:
    """Whether this message is the broker's own note that the key's TTL ran out."""
    return subjects.MARKER_REASON in (entry.headers or {})
