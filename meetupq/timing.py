"""All durations of the stage in one frozen record, checked when it is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from meetupq.errors import TimingError

BROKER_STEP: Final = 0.35
"""Seconds after its TTL within which the broker has removed a key: it looks at most every 0.25 s, and with file storage
up to 0.1 s later (measured)."""


@dataclass(frozen=True)
class Timing:
    """Durations in seconds, and how often a job is tried. Presets: `Timing.preset("talk")`, `"class"`, `"ci"`.

    Attributes:
        name: of the preset, or "own".
        ack_wait: how long the broker waits for an ack before it delivers a job again.
        backoff: the patience per attempt; where it is given it REPLACES ack_wait (`effective_ack_wait`), and its last
            entry repeats.
        max_deliver: how many times the broker delivers a job at most.
        heartbeat: a worker says "still at it" this often.
        work: how long an ordinary job takes.
        lease_ttl: a claim lives this long after its last renewal (the bucket's TTL).
        renew: an owner renews this often.
        margin: an owner stops this long before its lease can end.
        marker: how long the broker's note that a lease expired stays; whole seconds, at least 1.
        sweep: the keeper of dead letters looks for jobs that no advisory told it about this often.
        lobby: a worker without work looks for a free item this often; the roster is listed as often.
        low: other durations for the jobs of the priority "low", whose consumer then has settings of its own; None: the
            same for both. Only what concerns jobs counts in it.

    Raises:
        TimingError: two of them contradict each other, or the broker would refuse them; both numbers are named.
    """

    name: str = "own"
    ack_wait: float = 3.0
    backoff: tuple[float, ...] = ()
    max_deliver: int = 3
    heartbeat: float = 1.0
    work: float = 2.0
    lease_ttl: float = 3.0
    renew: float = 1.0
    margin: float = 0.5
    marker: int = 1
    sweep: float = 2.0
    lobby: float = 0.5
    low: Timing | None = None

    def __post_init__(self) -> None:
        if isinstance(self.backoff, Sequence):
            object.__setattr__(self, "backoff", tuple(self.backoff))
        for field in fields(self)[1:-1]:  # the numbers: all but the name and `low`
            value = getattr(self, field.name)
            if field.name == "backoff" and not isinstance(value, tuple):
                raise TimingError(f"backoff is {value!r}, but it takes a list of seconds, one per delivery")
            for number in value if isinstance(value, tuple) else (value,):
                is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
                if not is_number or not 0 < number < 1e6:
                    raise TimingError(f"{field.name} is {value!r}, but it takes seconds (or a count) above 0")
        for whole in ("max_deliver", "marker"):
            if not isinstance(getattr(self, whole), int):
                raise TimingError(f"{whole} is {getattr(self, whole)!r}, but it takes a whole number of at least 1")
        if self.low is not None and not (isinstance(self.low, Timing) and self.low.low is None):
            raise TimingError(f"low is {self.low!r}, but it takes a Timing, one without a `low` of its own")
        patience = self.effective_ack_wait
        self._refuse(
            len(self.backoff) > self.max_deliver,
            f"backoff has {len(self.backoff)} entries but max_deliver is {self.max_deliver}: "
            "give at most one entry per delivery",
        )
        self._refuse(
            self.heartbeat * 2 > min(self.patience(attempt) for attempt in range(1, self.max_deliver + 1)),
            f"heartbeat is {self.heartbeat:g} s but the shortest patience is {min(self.backoff or (patience,)):g} s: "
            "heartbeat at most half as long, so that one may get lost",
        )
        self._refuse(
            self.renew * 2 + self.margin > self.lease_ttl,
            f"renew is {self.renew:g} s but lease_ttl is {self.lease_ttl:g} s with a margin of {self.margin:g} s: "
            "two renewals and the margin must fit into the TTL, so that one renewal may fail",
        )
        self._refuse(
            self.lease_ttl < 1,
            f"lease_ttl is {self.lease_ttl:g} s but a marker lives {self.marker} s: a lease takes at least 1 s",
        )

    @staticmethod
    def _refuse(impossible: bool, why: str) -> None:
        if impossible:
            raise TimingError(why)

    @classmethod
    def preset(cls, name: str) -> Timing:
        """The durations called `name`: "talk" (as in the talk), "class" (for people) or "ci" (for machines)."""
        try:
            return PRESETS[name]
        except KeyError:
            raise TimingError(f"no timing is called {name!r}: choose {', '.join(map(repr, PRESETS))}") from None

    @classmethod
    def chosen(cls, choice: Timing | str | None = None) -> Timing:
        """`choice`, or else what MEETUPQ_TIMING names, or else "class"."""
        if isinstance(choice, Timing):
            return choice
        return cls.preset(choice or os.environ.get("MEETUPQ_TIMING") or "class")

    def but(self, **changes: Any) -> Timing:
        """The same durations with some changed: `timing.but(ack_wait=1.0)`. A changed ack_wait drops the backoff."""
        if "ack_wait" in changes and "backoff" not in changes:
            changes["backoff"] = ()
        try:
            return replace(self, **{"name": "own", **changes})
        except TypeError:
            known = [field.name for field in fields(self)]
            unknown = [name for name in changes if name not in known]
            raise TimingError(f"no duration is called {unknown[0]!r}: choose from {', '.join(known)}") from None

    def of(self, priority: str) -> Timing:
        """The durations that hold for jobs of a priority."""
        return self.low if priority == "low" and self.low is not None else self

    @property
    def effective_ack_wait(self) -> float:
        """The patience with the first attempt: backoff's first entry where there is one, else ack_wait."""
        return self.backoff[0] if self.backoff else self.ack_wait

    def patience(self, attempt: int) -> float:
        """How long the broker waits for an ack of the given attempt (from 1) that stays silent."""
        return self.backoff[min(attempt, len(self.backoff)) - 1] if self.backoff else self.ack_wait

    @property
    def time_to_dead(self) -> float:
        """From the first delivery of a job that nobody ever acks to its death, if a worker always waits for work."""
        return sum(self.patience(attempt) for attempt in range(1, self.max_deliver + 1))

    @property
    def deliveries(self) -> tuple[int, int]:
        """How often a job is delivered at most, as high and as low."""
        return self.max_deliver, self.of("low").max_deliver

    @property
    def patience_in_words(self) -> str:
        """The broker's patience as a person reads it; where backoff replaces a differing ack_wait it says so."""
        if not self.backoff:
            return f"{self.ack_wait:g} s, {self.max_deliver} deliveries"
        unused = "" if self.backoff[0] == self.ack_wait else f" (backoff; ack_wait {self.ack_wait:g} s is unused)"
        return f"{'/'.join(f'{seconds:g}' for seconds in self.backoff)} s{unused}, {self.max_deliver} deliveries"

    @property
    def worst_reclaim(self) -> float:
        """The longest time from an owner's death to the moment its lease is free: one TTL plus the broker's step."""
        return self.lease_ttl + BROKER_STEP


PRESETS = {
    "talk": Timing(
        name="talk", ack_wait=5, backoff=(5, 10, 15), max_deliver=4, heartbeat=5 / 3, work=1,
        lease_ttl=15, renew=5, margin=1, sweep=5, lobby=1,
    ),
    "class": Timing(
        name="class", ack_wait=3, backoff=(3, 4, 5), max_deliver=3, heartbeat=1, work=2,
        lease_ttl=4, renew=1, margin=0.5, sweep=2, lobby=0.5,
    ),
    "ci": Timing(
        name="ci", ack_wait=0.6, backoff=(0.6, 0.8, 1.0), max_deliver=3, heartbeat=0.2, work=0.2,
        lease_ttl=2, renew=0.5, margin=0.4, sweep=0.5, lobby=0.2,
    ),
}  # fmt: skip
"""The three sets; `ci` is as short as the broker's own steps allow on a slow machine."""
