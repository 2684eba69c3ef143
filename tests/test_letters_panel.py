"""The table of dead letters without a browser: what it shows, what it hands over, and that nothing can break it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import pytest
from panel_rig import Bench, all_of, buttons, call_in, has_button, soon, text, the_button

from meetupq import Lab, letters
from meetupq.dead_letters import DeadLetter
from meetupq.errors import LookInvalid
from meetupq.letters import LettersPanel


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def a_letter(number: int, **facts: Any) -> DeadLetter:
    usual = {
        "job": f"poison-{number}",
        "subject": "jobs.high.poison",
        "payload": b'{"ending": "silence"}',
        "headers": {},
        "reason": "not acked in 3 deliveries",
        "deliveries": 3,
        "last_worker": "ada",
        "at": datetime.now(UTC),
    }
    return DeadLetter(number, **(usual | facts))  # type: ignore[arg-type]


def show(bench: Bench, *known: DeadLetter, **options: Any) -> LettersPanel:
    bench.letters = list(known)
    panel: LettersPanel = bench.show(LettersPanel, **options)
    soon(lambda: len(rows(panel)) == min(len(bench.letters), letters.ROWS))
    return panel


def rows(panel: LettersPanel) -> list[str]:
    """The lines of the table that have a letter."""
    lines = [html.value for html in all_of(panel, widgets.HTML)]
    return [line for line in lines if 'class="meetupq-line"' in line]


def change(bench: Bench, panel: LettersPanel, *known: DeadLetter) -> None:
    bench.letters = list(known)
    panel.refresh()


def many(count: int) -> list[DeadLetter]:
    return [a_letter(number, job=f"resize-{number}", subject="jobs.high.resize") for number in range(1, count + 1)]


def test_the_table_shows_each_letter_with_all_its_facts(bench: Bench) -> None:
    old = datetime.now(UTC) - timedelta(seconds=75)
    panel = show(bench, a_letter(7, at=old), a_letter(9, job="video-1", subject="jobs.low.video", last_worker=""))
    first, second = rows(panel)
    for told in (">7<", ">poison-1<", "jobs.high.poison", "not acked in 3 deliveries", ">3<", ">ada<", ">75 s<"):
        assert told.replace("poison-1", "poison-7") in first
    assert "{&quot;ending&quot;: &quot;silence&quot;}" in first
    for told in (">9<", ">video-1<", "<s>low.</s><wbr>video", ">–<", ">0 s<"):
        assert told in second
    assert "2 dead letters: poison-7 (3 deliveries, last ada), video-1 (3 deliveries, last unknown)." in text(panel)


@pytest.mark.parametrize(
    ("seconds", "told"), [(-30, "0 s"), (119, "119 s"), (121, "2 min"), (7201, "2 h"), (864_010, "10 days")]
)
def test_the_age_is_never_negative_and_the_coarser_the_longer(bench: Bench, seconds: int, told: str) -> None:
    panel = show(bench, a_letter(1, at=datetime.now(UTC) - timedelta(seconds=seconds)))
    assert f">{told}<" in rows(panel)[0]


def test_letters_grow_older_though_nothing_happens(bench: Bench) -> None:
    panel = show(bench, a_letter(1))
    assert ">0 s<" in rows(panel)[0]
    soon(lambda: ">2 s<" in rows(panel)[0])


def test_without_letters_it_says_so_and_sleeps(bench: Bench) -> None:
    panel = bench.show(LettersPanel)
    assert "no dead letters" in text(panel)
    assert "There are no dead letters." in text(panel)
    assert all(button.disabled for button in buttons(panel))
    assert panel._next_look() is None
    change(bench, panel, a_letter(1))
    soon(lambda: "1 dead letter: poison-1" in text(panel))
    assert "no dead letters" not in text(panel)


def test_an_event_wakes_it(bench: Bench) -> None:
    panel = bench.show(LettersPanel)
    bench.letters = [a_letter(1)]
    bench.history.append("dead_lettered", "poison-1", "ada", attempt=3)
    soon(lambda: rows(panel))


def test_every_tooltip_names_the_method_that_does_the_same(bench: Bench) -> None:
    panel = show(bench, *many(12), a_letter(13, job='quoted"-)1'))
    the_button(panel, "Next").click()
    soon(lambda: len(rows(panel)) == 3)
    told = [(button.description, *call_in(button.tooltip)[:2]) for button in buttons(panel)]
    assert told == [
        ("Redrive these", "redrive_all", ()),
        ("Redrive all", "redrive_all", ()),
        ("Previous", "letters", ()),
        ("Next", "letters", ()),
        ("Redrive", "redrive", (11,)),
        ("Inspect", "letter", ("resize-11",)),
        ("Redrive", "redrive", (12,)),
        ("Inspect", "letter", ("resize-12",)),
        ("Redrive", "redrive", (13,)),
        ("Inspect", "letter", ('quoted"-)1',)),
    ]


def test_redrive_is_handed_over_once_however_often_it_is_pressed(bench: Bench) -> None:
    """The letter goes only at the next look, and a second redrive of it would fail: a red line for a double click."""
    panel = show(bench, a_letter(7), a_letter(8))
    redrive = the_button(panel, "Redrive", "lab.redrive(7)")
    redrive.click()
    redrive.click()
    the_button(panel, "Redrive all").click()
    assert bench.pressed == [("redrive", (7,), {})]
    soon(lambda: redrive.disabled and the_button(panel, "Redrive all").disabled)
    assert not the_button(panel, "Redrive", "lab.redrive(8)").disabled
    assert not the_button(panel, "Inspect", "poison-7").disabled
    change(bench, panel, a_letter(8))
    soon(lambda: len(rows(panel)) == 1 and not the_button(panel, "Redrive all").disabled)
    the_button(panel, "Redrive all").click()
    the_button(panel, "Redrive all").click()
    assert bench.pressed[1:] == [("redrive_all", (), {})]


def test_a_redrive_that_did_not_work_can_be_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "PATIENCE", 0.5)
    panel = show(bench, a_letter(7))
    redrive = the_button(panel, "Redrive", "lab.redrive(7)")
    redrive.click()
    soon(lambda: redrive.disabled)
    soon(lambda: not redrive.disabled)
    redrive.click()
    assert bench.pressed == [("redrive", (7,), {})] * 2


def test_a_press_never_meets_the_letter_that_has_just_moved_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "SETTLE", 60)
    panel = show(bench, a_letter(7), a_letter(8))
    aimed_at = the_button(panel, "Redrive", "lab.redrive(7)")
    change(bench, panel, a_letter(8))
    soon(lambda: "lab.redrive(8)" in aimed_at.tooltip)
    aimed_at.click()
    assert bench.pressed == []
    monkeypatch.setattr(letters, "SETTLE", 0)
    aimed_at.click()
    assert bench.pressed == [("redrive", (8,), {})]


def test_ten_a_page(bench: Bench) -> None:
    panel = show(bench, *many(25))
    assert "1–10 of 25" in text(panel)
    before, after = the_button(panel, "Previous"), the_button(panel, "Next")
    assert before.disabled and not after.disabled
    after.click()
    soon(lambda: "11–20 of 25" in text(panel))
    after.click()
    soon(lambda: "21–25 of 25" in text(panel))
    assert len(rows(panel)) == 5 and ">resize-21<" in rows(panel)[0]
    assert after.disabled and not before.disabled
    change(bench, panel, *many(12))
    soon(lambda: "11–12 of 12" in text(panel))
    before.click()
    soon(lambda: "1–10 of 12" in text(panel))
    change(bench, panel)
    soon(lambda: "0–0 of 0" in text(panel))


def test_a_filter_shows_and_redrives_those_that_fit(bench: Bench) -> None:
    panel = show(bench, *many(12), a_letter(20), a_letter(21, job="poison-x"))
    the_button(panel, "Next").click()
    soon(lambda: "11–14 of 14" in text(panel))
    kind, job = all_of(panel, widgets.Text)
    # From a comm, which may be any thread.
    thread = threading.Thread(target=lambda: setattr(kind, "value", " poi* "))
    thread.start()
    thread.join()
    soon(lambda: "1–2 of 2 (14 in all)" in text(panel))
    assert [">poison-20<" in rows(panel)[0], ">poison-x<" in rows(panel)[1]] == [True, True]
    job.value = "*-x"
    soon(lambda: "1–1 of 1 (14 in all)" in text(panel))
    these = the_button(panel, "Redrive these")
    soon(lambda: call_in(these.tooltip) == ("redrive_all", (), {"kind": "poi*", "job": "*-x"}))
    assert call_in(the_button(panel, "Redrive all").tooltip) == ("redrive_all", (), {})
    these.click()
    assert bench.pressed == [("redrive_all", (), {"kind": "poi*", "job": "*-x"})]
    job.value = "nothing"
    soon(lambda: "none of the 14 fits the filter" in text(panel))
    assert these.disabled and not rows(panel)


def test_a_new_filter_begins_at_the_first_page(bench: Bench) -> None:
    panel = show(bench, *many(25), *(a_letter(number) for number in range(30, 35)))
    the_button(panel, "Next").click()
    soon(lambda: "11–20 of 30" in text(panel))
    all_of(panel, widgets.Text)[0].value = "resize"
    soon(lambda: "1–10 of 25 (30 in all)" in text(panel))


def test_what_is_typed_is_drawn_by_the_thread_of_the_panel(bench: Bench) -> None:
    panel = show(bench, *many(3), fps=0.1)
    soon(lambda: not panel._dirty.is_set())
    time.sleep(0.2)  # the frame that may be under way
    all_of(panel, widgets.Text)[0].value = "other"
    assert panel._dirty.is_set()
    assert len(rows(panel)) == 3


def test_inspect_shows_the_whole_letter(bench: Bench) -> None:
    payload = b"x" * 5000
    headers = {"Trace": "<b>42</b>", "Kind": "y"}
    panel = show(bench, a_letter(7), a_letter(8, payload=payload, headers=headers, subject="jobs.low.video"))
    assert "Inspect shows a whole letter here." in text(panel)
    the_button(panel, "Inspect", '"poison-8"').click()
    soon(lambda: "8 · poison-8" in panel._whole.value)
    whole = panel._whole.value
    for told in ("jobs.low.video", "not acked in 3 deliveries", "3, the last one to ada", "Kind: y", "UTC"):
        assert told in whole
    assert "Trace: &lt;b&gt;42&lt;/b&gt;" in whole
    assert "x" * 4096 in whole and "x" * 4097 not in whole
    assert "... 904 more bytes" in whole and "5000 bytes, text" in whole
    assert "no longer" not in whole
    change(bench, panel, a_letter(7))
    soon(lambda: "no longer among the dead letters" in panel._whole.value)
    assert "x" * 4096 in panel._whole.value, "what one reads is not taken away"


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"", "(empty)"),
        (b"<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        (b"a\n\t b", "a b"),
        (b"\x00\xff", "hex 00 ff"),
        ("\u202eevil".encode(), "hex e2 80 ae 65 76 69 6c"),
        ("ü".encode() * 3000, "ü" * 39 + "…"),
        (("x" * 4095 + "ü").encode(), "x" * 39 + "…"),
        (b"x" * 40, "x" * 40),
        (bytes(range(128, 256)) * 40, "hex 80 81 82 83 84 85 86 87 88 89 8a 8b…"),
    ],
    ids=range(9),
)
def test_no_payload_can_break_the_table(bench: Bench, payload: bytes, shown: str) -> None:
    panel = show(bench, a_letter(1, payload=payload))
    assert f'<span title="{shown}">{shown}</span></div>' in rows(panel)[0]
    the_button(panel, "Inspect").click()
    soon(lambda: f"payload ({len(payload)} bytes" in panel._whole.value)
    assert "<script>" not in text(panel)


def test_no_name_can_break_the_table(bench: Bench) -> None:
    evil = '"><script>alert(1)</script>'
    facts: dict[str, Any] = {"job": evil, "subject": f"jobs.{evil}.{evil}", "reason": evil, "last_worker": evil}
    panel = show(bench, a_letter(1, headers={evil: evil}, **facts))
    the_button(panel, "Inspect").click()
    soon(lambda: "1 · " in panel._whole.value)
    assert "<script>" not in text(panel)
    assert '"">' not in text(panel)
    assert call_in(the_button(panel, "Inspect").tooltip) == ("letter", (evil,), {})


def test_many_letters_make_no_widgets_and_no_height(bench: Bench) -> None:
    panel = bench.show(LettersPanel)

    def shape() -> list[tuple[str, ...]]:
        return [(each.model_id, each.layout.height, each.layout.min_height) for each in all_of(panel) if each.layout]

    before = shape()
    assert len(before) < 80
    change(bench, panel, *many(200))
    soon(lambda: "1–10 of 200" in text(panel))
    for _ in range(3):
        the_button(panel, "Next").click()
    soon(lambda: "31–40 of 200" in text(panel))
    the_button(panel, "Inspect").click()
    soon(lambda: "31 · resize-31" in panel._whole.value)
    assert shape() == before


def test_a_closed_one_keeps_what_it_shows_and_takes_no_press(bench: Bench) -> None:
    panel = show(bench, *many(12))
    panel.freeze()
    assert "■ closed" in text(panel)
    assert len(rows(panel)) == 10
    assert all(button.disabled for button in buttons(panel))
    assert all(field.disabled for field in all_of(panel, widgets.Text))
    for button in buttons(panel):
        button.click()
    assert bench.pressed == []


def test_without_controls_it_is_an_empty_view(bench: Bench) -> None:
    panel = bench.show(LettersPanel, controls=False)
    assert "no dead letters" in text(panel)
    assert all(button.disabled for button in buttons(panel))


def test_a_size_that_has_no_room_for_the_table_is_refused(bench: Bench) -> None:
    with pytest.raises(LookInvalid, match="width is 400, but a panel takes 640"):
        LettersPanel(bench.history, width=400)


def test_letters_of_an_earlier_lab_are_there_and_can_be_put_back(tmp_path: Path) -> None:
    with Lab("ci", store=tmp_path, name="letters") as lab:
        lab.launch("ada")
        lab.publish("gone-1", "gone-2", kind="gone", ending="reject")
        panel = lab.letters_panel()
        assert lab.letters_panel() is panel
        soon(lambda: len(rows(panel)) == 2)
    assert "■ closed" in text(panel)

    with Lab("ci", store=tmp_path, name="letters") as lab:
        panel = lab.letters_panel()
        soon(lambda: len(rows(panel)) == 2)
        assert "gone-1 (1 delivery, last ada)" in text(panel)
        redrive = the_button(panel, "Redrive")
        job = call_in(the_button(panel, "Inspect").tooltip)[1]
        redrive.click()
        redrive.click()
        soon(lambda: len(rows(panel)) == 1)
        assert [event.job for event in lab.history.where("redriven")] == [*job]
        soon(lambda: not the_button(panel, "Redrive all").disabled)
        the_button(panel, "Redrive all").click()
        soon(lambda: not rows(panel))
        time.sleep(0.2)  # in which a second redrive would fail
        assert lab.failures == ()
        assert not has_button(panel, "Redrive")
