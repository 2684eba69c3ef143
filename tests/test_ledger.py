"""The ledger and its fence: which writes it takes, behind a NATS subject too, and with the tokens of real leases."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Connect
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from meetupq import checks
from meetupq.errors import BrokerUnreachable, Fenced, LeaseError, LeaseLost
from meetupq.history import History
from meetupq.leases import Lease, Leases, Token
from meetupq.ledger import LARGEST, LEDGER, Ledger, LedgerClient, LedgerService, Write, read
from meetupq.timing import Timing

OLD, NEW = "20250101T000000.000000", "20250102T000000.000000"
SHORT = Timing(lease_ttl=1, renew=0.3, margin=0.2)


def at(revision: int, bucket: str = OLD) -> Token:
    return Token(bucket, revision)


def test_an_owner_writes_many_times_and_its_heir_after_it() -> None:
    ledger = Ledger()
    for step, token, worker in ((1, 5, "ada"), (2, 5, "ada"), (3, 7, "bo")):
        ledger.write("w", step, at(token), worker)
    assert ledger.rows == {"w": Write("w", 3, at(7), "bo")}
    assert ledger.applied == ledger.accepted
    assert (ledger.refused, ledger.damage()) == ([], [])


def test_an_older_token_is_refused_with_both_tokens_named() -> None:
    ledger = Ledger()
    ledger.write("w", 1, at(7), "bo")
    with pytest.raises(Fenced, match="w: ada wrote with token 5 after 7, which is newer") as caught:
        ledger.write("w", 2, at(5), "ada")
    assert isinstance(caught.value, LeaseLost)
    assert ledger.rows["w"].worker == "bo"
    assert ledger.refused == [Write("w", 2, at(5), "ada")]
    assert ledger.accepted == [Write("w", 1, at(7), "bo")]
    ledger.write("v", 1, at(5), "ada")  # of another item


def test_without_a_fence_the_last_writer_wins_and_the_damage_is_known() -> None:
    ledger = Ledger(fenced=False)
    stale = [Write("w", 2, at(5), "ada"), Write("w", 3, at(5), "ada")]
    for write in (Write("w", 1, at(5), "ada"), Write("w", 2, at(7), "bo"), *stale, Write("w", 3, at(7), "bo")):
        ledger.write(*write)
    ledger.write(*stale[0])
    assert ledger.rows["w"] == stale[0]
    assert ledger.damage() == [*stale, stale[0]]
    assert ledger.refused == []


def test_a_step_that_an_heir_repeats_is_applied_once() -> None:
    fenced, unfenced = Ledger(), Ledger(fenced=False)
    for ledger in (fenced, unfenced):
        ledger.write("w", 1, at(5), "ada")
        ledger.write("w", 1, at(7), "bo")
    assert fenced.applied == [Write("w", 1, at(5), "ada")]
    assert len(fenced.accepted) == len(unfenced.applied) == 2
    with pytest.raises(Fenced):  # the step that changed nothing has brought the newer token all the same
        fenced.write("w", 2, at(5), "ada")


def test_a_bucket_that_was_made_anew_begins_at_1_and_its_tokens_are_newer_all_the_same() -> None:
    ledger = Ledger()
    ledger.write("w", 1, at(400), "ada")
    ledger.write("w", 2, at(1, NEW), "bo")
    with pytest.raises(Fenced, match="token 400 of an earlier bucket after 1"):
        ledger.write("w", 3, at(400), "ada")
    assert ledger.rows["w"].worker == "bo"


Writes = st.lists(
    st.tuples(
        st.sampled_from("vw"),
        st.integers(1, 4),
        st.builds(Token, st.sampled_from([OLD, NEW]), st.integers(1, 4)),
        st.sampled_from(["ada", "bo"]),
    )
)


@given(Writes)
def test_whatever_is_written_a_fenced_ledger_never_goes_back_and_loses_no_write(writes: list[Any]) -> None:
    fenced, unfenced = Ledger(), Ledger(fenced=False)
    for write in writes:
        unfenced.write(*write)
        newest = max((w.token for w in fenced.accepted if w.item == write[0]), default=write[2])
        if write[2] < newest:
            with pytest.raises(Fenced):
                fenced.write(*write)
        else:
            fenced.write(*write)
    assert fenced.damage() == []
    assert unfenced.damage() == fenced.refused
    assert len(fenced.accepted) + len(fenced.refused) == len(unfenced.accepted) == len(writes)
    assert len({write[:2] for write in fenced.applied}) == len(fenced.applied)
    assert {write[:2] for write in fenced.applied} == {write[:2] for write in fenced.accepted}


# --- behind NATS -----------------------------------------------------------------------------------


@pytest.fixture
async def service(connect: Connect, history: History) -> LedgerService:
    service = LedgerService()
    await service.serve(await connect("lab"), history)
    return service


async def test_both_ledgers_get_each_write_and_the_history_tells_of_both(
    service: LedgerService, connect: Connect, history: History
) -> None:
    ada, bo = LedgerClient(await connect("ada")), LedgerClient(await connect("bo"))
    await ada.write("w", 1, at(5), "ada")
    await bo.write("w", 1, at(7), "bo")
    with pytest.raises(Fenced, match="w: ada wrote with token 5 after 7"):
        await ada.write("w", 2, at(5), "ada")
    assert [(e.kind, e.job, e.worker, e.attempt, e.revision, e.source) for e in history] == [
        ("written", "w", "ada", 1, 5, "lab"),
        ("written", "w", "bo", 1, 7, "lab"),
        ("written", "w", "ada", 2, 5, "lab"),
        ("fenced", "w", "ada", 2, 5, "lab"),
    ]
    assert [event.detail for event in history][:3] == ["", "", "stale: token 5 after 7"]
    assert service.fenced.rows["w"].worker == "ada"  # step 1, which bo has only repeated
    assert service.fenced.newest["w"] == at(7)
    assert service.unfenced.damage() == service.fenced.refused == [Write("w", 2, at(5), "ada")]
    assert checks.ledger_damaged(history, "w").status == checks.ledger_kept(history, "w").status == "HELD"


async def test_each_stale_write_is_told_also_when_one_came_before_it(
    service: LedgerService, connect: Connect, history: History
) -> None:
    client = LedgerClient(await connect("ada"))
    await client.write("w", 1, at(7), "bo")
    for step in (2, 3):
        with pytest.raises(Fenced):
            await client.write("w", step, at(5), "ada")
    assert [event.detail for event in history.where("written")] == ["", *["stale: token 5 after 7"] * 2]
    assert len(service.unfenced.damage()) == 2


async def test_without_a_ledger_there_is_no_answer(connect: Connect) -> None:
    client = await connect("ada")
    with pytest.raises(BrokerUnreachable, match="can't write step 3 of w to the ledger"):
        await LedgerClient(client).write("w", 3, at(5), "ada")

    async def says_nothing(_: Any) -> None:
        return

    await client.subscribe(LEDGER, cb=says_nothing)
    with pytest.raises(BrokerUnreachable, match="TimeoutError"):
        await LedgerClient(client, timeout=0.1).write("w", 3, at(5), "ada")
    await client.close()
    with pytest.raises(BrokerUnreachable):
        await LedgerClient(client).write("w", 3, at(5), "ada")
    with pytest.raises(BrokerUnreachable):
        await LedgerService().serve(client, History())


async def test_who_is_no_ledger_is_not_believed(connect: Connect) -> None:
    client = await connect("ada")

    async def echo(message: Any) -> None:
        await message.respond(message.data)

    await client.subscribe(LEDGER, cb=echo)
    with pytest.raises(LeaseError, match="somebody who is no ledger has answered"):
        await LedgerClient(client).write("w", 3, at(5), "ada")


GOOD: dict[str, Any] = {"item": "w", "step": 1, "token": [OLD, 5], "worker": "ada"}
RUBBISH = [
    b"",
    b"no json",
    b"\xff\xfe",
    b"[]",
    b"null",
    b"1",
    b"[" * 900,
    b"{}",
    *(json.dumps({key: GOOD[key] for key in GOOD if key != gone}).encode() for gone in GOOD),
    *(
        json.dumps(GOOD | change).encode()
        for change in (
            {"item": 3}, {"item": ""}, {"item": "a.b"}, {"item": "w" * 41}, {"item": ["w"]}, {"item": "w\n"},
            {"worker": None}, {"worker": ">"}, {"worker": "\ud800"}, {"worker": {}},
            {"step": 0}, {"step": -1}, {"step": 1.0}, {"step": True}, {"step": "1"}, {"step": 10_001}, {"step": 10**40},
            {"step": float("nan")}, {"token": 5}, {"token": []}, {"token": [OLD]}, {"token": [OLD, 5, 6]},
            {"token": {"bucket": OLD}}, {"token": [5, OLD]}, {"token": ["", 5]}, {"token": ["~" * 5, 5]},
            {"token": ["9" * 41, 5]}, {"token": [OLD, 0]}, {"token": [OLD, True]}, {"token": [OLD, 5.0]},
            {"token": [OLD, 2**63]}, {"padding": "x" * LARGEST},
        )
    ),
    b"x" * 500_000,
]  # fmt: skip


async def test_rubbish_is_refused_and_the_ledger_goes_on(
    service: LedgerService, connect: Connect, history: History
) -> None:
    client = await connect("outsider")
    for data in RUBBISH:
        answer = json.loads((await client.request(LEDGER, data, timeout=5)).data)
        assert list(answer) == ["refused"], data[:100]
        assert "send item, step, token and worker as JSON" in answer["refused"]
    assert len(history) == 0
    await LedgerClient(client).write("w", 1, at(5), "ada")
    assert [event.kind for event in history] == ["written"]


async def test_the_ledger_answers_into_inboxes_only(service: LedgerService, connect: Connect, history: History) -> None:
    """Else it would publish for an outsider where that one may not."""
    client = await connect("outsider")
    elsewhere = await client.subscribe("elsewhere")
    await client.publish(LEDGER, json.dumps(GOOD).encode(), reply="elsewhere")
    await client.publish(LEDGER, json.dumps(GOOD).encode(), reply=LEDGER)
    await client.publish(LEDGER, json.dumps(GOOD).encode())
    await LedgerClient(client).write("w", 9, at(5), "ada")  # answered after all of these
    await client.flush()
    assert elsewhere.pending_msgs == 0
    assert [event.attempt for event in history] == [9]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(Write._fields), inner),
    max_leaves=9,
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_bytes_come_reading_them_never_fails(data: bytes) -> None:
    write = read(data)
    assert write is None or write.step >= 1


# --- with real leases ------------------------------------------------------------------------------


async def opened(client: Client, timing: Timing = SHORT, history: History | None = None) -> Leases:
    leases = Leases(client, timing, history)
    await leases.ensure()
    return leases


async def claimed(leases: Leases, owner: str) -> Lease:
    lease = await leases.claim("w", owner)
    assert lease is not None
    return lease


async def test_tokens_of_a_bucket_that_was_deleted_and_made_anew_fence_the_old_ones(
    service: LedgerService, connect: Connect
) -> None:
    client = await connect()
    first = await opened(client)
    zombie = await claimed(first, "ada")
    for _ in range(3):
        await zombie.renew()
    await first.jetstream.delete_key_value(first.name)
    second = await opened(client)
    heir = await claimed(second, "bo")
    await heir.release()
    again = await claimed(second, "cy")
    assert heir.token.revision <= zombie.token.revision  # begins at 1 again
    assert zombie.token < heir.token < again.token
    ledger = LedgerClient(client)
    await ledger.write("w", 1, zombie.token, "ada")
    await ledger.write("w", 2, heir.token, "bo")
    with pytest.raises(Fenced, match="of an earlier bucket after 1"):
        await ledger.write("w", 3, zombie.token, "ada")
    await ledger.write("w", 3, again.token, "cy")
    with pytest.raises(Fenced):
        await ledger.write("w", 4, heir.token, "bo")
