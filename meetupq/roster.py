"""The claims roster: who owns which work, since when, for how long still, and how we know."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn

from meetupq.buckets import content_of
from meetupq.errors import BrokerUnreachable, LeaseError
from meetupq.leases import Leases
from meetupq.observer import Observer, Sight
from meetupq.tasks import together
from meetupq.work_items import WorkItem, WorkItems

GRACE: Final = 0.5
"""Seconds that a worker's own word about its claim has before the broker's is written down in its place."""
LONGEST: Final = 100
"""Letters that the name and the nonce of an owner may have; ours have at most 40."""

ClaimState = Literal["free", "held", "suspect", "expired", "released"]


@dataclass(frozen=True)
class Claim:
    """One line of the roster.

    Attributes:
        item: the work item.
        state: "held"; "suspect" when renewals are overdue; "expired" or "released" when nobody holds it any more;
            "free" if nobody ever did.
        owner: the owner, or the last one; "" if there was none.
        nonce: tells this claim from another one by a worker of the same name.
        token: its fencing token.
        revision: of the last renewal seen.
        renewals: how many renewals the owner has counted.
        since: when this owner was first seen, in seconds of the history's clock.
        expires_in: seconds until the TTL is over, counted by this observer's clock from the last change it saw.
        evidence: how the last change was seen, "watch" or "list".
        evidence_age: seconds since then.
        past_owners: the owners before, oldest first.
        done, steps: the progress of the work, as read last; 0 of 0 if it isn't on the list of work.
    """

    item: str
    state: ClaimState
    owner: str
    nonce: str
    token: int
    revision: int
    renewals: int
    since: float
    expires_in: float
    evidence: str
    evidence_age: float
    past_owners: tuple[str, ...]
    done: int = 0
    steps: int = 0


@dataclass(slots=True)
class _Owner:
    """What the bucket says of the last owner of a key."""

    owner: str
    nonce: str
    token: int
    renewals: int
    since: float
    past: list[str] = field(default_factory=list)


class Roster:
    """What one observer knows about the claims. `run` it; read `claims()` at any time.

    It records `expired` in the history: the broker's marker is the only witness of an owner's silent death.

    Args:
        leases: on a connection of its own.
        items: the list of work, for the items that nobody has ever claimed.
    """

    def __init__(self, leases: Leases, items: WorkItems | None = None) -> None:
        self.leases = leases
        self.history = leases.history
        self._items = items
        self._work: dict[str, WorkItem] = {}
        self._observer = Observer(leases, self._see)
        self._owners: dict[str, _Owner] = {}
        self._heard: set[str] = set()
        self._outsiders: set[str] = set()

    def claims(self) -> list[Claim]:
        """The roster, by work item. Free of cost: it asks nobody."""
        free = {item for item, work in self._work.items() if not work.over}
        return [self._claim(item) for item in sorted(free | set(self._owners))]

    def _claim(self, item: str) -> Claim:
        sight, owned, work = self._observer.sights.get(item), self._owners.get(item), self._work.get(item)
        done, steps = (work.done, work.steps) if work else (0, 0)
        if sight is None or owned is None:
            return Claim(item, "free", "", "", 0, 0, 0, 0.0, 0.0, "list", 0.0, (), done, steps)
        age = time.monotonic() - sight.at
        return Claim(
            item=item,
            state=sight.note or ("suspect" if age > 2 * self.leases.timing.renew else "held"),
            owner=owned.owner,
            nonce=owned.nonce,
            token=owned.token,
            revision=sight.revision,
            renewals=owned.renewals,
            since=owned.since,
            expires_in=0.0 if sight.note else max(0.0, self.leases.ttl - age),
            evidence=sight.evidence,
            evidence_age=age,
            past_owners=tuple(owned.past),
            done=done,
            steps=steps,
        )

    async def run(self) -> None:
        """Watch and list until cancelled. A broker that goes away is waited for."""
        await together(watch=self._observer.run(), list=self._list())

    async def refresh(self) -> None:
        """Read the claims, and the list of work, now."""
        await self._observer.refresh()
        await self._list_work()

    async def _list(self) -> NoReturn:
        while True:
            try:
                await self._list_work()
            except (BrokerUnreachable, LeaseError):
                pass  # the broker is away, or the bucket: what we know grows old, and `evidence_age` says so
            self._tell_of_outsiders()
            await asyncio.sleep(self.leases.timing.lobby)

    async def _list_work(self) -> None:
        if self._items:
            self._work = {item.name: item for item in await self._items.all()}

    def _see(self, item: str, sight: Sight, before: Sight | None) -> None:
        if not sight.note:
            self._hold(item, sight)
        elif before and not before.note and (owned := self._owners.get(item)):
            if sight.note == "expired":
                self._record("expired", item, owned, detail="the TTL ran out")
            elif owned.nonce in self._outsiders:
                self._record("released", item, owned)

    def _hold(self, item: str, sight: Sight) -> None:
        claim = _claim_in(sight.data)
        if claim is None:
            self._owners.pop(item, None)  # somebody wrote rubbish into the bucket; it is nobody's claim
            return
        owner, nonce, token, renewals = claim
        last = self._owners.get(item)
        since, past = self.history.now(), [*last.past, last.owner] if last else []
        if last and last.nonce == nonce:
            since, past = last.since, last.past
        self._owners[item] = _Owner(owner, nonce, token or sight.revision, renewals, since, past)
        if nonce in self._outsiders:
            self._record("renewed", item, self._owners[item])

    def _tell_of_outsiders(self) -> None:
        """Write down the claims of those who don't write into this history: somebody's own code, a guest.

        A worker of ours has its word first; what it has said is not said again.
        """
        now = self.history.now()
        sights = self._observer.sights
        news = [(i, o) for i, o in self._owners.items() if o.nonce not in self._heard and not sights[i].note]
        for item, owned in news:
            if now - owned.since > GRACE:
                self._heard.add(owned.nonce)
                claims = [*self.history.where("claimed", item), *self.history.where("reclaimed", item)]
                if owned.token not in {event.revision for event in claims}:
                    self._outsiders.add(owned.nonce)
                    self._record("claimed", item, owned, at=owned.since)

    def _record(self, kind: str, item: str, owned: _Owner, *, at: float | None = None, detail: str = "") -> None:
        seen = self.history.from_clock(self._observer.sights[item].at)
        until = seen + self.leases.ttl if kind in ("claimed", "renewed") else 0.0
        facts: dict[str, Any] = {"revision": owned.token, "until": until, "source": "broker", "detail": detail}
        self.history.append(kind, item, owned.owner, at=at, **facts)


def _claim_in(data: bytes) -> tuple[str, str, int, int] | None:
    """Owner, nonce, token and renewals in an entry; None if somebody has written something else there."""
    claim = content_of(data)
    owner, nonce, token, renewals = (claim.get(field) for field in ("owner", "nonce", "token", "renewals"))
    if not (isinstance(owner, str) and owner.isprintable() and isinstance(nonce, str)):
        return None
    if not (0 < len(owner) <= LONGEST and len(nonce) <= LONGEST):
        return None
    if type(token) is not int or type(renewals) is not int or not (0 <= token < 2**63 and 0 <= renewals < 2**63):
        return None
    return owner, nonce, token, renewals
