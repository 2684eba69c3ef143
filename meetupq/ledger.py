"""The ledger: what long work writes its effects to. No lease can reach it, so it has to defend itself.

An owner that was frozen wakes up and writes on, although its lease is long over and somebody else has the work. It
can't know. The ledger can: each owner's token is larger than the one before it, and a fenced ledger takes no write
with an older token than the last one that it took. That is all of fencing, and `Ledger.write` is all of its code.

    ledger = Ledger()
    ledger.write("import-eu", 1, Token("...", 17), "ada")
    ledger.write("import-eu", 2, Token("...", 23), "bo")     # bo has taken over
    ledger.write("import-eu", 2, Token("...", 17), "ada")    # raises Fenced

A stage keeps two of them side by side, one with a fence and one without (`LedgerService`); its workers write to both
with a single request (`LedgerClient`).
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Final, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from meetupq.broker import asking
from meetupq.buckets import content_of
from meetupq.errors import BrokerUnreachable, Fenced, LeaseError
from meetupq.history import History
from meetupq.leases import Token
from meetupq.subjects import is_name

LEDGER: Final = "ledger.write"
"""The subject of a request to write."""
LARGEST: Final = 1000
"""Bytes that a request may have; an honest one has some 150."""
MOST_STEPS: Final = 10_000
_BUCKET: Final = re.compile(r"[A-Za-z0-9_.-]{1,40}")


class Write(NamedTuple):
    """One write: which step of which work item, by whom, under which token."""

    item: str
    step: int
    token: Token
    worker: str


class Ledger:
    """One row for each work item: the step that it has reached, who wrote it, under which token.

    Args:
        fenced: whether a write with an old token is refused. Without a fence the last writer wins.

    Attributes:
        rows: the last write that was applied, by work item.
        newest: the newest token that was accepted, by work item.
        accepted, refused: all writes in the order in which they came.
        applied: the writes that changed a row. A fenced ledger applies each step of an item once: an heir repeats the
            step that its predecessor had written here, but had no time to checkpoint.
    """

    def __init__(self, *, fenced: bool = True) -> None:
        self.fenced = fenced
        self.rows: dict[str, Write] = {}
        self.newest: dict[str, Token] = {}
        self.accepted: list[Write] = []
        self.refused: list[Write] = []
        self.applied: list[Write] = []
        self._steps: set[tuple[str, int]] = set()

    def write(self, item: str, step: int, token: Token, worker: str) -> None:
        """Write down that a step of an item is done.

        Raises:
            Fenced: a newer owner has written. An equal token is fine: an owner writes many times.
        """
        write = Write(item, step, token, worker)
        newest = self.newest.get(item, token)
        if self.fenced and token < newest:
            self.refused.append(write)
            raise Fenced(f"{item}: {worker} wrote with {older(token, newest)}, which is newer; stop the work on it")
        self.newest[item] = max(token, newest)
        self.accepted.append(write)
        if self.fenced and (item, step) in self._steps:
            return
        self._steps.add((item, step))
        self.applied.append(write)
        self.rows[item] = write

    def damage(self) -> list[Write]:
        """The accepted writes whose token is older than one that was accepted before for the same item."""
        newest: dict[str, Token] = {}
        damage = []
        for write in self.accepted:
            if write.token < newest.get(write.item, write.token):
                damage.append(write)
            newest[write.item] = max(write.token, newest.get(write.item, write.token))
        return damage


def older(token: Token, newest: Token) -> str:
    """Both tokens in words: "token 17 after 23"; the revisions of a bucket that was made anew begin at 1 again."""
    bucket = "" if token.bucket == newest.bucket else " of an earlier bucket"
    return f"token {token.revision}{bucket} after {newest.revision}"


class LedgerService:
    """Both ledgers behind one NATS subject: each request is written to both, and answered by the fenced one.

    A request is JSON: `{"item": "import-eu", "step": 3, "token": ["20250101T120000.000000", 17], "worker": "ada"}`.
    Its answer is `{"ok": true}`, or `{"refused": "..."}` with the reason.
    """

    def __init__(self) -> None:
        self.fenced = Ledger()
        self.unfenced = Ledger(fenced=False)

    async def serve(self, client: Client, history: History) -> None:
        """Answer requests from now on, for as long as the connection lasts.

        Raises:
            BrokerUnreachable: the connection is closed.
        """

        async def on_request(message: Msg) -> None:
            # Whoever asks gets its answer in its inbox, and nowhere else: what an outsider may not publish itself,
            # such as a request to JetStream, we don't publish for it either.
            if message.reply.startswith("_INBOX"):
                answer = json.dumps(self._answer(message.data, history)).encode()
                with contextlib.suppress(BrokerUnreachable), asking("answer a write to the ledger"):
                    await message.respond(answer)

        with asking("serve the ledger"):
            await client.subscribe(LEDGER, cb=on_request)
            await client.flush()

    def _answer(self, data: bytes, history: History) -> dict[str, object]:
        write = read(data)
        if write is None:
            return {"refused": "this is no write to the ledger: send item, step, token and worker as JSON"}
        item, step, token, worker = write
        newest = self.unfenced.newest.get(item, token)
        stale = f"stale: {older(token, newest)}" if token < newest else ""
        self.unfenced.write(*write)
        history.append("written", item, worker, attempt=step, revision=token.revision, source="lab", detail=stale)
        try:
            self.fenced.write(*write)
        except Fenced as refusal:
            why = str(refusal)
            history.append("fenced", item, worker, attempt=step, revision=token.revision, source="lab", detail=why)
            return {"refused": why}
        return {"ok": True}


def read(data: bytes) -> Write | None:
    """The write in a request; None if it is none. Anybody may send anything."""
    wish = content_of(data) if len(data) <= LARGEST else {}
    item, step, token, worker = (wish.get(field) for field in Write._fields)
    if not (is_name(item) and is_name(worker) and isinstance(token, list) and len(token) == 2):
        return None
    bucket, revision = token
    if not (isinstance(bucket, str) and _BUCKET.fullmatch(bucket)):
        return None
    if type(step) is not int or not 1 <= step <= MOST_STEPS or type(revision) is not int or not 1 <= revision < 2**63:
        return None
    return Write(str(item), step, Token(bucket, revision), str(worker))


class LedgerClient:
    """Writes to the ledger of the stage, from any worker's connection, in any process.

    Args:
        client: an open nats-py connection.
        timeout: how long to wait for an answer, in seconds.
    """

    def __init__(self, client: Client, timeout: float = 2.0) -> None:
        self.client = client
        self.timeout = timeout

    async def write(self, item: str, step: int, token: Token, worker: str) -> None:
        """Write down that a step of an item is done.

        Raises:
            Fenced: the ledger has refused it.
            BrokerUnreachable: no answer; the write may have arrived, or may arrive later.
            LeaseError: an answer that no ledger gives.
        """
        wish = json.dumps(Write(item, step, token, worker)._asdict()).encode()
        with asking(f"write step {step} of {item} to the ledger"):
            answer = content_of((await self.client.request(LEDGER, wish, timeout=self.timeout)).data)
        if "refused" in answer:
            raise Fenced(str(answer["refused"]))
        if answer.get("ok") is not True:
            raise LeaseError(f"step {step} of {item}: somebody who is no ledger has answered on {LEDGER}")
