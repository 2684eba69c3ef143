"""What a set of timers will cost, before anybody dies: how late a death is noticed, how much the broker has to pass
on, and how long a pause makes an owner lose a lease although it lives.

    print(Forecast(timing, items=500))
    Forecast(timing, items=500).fits(within=10, messages=400)

The three pull against each other. A short TTL notices a death early; it takes more renewals, and shorter pauses cost
the lease. The figures are for a broker that is up, on one server with file storage, where an owner and the broker
hear each other within some milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Final

from meetupq.errors import TimingError
from meetupq.timing import BROKER_STEP, Timing

# Seconds from the TTL's end to the moment when the next owner can know, as a rule and at worst (measured).
LATE: Final[dict[str, tuple[float, float]]] = {
    "poll": (0.2, BROKER_STEP),
    "marker": (0.2, BROKER_STEP),
    "key_ttl": (0.005, 0.25),  # the worst is that of a bucket with other leases, which keep the broker's timer busy
    "observe": (0.0, 0.0),  # by the standby's own clock
}
CLAIM: Final = (0.01, 0.03)
"""Seconds that the next owner then takes to claim, as a rule and at worst: its random delay, and the way there."""
PER_RENEWAL: Final = 2
"""Messages: the renewal, and the broker's ack."""
PER_LOOK: Final = 2
"""Messages of a standby that watches: every `lobby` seconds it asks for the list of keys, and gets it."""
PER_TRY: Final = 6
"""Messages of a poller for one item every `lobby` seconds: a claim that is refused, and two looks at who has it."""


@dataclass(frozen=True)
class Forecast:
    """What to expect of a set of timers.

    Attributes:
        timing: of which `lease_ttl`, `renew`, `margin` and `lobby` matter here.
        items: how many work items have an owner.
        takeover: how a standby learns that a lease has ended: "poll", "marker", "key_ttl" or "observe".
        standbys: how many wait for these items.

    Raises:
        TimingError: less than one item or standby, an unknown takeover, or a TTL that a key can't have.
    """

    timing: Timing
    items: int = 1
    takeover: str = "marker"
    standbys: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.timing, Timing):
            raise TimingError(f"a forecast is made for a Timing, not for {self.timing!r}")
        for what, count in (("items", self.items), ("standbys", self.standbys)):
            if type(count) is not int or not 1 <= count <= 1_000_000:
                raise TimingError(f"{what} is {count!r}, but a forecast takes a whole number from 1 to 1000000")
        if self.takeover not in LATE:
            known = ", ".join(map(repr, LATE))
            raise TimingError(f"no takeover is called {self.takeover!r}: choose {known}")
        ttl = self.timing.lease_ttl
        if self.takeover == "key_ttl" and ttl != int(ttl):
            raise TimingError(
                f"lease_ttl is {ttl:g} s, but a key's TTL takes whole seconds: the broker would make it {int(ttl)} s"
            )

    # --- how late a death is noticed ---------------------------------------------------------------------

    @property
    def worst(self) -> float:
        """Seconds from an owner's death to the next owner, at worst: it died as soon as it had renewed."""
        tries = self.timing.lobby if self.takeover == "poll" else 0.0
        late = LATE[self.takeover][1]
        if self.takeover == "key_ttl" and self.items == 1:
            late = 0.01
        return self.timing.lease_ttl + late + tries + CLAIM[1]

    @property
    def typical(self) -> float:
        """The same for an owner that died halfway between two renewals; of several pollers the first one counts."""
        tries = self.timing.lobby / (self.standbys + 1) if self.takeover == "poll" else 0.0
        return self.timing.lease_ttl - self.timing.renew / 2 + LATE[self.takeover][0] + tries + CLAIM[0]

    # --- what the broker has to pass on ------------------------------------------------------------------

    @property
    def renewals(self) -> float:
        """Renewals per second, of all owners."""
        return self.items / self.timing.renew

    @property
    def owner_messages(self) -> float:
        """Messages per second to and from all owners: each renewal, and its ack. Not: what they do for their work."""
        return PER_RENEWAL * self.renewals

    @property
    def standby_messages(self) -> float:
        """Messages per second to and from one standby, while all items have an owner.

        One that watches receives every renewal, and asks for the list of keys now and then. A poller receives none;
        it tries to claim each item, is refused, and looks who has it.
        """
        if self.takeover == "poll":
            return PER_TRY * self.items / self.timing.lobby
        return self.renewals + PER_LOOK / self.timing.lobby

    @property
    def messages(self) -> float:
        """Messages per second, all together: of the owners, and of all standbys."""
        return self.owner_messages + self.standbys * self.standby_messages

    # --- what a pause costs --------------------------------------------------------------------------------

    @property
    def survives(self) -> float:
        """The longest pause of an owner, in seconds, after which it always has its lease still."""
        return self.timing.lease_ttl - self.timing.margin - self.timing.renew

    @property
    def costs(self) -> float:
        """A pause of an owner that is longer than so many seconds always costs it the lease."""
        return self.timing.lease_ttl - self.timing.margin

    def false_alarm(self, pause: float) -> float:
        """How likely an owner that pauses for so many seconds, at a random moment, loses its lease: from 0 to 1.

        It must stop by the deadline: TTL minus margin, counted from the last renewal. Where in between two renewals
        the pause begins is left to chance.

        Raises:
            TimingError: no number of seconds from 0 up.
        """
        if isinstance(pause, bool) or not isinstance(pause, (int, float)) or not isfinite(pause) or pause < 0:
            raise TimingError(f"a pause takes seconds, 0 or more, not {pause!r}")
        return min(max((pause - self.survives) / self.timing.renew, 0.0), 1.0)

    # --- all of it -----------------------------------------------------------------------------------------

    def fits(self, *, within: float, messages: float) -> bool:
        """Whether even the worst takeover comes within so many seconds, with at most so many messages per second."""
        return self.worst <= within and self.messages <= messages

    def __str__(self) -> str:
        timing = self.timing
        items = "1 item" if self.items == 1 else f"{self.items} items"
        standbys = "1 standby" if self.standbys == 1 else f"{self.standbys} standbys"
        return (
            f"{items}, TTL {timing.lease_ttl:g} s, renewed every {timing.renew:.3g} s, margin {timing.margin:g} s, "
            f"{standbys} by {self.takeover}.\n"
            f"After its owner's death an item has a new one in {self.typical:.1f} s as a rule, "
            f"in {self.worst:.2f} s at worst.\n"
            f"The broker passes on {_count(self.messages)} messages per second: {_count(self.owner_messages)} of the "
            f"owners (each renewal, and its ack), {_count(self.standby_messages)} of each standby.\n"
            f"An owner that pauses for {self.survives:.3g} s or less keeps its lease; "
            f"one that pauses for more than {self.costs:.3g} s loses it, although it lives."
        )


def _count(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"
