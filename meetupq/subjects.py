"""Every NATS name that meetupq uses, in one place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.header import decode_header
from typing import Any, Final

from meetupq.errors import NameInvalid

PRIORITIES: Final = ("high", "low")
"""A consumer of its own for each."""
JOBS: Final = "jobs"
"""The work queue's stream; its subjects are jobs.PRIORITY.TYPE."""
DEAD: Final = "dead_letters"
"""The dead letters' stream; its subjects are dead.SEQUENCE.jobs.PRIORITY.TYPE."""
LEASES: Final = "leases"
"""The KV bucket of the claims: one key per work item."""
WORK: Final = "work"
"""The KV bucket of the long work: one key per item, with its progress."""

MAX_DELIVERIES: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
"""Advisory: the broker gave up on a job. Sent once, to whoever listens at that moment (server: jetstream_api.go)."""
MSG_TERMINATED: Final = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED"
"""Advisory: a worker has terminated a job, so that it left the stream."""
ACK_METRIC: Final = "$JS.EVENT.METRIC.CONSUMER.ACK"
"""Metric: an ack has arrived. Sent for every ack of a consumer that samples 100 %."""
PULL: Final = "$JS.API.CONSUMER.MSG.NEXT"
"""Where a pull request for a consumer goes."""

WRONG_LAST_SEQUENCE: Final = (10071, 10164)
"""The error codes of a compare-and-set that met another revision: of one server, of three."""

MSG_ID: Final = "Nats-Msg-Id"
EXPECTED_LAST: Final = "Nats-Expected-Last-Subject-Sequence"
KV_OPERATION: Final = "KV-Operation"
MARKER_REASON: Final = "Nats-Marker-Reason"
MESSAGE_TTL: Final = "Nats-TTL"
JOB: Final = "Meetupq-Job"
REASON: Final = "Meetupq-Reason"
DELIVERIES: Final = "Meetupq-Deliveries"
LAST_WORKER: Final = "Meetupq-Last-Worker"
SEQUENCE: Final = "Meetupq-Sequence"
ESCALATED: Final = "Meetupq-Escalated-From"

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")


def is_name(name: object) -> bool:
    """Whether it is safe as part of a subject, a key and a header."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def is_seconds(value: object) -> bool:
    """Whether it is a number of seconds that a person could mean: from 0 to a day."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 86400


def checked(name: str, what: str) -> str:
    """`name`, once it is known to be safe as part of a subject, a key and a header.

    Raises:
        NameInvalid: names `what` and the offender.
    """
    if not is_name(name):
        raise NameInvalid(f"{what} {name!r} may have letters, digits, '-' and '_' only, from 1 to 40 of them")
    return name


def plain(headers: Mapping[str, Any] | None) -> dict[str, str]:
    """Headers as texts: what an outsider has published that isn't ASCII comes from nats-py as something else."""
    return {name: value if isinstance(value, str) else _decoded(value) for name, value in (headers or {}).items()}


def _decoded(value: Any) -> str:
    return b"".join(part for part, _ in decode_header(value) if isinstance(part, bytes)).decode(errors="replace")


def job_subject(priority: str, kind: str) -> str:
    """The subject of a job: jobs.PRIORITY.TYPE."""
    return f"{JOBS}.{checked(priority, 'the priority')}.{checked(kind, 'the type of job')}"


def priority_of(subject: str) -> str:
    """The priority in the subject of a job; "high" of one that has none."""
    return "low" if subject.startswith(f"{JOBS}.low.") else "high"


def consumer(priority: str) -> str:
    """The durable consumer that all workers of a priority share."""
    return f"worker_{checked(priority, 'the priority')}"


def dead_subject(sequence: int, subject: str) -> str:
    """The subject of a dead letter: one per job that died, so that a second copy can be refused."""
    return f"dead.{sequence}.{subject}"
