"""The append-only history: the only state that pictures, verdicts, the roster's past and replays share.

An `Event` never changes; a `History` only grows. Anything that wants to know what happened reads it from here.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from meetupq.errors import NotSeen, RecordingBroken

QUEUE_KINDS: Final = frozenset(
    "published delivered begun progressed acked failed naked terminated timed_out exhausted escalated dead_lettered "
    "redriven late_success duplicate".split()
)
LEASE_KINDS: Final = frozenset(
    "added lobbied claimed renewed released finished cancelled lost expired reclaimed checkpointed written "
    "fenced".split()
)
WORKER_KINDS: Final = frozenset("started tuned killed frozen thawed stopped cut restored".split())
BROKER_KINDS: Final = frozenset("broker_started broker_stopped broker_killed".split())
KINDS: Final = QUEUE_KINDS | LEASE_KINDS | WORKER_KINDS | BROKER_KINDS
SOURCES: Final = frozenset({"broker", "worker", "lab", "inferred"})

FORMAT: Final = "meetupq-recording"
FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True, repr=False)
class Event:
    """One fact, and who says so.

    Attributes:
        at: when, in seconds since the history began.
        kind: what happened; one of `KINDS`.
        job: the job's name, or the work item's in the lease half.
        worker: the worker's name; empty where none is concerned.
        attempt: which delivery of the job this is about, counted by the broker from 1; 0 where it means nothing.
        revision: the stream sequence of a job, or the lease's revision (the fencing token); 0 where it means nothing.
        until: the moment until which this stands unless something renews or ends it, in seconds on the same clock:
            the end of the broker's patience for `delivered` and `progressed`, the nominal expiry for `claimed`
            and `renewed`. 0 where it means nothing.
        source: `broker` (an advisory, a KV entry), `worker` (the worker says so), `lab` (a button or a call)
            or `inferred` (NATS has no message for it, such as an ack_wait that ran out).
        detail: one sentence or word for people: a reason, an owner's past name.
    """

    at: float
    kind: str
    job: str = ""
    worker: str = ""
    attempt: int = 0
    revision: int = 0
    until: float = 0.0
    source: str = "lab"
    detail: str = ""

    def __str__(self) -> str:
        words = [f"{self.at:.2f} s", self.kind, self.job, self.worker and f"by {self.worker}"]
        words += [f"attempt {self.attempt}" if self.attempt else "", self.detail and f"({self.detail})"]
        return " ".join(word for word in words if word)

    def __repr__(self) -> str:
        return f"<Event: {self}>"


_FIELDS: Final = tuple((field.name, str(field.type)) for field in fields(Event))
_PYTHON_TYPES: Final[dict[str, tuple[type, ...]]] = {"float": (float, int), "int": (int,), "str": (str,)}

Condition = str | Callable[[Event], bool]


class History:
    """Events in the order in which they became known. Any thread may append and read.

    Args:
        clock: returns seconds; only differences matter. The default is the monotonic clock, which all processes of
            a machine share.
        start: the clock's reading at second 0; by default the present one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, start: float | None = None) -> None:
        self._clock = clock
        self.start = clock() if start is None else start
        self._events: list[Event] = []
        self._listeners: tuple[Callable[[Event], None], ...] = ()
        self._lock = threading.Lock()
        self.meta: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<History: {len(self)} events>"

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.snapshot())

    def now(self) -> float:
        """Seconds since the history began: the `at` of an event that would be appended now."""
        return self._clock() - self.start

    def from_clock(self, moment: float) -> float:
        """Turn a reading of the history's clock (such as `time.monotonic()`) into seconds since it began."""
        return moment - self.start

    def append(
        self,
        kind: str,
        job: str = "",
        worker: str = "",
        *,
        at: float | None = None,
        attempt: int = 0,
        revision: int = 0,
        until: float = 0.0,
        source: str = "lab",
        detail: str = "",
    ) -> Event:
        """Add one event and tell every subscriber, in the caller's thread.

        Raises:
            ValueError: an unknown kind or source. Both lists are closed so that a typo can't hide a fact.
        """
        _check_kind(kind)
        if source not in SOURCES:
            raise ValueError(f"unknown event source {source!r}: use one of {', '.join(sorted(SOURCES))}")
        with self._lock:
            # The clock is read under the lock, so that the order in the list is the order in time.
            moment = self.now() if at is None else at
            event = Event(moment, kind, job, worker, attempt, revision, until, source, detail)
            self._events.append(event)
            listeners = self._listeners
        for listener in listeners:
            listener(event)
        return event

    def snapshot(self) -> tuple[Event, ...]:
        """All events so far, as a copy that later appends don't change."""
        return tuple(self._events[: len(self._events)])

    def since(self, index: int) -> list[Event]:
        """The events from position `index` on: what a reader who has seen `index` of them still misses."""
        return self._events[index:]

    def where(self, kind: Condition, job: str | None = None, worker: str | None = None) -> list[Event]:
        """The events of a kind (or that satisfy a function), of a job and of a worker where these are given."""
        wanted = _matcher(kind, job, worker)
        return [event for event in self.snapshot() if wanted(event)]

    def last(self, kind: Condition, job: str | None = None, worker: str | None = None) -> Event | None:
        """The newest of the events that `where` would find; found from the end, without a copy of the history."""
        wanted = _matcher(kind, job, worker)
        newest_first = (self._events[index] for index in range(len(self._events) - 1, -1, -1))
        return next((event for event in newest_first if wanted(event)), None)

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener` for every later event, in the thread that appends it: it must be quick and never raise.

        Returns:
            A function that ends the subscription; calling it twice does no harm.
        """
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(known for known in self._listeners if known is not listener)

        return unsubscribe

    async def until(
        self,
        kind: Condition,
        job: str | None = None,
        worker: str | None = None,
        *,
        count: int = 1,
        within: float = 10.0,
    ) -> Event:
        """Wait until `count` matching events are in the history, those before the call included.

        Args:
            kind: an event kind, or a function that says whether an event is meant.
            job, worker: narrow it down to one job, one worker.
            count: how many such events must be there.
            within: the limit in seconds.

        Returns:
            The event that made the count full.

        Raises:
            NotSeen: the limit passed; the message lists what was seen so far.
        """
        if isinstance(kind, str):
            _check_kind(kind)
        if count < 1:
            raise ValueError(f"count is {count!r}, but one waits for 1 event or more")
        wanted = _matcher(kind, job, worker)
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        # Subscribed before the first look, so that nothing can slip through between the two.
        unsubscribe = self.subscribe(lambda event: _wake(loop, arrived) if _may_be(wanted, event) else None)
        try:
            async with asyncio.timeout(within):
                while True:
                    arrived.clear()
                    matches = [event for event in self.snapshot() if wanted(event)]
                    if len(matches) >= count:
                        return matches[count - 1]
                    await arrived.wait()
        except TimeoutError:
            raise NotSeen(self._not_seen(kind, job, worker, count, within)) from None
        finally:
            unsubscribe()

    def _not_seen(self, kind: Condition, job: str | None, worker: str | None, count: int, within: float) -> str:
        name = kind if isinstance(kind, str) else getattr(kind, "__name__", "the condition")
        target = f"{count} x {name}" if count > 1 else f"{name}"
        target += (f" of {job}" if job else "") + (f" by {worker}" if worker else "")
        related = [e for e in self.snapshot() if (not job or e.job == job) and (not worker or e.worker == worker)]
        shown = "\n".join(f"  {event}" for event in related[-12:]) or "  nothing"
        earlier = f" (the last 12 of {len(related)})" if len(related) > 12 else ""
        return f"waited {within:g} s for {target}; seen so far{earlier}:\n{shown}"

    def save(self, path: str | Path) -> Path:
        """Write the history as JSON lines: a header, then one event a line. Returns the path."""
        path = Path(path)
        events = self.snapshot()
        header = {"format": FORMAT, "version": FORMAT_VERSION, "events": len(events), "meta": self.meta}
        with path.open("w", encoding="utf-8") as file:
            file.write(json.dumps(header) + "\n")
            # All in ASCII: a name may hold what only Unicode calls a line's end, or half a character.
            file.writelines(json.dumps(asdict(event)) + "\n" for event in events)
        return path

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Read what `save` wrote; the clock of the result stands still at its last event.

        Raises:
            RecordingBroken: not a recording, damaged, cut off, or written by a newer version; names the line.
        """
        path = Path(path)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise RecordingBroken(f"can't read {path}: {error.strerror or error}; check the path") from error
        except UnicodeDecodeError as error:
            raise RecordingBroken(f"{path} is not text, so not a meetupq recording; choose a .jsonl file") from error
        header = _header(path, lines)
        events = [_event(path, number, line) for number, line in enumerate(lines[1:], start=2)]
        if len(events) != header["events"]:
            raise RecordingBroken(
                f"{path} has {len(events)} events but line 1 promises {header['events']}: the file was cut off or "
                "edited; record it again"
            )
        end = max((event.at for event in events), default=0.0)
        readings = iter((0.0,))
        history = cls(clock=lambda: next(readings, end))
        history.meta = header["meta"]
        history._events = events
        return history


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"unknown event kind {kind!r}: use one of {', '.join(sorted(KINDS))}")


def _matcher(kind: Condition, job: str | None, worker: str | None) -> Callable[[Event], bool]:
    def wanted(event: Event) -> bool:
        right_kind = event.kind == kind if isinstance(kind, str) else kind(event)
        return right_kind and (job is None or event.job == job) and (worker is None or event.worker == worker)

    return wanted


def _may_be(wanted: Callable[[Event], bool], event: Event) -> bool:
    """Whether it is worth a look. A condition that raises must do so where it is awaited, not in whoever appends."""
    try:
        return wanted(event)
    except Exception:  # noqa: BLE001 - it is somebody else's function
        return True


def _wake(loop: asyncio.AbstractEventLoop, arrived: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(arrived.set)
    except RuntimeError:
        # The waiter's loop is closed (its cell was interrupted): nobody waits any more.
        return


def _header(path: Path, lines: list[str]) -> dict[str, Any]:
    foreign = f"{path}, line 1: this is not a meetupq recording; choose a file that History.save wrote"
    try:
        header = json.loads(lines[0]) if lines else None
    except (ValueError, RecursionError):
        raise RecordingBroken(foreign) from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise RecordingBroken(foreign)
    if header.get("version") != FORMAT_VERSION:
        raise RecordingBroken(
            f"{path}, line 1: format version {header.get('version')!r}, but this meetupq reads {FORMAT_VERSION}; "
            "use the meetupq that wrote it"
        )
    if not isinstance(header.get("events"), int) or not isinstance(header.get("meta"), dict):
        raise RecordingBroken(f"{path}, line 1: the header lacks 'events' or 'meta'; record it again")
    return header


def _event(path: Path, number: int, line: str) -> Event:
    def broken(what: str) -> RecordingBroken:
        return RecordingBroken(f"{path}, line {number}: {what}; record it again or remove the line's damage")

    try:
        raw = json.loads(line, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    except (ValueError, RecursionError):
        raise broken("not a JSON object") from None
    if not isinstance(raw, dict):
        raise broken("not a JSON object")
    for name, kind in _FIELDS:
        if name not in raw:
            raise broken(f"the field {name!r} is missing")
        if not isinstance(raw[name], _PYTHON_TYPES[kind]) or isinstance(raw[name], bool):
            raise broken(f"the field {name!r} should be of type {kind}")
        if kind == "float" and not abs(raw[name]) < 1e15:
            raise broken(f"the field {name!r} is beyond all time")
    if extra := sorted(set(raw) - {name for name, _ in _FIELDS}):
        raise broken(f"unknown field {extra[0]!r}")
    if raw["kind"] not in KINDS or raw["source"] not in SOURCES:
        raise broken(f"unknown kind {raw['kind']!r} or source {raw['source']!r}")
    return Event(**raw)


def events_of(history: History | Iterable[Event]) -> tuple[Event, ...]:
    """The events of a history, or of any iterable of events: what figures and checks accept."""
    return history.snapshot() if isinstance(history, History) else tuple(history)
