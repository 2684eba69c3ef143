"""The panels without a browser: what they show, what their buttons do, and what they cost."""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import ipywidgets as widgets
import pytest
from panel_rig import Bench, all_of, buttons, call_in, has_button, soon, text, the_button

from meetupq import Lab
from meetupq.history import History
from meetupq.letters import LettersPanel
from meetupq.panels import LeasePanel, QueuePanel
from meetupq.roster import Claim
from meetupq.stage import Stage
from meetupq.summary import QueueSummary
from meetupq.timing import Timing
from meetupq.view import View


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def a_killed_worker(history: History) -> None:
    history.append("started", worker="ada", detail="queue high")
    history.append("started", worker="bo", detail="queue high")
    history.append("published", "resize-1")
    history.append("delivered", "resize-1", "ada", attempt=1, until=history.now() + 60, source="worker")
    history.append("killed", worker="ada")


def test_a_panel_shows_what_is_in_the_history_already_and_what_comes(bench: Bench) -> None:
    a_killed_worker(bench.history)
    panel = bench.show(QueuePanel)
    soon(lambda: "✗ killed" in text(panel))
    assert "held resize-1 (attempt 1)" in text(panel)
    assert "1 in flight" in text(panel)
    assert "= 1 published" in text(panel)
    first = all_of(panel, widgets.Image)[0].value
    bench.history.append("delivered", "resize-1", "bo", attempt=2, until=bench.history.now() + 60, source="worker")
    bench.history.append("acked", "resize-1", "bo", attempt=2, source="worker")
    soon(lambda: "1 done" in text(panel))
    soon(lambda: all_of(panel, widgets.Image)[0].value != first)
    assert "ada" in panel._twin.value and "acked" in panel._twin.value


def a_lobbyist(history: History) -> None:
    history.append("started", worker="cy", detail="leases")
    history.append("added", "import-eu")
    history.append("claimed", "import-eu", "cy", revision=3, until=99, source="worker")


@pytest.mark.parametrize("kind", [QueuePanel, LeasePanel])
def test_a_button_does_what_its_tooltip_says_and_names_the_method(bench: Bench, kind: type[View]) -> None:
    a_killed_worker(bench.history)
    a_lobbyist(bench.history)
    panel = bench.show(kind)
    soon(lambda: has_button(panel, "Kill", "lab.kill("))
    pressed = 0
    for button in buttons(panel):
        assert button.description
        action, args, options = call_in(button.tooltip)
        inspect.signature(getattr(Stage, action)).bind(None, *args, **options)
        if not button.disabled:
            button.click()
            pressed += 1
            assert bench.pressed[-1] == (action, args, options), button.tooltip
    assert len(bench.pressed) == pressed >= 4


def test_the_toolbar_of_the_queue(bench: Bench) -> None:
    panel = bench.show(QueuePanel)
    offered = {button.description: call_in(button.tooltip) for button in buttons(panel)}
    assert offered == {
        "Publish": ("publish", (), {}),
        "Publish 5": ("publish", (), {"count": 5}),
        "Slow": ("slow", (), {}),
        "Poison": ("poison", (), {}),
        "Nak": ("publish", (), {"kind": "nak", "ending": "nak"}),
        "Nak later": ("publish", (), {"kind": "later", "ending": "nak", "after": 0.6}),
        "Reject": ("publish", (), {"kind": "reject", "ending": "reject"}),
        "Term": ("publish", (), {"kind": "term", "ending": "term"}),
        "Sweep": ("sweep", (), {}),
        "Hire": ("hire", (), {}),
        "Kill all": ("kill_all", ("queue",), {}),
    }
    assert len({(button.layout.width, button.layout.height) for button in buttons(panel)}) == 1


def test_a_nak_with_a_delay_is_off_where_a_backoff_would_add_to_it(bench: Bench) -> None:
    later = the_button(bench.show(QueuePanel), "Nak later")
    assert later.disabled
    assert "the backoff and the delay of a nak would add up" in later.tooltip
    later.click()
    assert bench.pressed == []


def test_a_nak_with_a_delay_waits_as_long_as_the_broker_would() -> None:
    bench = Bench(Timing.preset("ci").but(ack_wait=0.7))
    later = the_button(bench.show(QueuePanel), "Nak later")
    assert not later.disabled
    assert "add up" not in later.tooltip
    later.click()
    assert bench.pressed == [("publish", (), {"kind": "later", "ending": "nak", "after": 0.7})]
    bench.close()


def test_a_worker_is_alive_or_can_be_started(bench: Bench) -> None:
    a_killed_worker(bench.history)
    panel = bench.show(QueuePanel)
    soon(lambda: has_button(panel, "Kill", '"bo"'))
    usable = {
        (b.description, name): not b.disabled
        for name in ("ada", "bo")
        for b in buttons(panel)
        if f'("{name}")' in b.tooltip
    }
    assert usable == {
        ("Kill", "ada"): False, ("Stop", "ada"): False, ("Start", "ada"): True,
        ("Kill", "bo"): True, ("Stop", "bo"): True, ("Start", "bo"): False,
        ("Freeze", "ada"): False, ("Cut", "ada"): False, ("Freeze", "bo"): False, ("Cut", "bo"): True,
    }  # fmt: skip


def offered(panel: View, name: str) -> dict[str, bool]:
    """The buttons of a worker's card, and whether they have an effect now."""
    return {
        b.description: not b.disabled for b in buttons(panel) if f'("{name}")' in b.tooltip.partition(" (off now")[0]
    }


@pytest.mark.parametrize("kind, role", [(QueuePanel, "queue high, heartbeats on, prefetch 1"), (LeasePanel, "leases")])
def test_one_button_freezes_and_thaws_and_one_cuts_and_restores(bench: Bench, kind: type[View], role: str) -> None:
    history = bench.history
    history.append("started", worker="ada", detail=f"{role}, process")
    panel = bench.show(kind)
    alive = {"Kill": True, "Stop": True, "Start": False}
    steps = (
        ("", {"Freeze": True, "Cut": True}),
        ("frozen", {"Thaw": True, "Cut": True}),
        ("cut", {"Thaw": True, "Restore": True}),
        ("thawed", {"Freeze": True, "Restore": True}),
        ("restored", {"Freeze": True, "Cut": True}),
        ("frozen", {"Thaw": True, "Cut": True}),
    )
    for happened, buttons_now in steps:
        if happened:
            history.append(happened, worker="ada")
        soon(lambda now=buttons_now: offered(panel, "ada") == alive | now)
        for description in buttons_now:
            the_button(panel, description, '"ada"').click()
            assert bench.pressed.pop() == (description.lower(), ("ada",), {})
    history.append("killed", worker="ada")
    soon(lambda: offered(panel, "ada") == dict.fromkeys(("Kill", "Stop", "Freeze", "Cut"), False) | {"Start": True})
    off = 'Cut ada off from the network: lab.cut("ada") (off now: ada is killed: lab.relaunch("ada") starts it again)'
    assert the_button(panel, "Cut", '"ada"').tooltip == off


def test_a_task_cannot_be_frozen_and_its_card_says_why(bench: Bench) -> None:
    bench.history.append("started", worker="ada", detail="leases by observe, 2 slots")
    bench.history.append("started", worker="bo", detail="leases by observe, 2 slots, process")
    panel = bench.show(LeasePanel)
    soon(lambda: has_button(panel, "Freeze", '"bo"'))
    assert offered(panel, "ada")["Freeze"] is False and offered(panel, "bo")["Freeze"] is True
    assert the_button(panel, "Freeze", '"ada"').tooltip == (
        'Let the process of ada stand still: lab.freeze("ada") (off now: ada is a task and shares the lab\'s process: '
        'lab.launch("ada", process=True) can be frozen)'
    )
    kinds = [
        html.value
        for html in all_of(panel, widgets.HTML)
        if "meetupq-kind" in html.value and "<style" not in html.value
    ]
    assert [("<em>process</em>" in kind, "task" in kind) for kind in kinds] == [(False, True), (True, False)]


def test_a_card_names_all_that_a_worker_holds_and_what_it_wrongly_believes_in(bench: Bench) -> None:
    history = bench.history
    history.append("started", worker="ada", detail="leases, 2 slots, process")
    for token, item in enumerate(("import-eu", "reindex"), start=1):
        history.append("claimed", item, "ada", revision=token, until=99)
    panel = bench.show(LeasePanel)
    soon(lambda: "holds import-eu, reindex" in text(panel))
    history.append("frozen", worker="ada")
    history.append("reclaimed", "import-eu", "bo", revision=9, until=199)
    soon(lambda: "holds reindex; <b>still believes in import-eu</b>" in text(panel))
    for item in ("import-eu", "reindex"):
        history.append("lost", item, "ada")
    history.append("thawed", worker="ada")
    history.append("lobbied", worker="ada")
    soon(lambda: "stands by: nothing to claim" in text(panel))


def a_claim(item: str, **facts: Any) -> Claim:
    told = {
        "state": "held", "owner": "cy", "token": 3, "nonce": "f3a9c01b77", "revision": 17, "renewals": 5, "since": 2.0,
        "expires_in": 0.5, "evidence": "watch", "evidence_age": 0.3, "past_owners": ("ada", "bo"),
    }  # fmt: skip
    return Claim(item=item, **told | facts)


def roster_of(panel: View) -> dict[str, list[str]]:
    """The roster: its cells by work item, without markup."""
    lines = re.findall(r"<tr.*?</tr>", panel._summary.value)
    cells = [re.findall(r"<t[dh].*?>(.*?)</t[dh]>", line) for line in lines]
    return {row[0]: [re.sub("<.*?>", "", cell) for cell in row[1:]] for row in cells}


def test_the_roster_has_a_line_for_every_item_and_all_that_is_known_of_its_claim(bench: Bench) -> None:
    a_lobbyist(bench.history)
    for item in ("reindex", "cleanup", "report", "thumbs"):
        bench.history.append("added", item)
    bench.history.append("checkpointed", "import-eu", "cy", revision=3, detail="4 of 10 steps")
    bench.history.append("cancelled", "cleanup")
    bench.claims = [
        a_claim("import-eu"),
        a_claim("reindex", state="suspect", owner="<b>", past_owners=()),
        a_claim("report", state="expired", expires_in=0.0),
        a_claim("thumbs", state="free", owner="", nonce="", past_owners=()),
    ]
    panel = bench.show(LeasePanel)
    soon(lambda: "cleanup" in panel._summary.value)
    roster = roster_of(panel)
    assert roster["work"] == [
        "state", "owner", "token", "nonce", "since", "renewals", "revision", "expires in", "evidence", "before", "done"
    ]  # fmt: skip
    assert roster["import-eu"] == [
        "● held", "cy", "r3", "f3a9c0", "2.0 s", "5", "17", "0.5 s", "watch 0.3 s", "ada, bo", "40 %"
    ]  # fmt: skip
    assert roster["reindex"][:2] == ["? suspect", "&lt;b&gt;"]
    assert (roster["report"][0], roster["report"][7]) == ("▼ expired", "–")
    assert roster["thumbs"] == ["○ free", *["–"] * 10]
    assert roster["cleanup"] == ["⊖ cancelled", *["–"] * 10], "nobody has claimed it"
    share = 100 * 0.5 / bench.controls.timing.lease_ttl
    assert f'<b style="width:{share:.0f}%">' in panel._summary.value
    assert "background:#0072B2" in panel._summary.value, "the colour of its owner in the picture"


def test_the_roster_keeps_its_height_and_scrolls_from_nine_lines_on(bench: Bench) -> None:
    panel = bench.show(LeasePanel)
    heights = {}
    for count in (0, 1, 4, 8, 9, 40):
        bench.claims = [a_claim(f"import-{number:02d}") for number in range(count)]
        panel.refresh()
        soon(lambda count=count: panel._summary.value.count("<tr") == count + 1)
        heights[count] = int(panel._table.layout.height.removesuffix("px"))
    assert heights[0] == heights[1] == heights[4] < heights[8] == heights[9] == heights[40]
    assert panel._table.layout.overflow == "auto"


def test_heartbeats_and_prefetch_are_as_the_timeline_says_and_a_press_changes_them(bench: Bench) -> None:
    history = bench.history
    history.append("started", worker="ada", detail="queue low, heartbeats on, prefetch 1")
    panel = bench.show(QueuePanel)
    soon(lambda: has_button(panel, "♥"))
    assert the_button(panel, "♥").tooltip == 'Heartbeats are on; turn them off: lab.heartbeats("ada", False)'
    assert the_button(panel, "×1").tooltip == 'Pulls 1 job at once; let it pull 3: lab.prefetch("ada", 3)'
    assert "heartbeats are on; it pulls 1 job at once" in text(panel)
    assert "<em>low</em>" in text(panel)
    the_button(panel, "♥").click()
    the_button(panel, "×1").click()
    assert bench.pressed == [("heartbeats", ("ada", False), {}), ("prefetch", ("ada", 3), {})]
    assert has_button(panel, "♥"), "what was pressed is shown when it is so, not before"

    history.append("tuned", worker="ada", detail="queue high, heartbeats off, prefetch 3")  # by whatever hand
    soon(lambda: has_button(panel, "♡") and has_button(panel, "×3"))
    assert the_button(panel, "♡").tooltip == 'Heartbeats are off; turn them on: lab.heartbeats("ada", True)'
    assert the_button(panel, "×3").tooltip == 'Pulls 3 jobs at once; let it pull 1: lab.prefetch("ada", 1)'
    assert "<em>low</em>" not in text(panel)
    the_button(panel, "♡").click()
    the_button(panel, "×3").click()
    assert bench.pressed[2:] == [("heartbeats", ("ada", True), {}), ("prefetch", ("ada", 1), {})]


def test_a_toggle_does_what_it_shows_even_if_that_is_so_by_now(bench: Bench) -> None:
    bench.history.append("started", worker="ada", detail="queue high, heartbeats on, prefetch 1")
    panel = bench.show(QueuePanel, fps=0.1)
    soon(lambda: has_button(panel, "♥") and not panel._dirty.is_set())
    bench.history.append("tuned", worker="ada", detail="queue high, heartbeats off, prefetch 3")
    panel._timeline.feed(bench.history.since(panel._timeline.seen))
    for toggle in ("♥", "×1"):
        the_button(panel, toggle).click()
        assert bench.pressed.pop() == call_in(the_button(panel, toggle).tooltip)


def test_workers_that_lobby_have_neither(bench: Bench) -> None:
    a_lobbyist(bench.history)
    panel = bench.show(LeasePanel)
    soon(lambda: has_button(panel, "Kill", '"cy"'))
    assert {b.description for b in buttons(panel)} == {
        "Add work", "Cancel", "Hire", "Kill all", "Kill", "Stop", "Start", "Freeze", "Cut"
    }  # fmt: skip
    assert "heartbeats" not in text(panel)


def test_the_broker_s_own_counts(bench: Bench) -> None:
    panel = bench.show(QueuePanel)
    assert "the broker: not asked yet" in text(panel)
    lines, head = text(panel).count("<tr>"), panel._summary.value.partition("<tr>")[2].partition("</tr>")[0]
    bench.counted = QueueSummary(1, 2, 3, 0, 5, 6, 7, 24)
    panel.refresh()
    soon(lambda: "the broker says" in text(panel))
    row = "".join(f"<td>{count}</td>" for count in (1, 2, 3, 0, 5, 7, 6, "= 24"))
    assert row in text(panel)
    assert head in text(panel), "the columns are there from the start"
    assert "⊠" not in panel._summary.value.partition("<table")[2], "nothing is stuck"
    bench.counted = QueueSummary(1, 2, 3, 4, 5, 6, 7, 28)
    panel.refresh()
    soon(lambda: '<td class="meetupq-stuck">⊠ 4 stuck</td>' in text(panel))
    assert text(panel).count("<tr>") == lines


def test_the_bar_names_every_state_that_a_job_is_in_and_keeps_the_others_short(bench: Bench) -> None:
    bench.history.append("published", "resize-1")
    panel = bench.show(QueuePanel)
    bar = panel._summary.value
    assert ">○ 1 waiting</span>" in bar
    for mark, state in zip("▶↺⊠◆■✓", ("in flight", "retrying", "stuck", "dead", "terminated", "done"), strict=True):
        assert f'title="0 {state}">{mark} 0</span>' in bar


@pytest.mark.parametrize(
    ("timing", "brief", "full"),
    [
        (Timing(), "patience 3 s, 3 deliveries · timing own", ""),
        (Timing.preset("class"), "patience 3/4/5 s, 3 deliveries · timing class", ""),
        (Timing.preset("class").but(ack_wait=9, backoff=(3, 4, 5)),
         "patience 3/4/5 s (backoff; ack_wait 9 s is unused), 3 deliveries", " · timing own"),
        (Timing.preset("class").but(low=Timing(ack_wait=6, max_deliver=5)),
         "high 3/4/5 s, 3 deliveries · low 6 s, 5 deliveries · timing own", ""),
        (Timing(ack_wait=9, backoff=(3, 4, 5), low=Timing(ack_wait=6, max_deliver=5)),
         "high 3/4/5 s, 3 deliveries · low 6 s, 5 deliveries · timing own", None),
    ],
)  # fmt: skip
def test_the_header_has_the_patience_on_one_line(timing: Timing, brief: str, full: str | None) -> None:
    bench = Bench(timing)
    header = bench.show(QueuePanel)._header.value
    assert f">{brief}</span>" in header
    assert len(brief) <= 70
    if full is None:
        assert "high 3/4/5 s (backoff; ack_wait 9 s is unused), 3 deliveries · low 6 s" in header
    else:
        assert f'title="{brief}{full}"' in header
    bench.close()


def test_without_controls_a_panel_is_a_view(bench: Bench) -> None:
    a_killed_worker(bench.history)
    panel = bench.show(QueuePanel, controls=False)
    soon(lambda: "killed" in text(panel))
    assert all(button.disabled for button in all_of(panel, widgets.Button))
    for button in all_of(panel, widgets.Button):
        button.click()
    assert bench.pressed == []


def test_a_failure_in_the_background_is_a_red_line(bench: Bench) -> None:
    panel = bench.show(QueuePanel)
    assert "failed in the background" not in text(panel)
    bench.failures.append("the keeper: <b>boom</b>")
    panel.refresh()
    soon(lambda: "failed in the background: the keeper: &lt;b&gt;boom&lt;/b&gt;" in text(panel))


def test_a_picture_that_cannot_be_drawn_says_so_and_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = bench.show(QueuePanel)
    soon(lambda: all_of(panel, widgets.Image)[0].value)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("no ink")

    monkeypatch.setattr(panel._picture, "update", fail)
    panel.refresh()
    soon(lambda: "ZeroDivisionError: no ink" in text(panel))
    monkeypatch.undo()
    bench.history.append("published", "resize-1")
    soon(lambda: "= 1 published" in text(panel))


def test_names_with_markup_are_text(bench: Bench) -> None:
    history = bench.history
    history.append("started", worker="<img src=x>", detail="queue high")
    history.append("published", "<script>")
    history.append("delivered", "<script>", "<img src=x>", attempt=1, until=99, source="worker")
    panel = bench.show(QueuePanel)
    soon(lambda: "&lt;img src=x&gt;" in text(panel))
    assert "<img src=x>" not in text(panel)
    assert "<script>" not in text(panel)


def test_what_the_lease_panel_hands_over_works_in_a_lab() -> None:
    with Lab("ci", name="lease-buttons") as lab:
        panel = lab.lease_panel()
        for description in ("Hire", "Add work"):
            the_button(panel, description).click()
        soon(lambda: lab.history.where("claimed", job="work-1"), within=15)
        owner = lab.history.where("claimed", job="work-1")[0].worker
        soon(lambda: roster_of(panel).get("work-1", [""])[0] == "● held")
        the_button(panel, "Cut", f'"{owner}"').click()
        soon(lambda: has_button(panel, "Restore", f'"{owner}"'), within=15)
        the_button(panel, "Restore", f'"{owner}"').click()
        soon(lambda: lab.history.where("restored", worker=owner), within=15)
        the_button(panel, "Cancel").click()
        soon(lambda: roster_of(panel)["work-1"][0] == "⊖ cancelled", within=15)
        the_button(panel, "Kill all").click()
        soon(lambda: "✗ killed" in text(panel))
        assert lab.failures == ()


def test_each_panel_shows_its_own_workers(bench: Bench) -> None:
    a_killed_worker(bench.history)
    a_lobbyist(bench.history)
    queue, leases = bench.show(QueuePanel), bench.show(LeasePanel)
    soon(lambda: has_button(leases, "Kill", '"cy"') and has_button(queue, "Kill", '"bo"'))
    assert not has_button(queue, "Kill", '"cy"')
    assert not has_button(leases, "Kill", '"bo"')


def test_a_burst_of_events_becomes_few_messages_and_the_last_state_is_shown(bench: Bench) -> None:
    panel = bench.show(QueuePanel, fps=5)
    changes: list[object] = []
    for widget in [*all_of(panel, widgets.HTML), *all_of(panel, widgets.Image)]:
        widget.observe(changes.append, "value")
    started = time.monotonic()
    for number in range(3000):
        bench.history.append("published", f"resize-{number}")
    soon(lambda: "= 3000 published" in text(panel), within=20)
    assert len(changes) <= 5 * (5 * (time.monotonic() - started) + 2)


def test_nothing_is_drawn_while_nothing_moves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.history.append("published", "resize-1")
    panel = bench.show(QueuePanel, fps=50)
    soon(lambda: "= 1 published" in text(panel))
    time.sleep(0.2)  # the frame that may be under way
    frames = 0
    draw = panel._picture.update

    def count(*args: Any) -> None:
        nonlocal frames
        frames += 1
        draw(*args)

    monkeypatch.setattr(panel._picture, "update", count)
    time.sleep(0.5)  # the silence is the subject
    assert frames == 0
    bench.history.append("published", "resize-2")
    soon(lambda: frames > 0)


def test_close_and_freeze_end_the_thread(bench: Bench) -> None:
    before = threading.active_count()
    panel = bench.show(QueuePanel)
    assert threading.active_count() == before + 1
    panel.freeze()
    assert threading.active_count() == before
    assert "closed" in text(panel)
    bench.history.append("published", "resize-1")  # nobody listens any more
    panel.close()
    panel.close()


def test_a_panel_prints_the_same_in_every_run(bench: Bench) -> None:
    assert repr(bench.show(QueuePanel)) == "<QueuePanel>"


def test_a_lab_has_one_panel_of_a_kind_and_takes_it_along_when_it_closes() -> None:
    with Lab("ci", name="panels") as lab:
        panel = lab.queue_panel()
        assert lab.queue_panel() is panel
        lab.launch("ada")
        soon(lambda: has_button(panel, "Kill", '"ada"'))
        the_button(panel, "Kill", '"ada"').click()
        soon(lambda: "✗ killed" in text(panel))
        assert lab.history.where("killed", worker="ada")
        lab.press("kill", "nobody")
        soon(lambda: "UnknownWorker" in text(panel))
        with pytest.raises(Exception, match="nobody"):
            lab.publish("resize-1")
    assert "closed" in text(panel)
    assert all(button.disabled for button in buttons(panel))


def test_what_the_queue_panel_hands_over_works_in_a_lab() -> None:
    """Every kind of job goes to the end that its button promises, and the counts follow."""
    with Lab(Timing.preset("ci").but(ack_wait=0.6), name="buttons") as lab:
        panel = lab.queue_panel()
        for description in ("Hire", "Publish", "Publish 5", "Slow", "Nak later", "Reject", "Term"):
            the_button(panel, description).click()
        soon(lambda: lab.history.where("naked", job="later-1"), within=15)
        soon(lambda: len(lab.history.where("acked")) >= 7, within=15)
        soon(lambda: lab.history.where("dead_lettered", job="reject-1"), within=15)
        soon(lambda: lab.history.where("terminated", job="term-1"), within=15)
        soon(lambda: "<td>1</td><td>7</td><td>= 10</td>" in text(panel), within=15)
        the_button(panel, "♥").click()
        the_button(panel, "×1").click()
        soon(lambda: has_button(panel, "♡") and has_button(panel, "×3"))
        the_button(panel, "Sweep").click()
        the_button(panel, "Kill all").click()
        soon(lambda: "✗ killed" in text(panel))
        assert lab.failures == ()


@pytest.mark.parametrize("kind", [QueuePanel, LeasePanel, LettersPanel])
def test_no_name_of_ours_hides_one_of_the_widgets(bench: Bench, kind: type[View]) -> None:
    """`_send` of a widget, for one, sends; a method of ours with that name breaks it in a kernel only."""
    theirs = set(dir(widgets.VBox())) - {"close", "__repr__"}
    ours = {name for each in kind.__mro__ if each.__module__.startswith("meetupq") for name in vars(each)}
    ours |= set(vars(bench.show(kind))) - set(vars(widgets.VBox()))
    assert not {name for name in ours & theirs if not name.startswith("__") and not name.endswith("_generators")} - {
        "_descriptors", "_instance_inits", "_static_immutable_initial_values", "_traits"
    }  # fmt: skip


def test_dear_frames_leave_the_machine_to_the_workers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a frame that took a tenth of a second of a core, two tenths go by before the next one."""
    panel = bench.show(QueuePanel, fps=60)
    wait, pauses = panel._ended.wait, []

    def burn(*_: object) -> None:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass

    monkeypatch.setattr(panel._ended, "wait", lambda seconds: pauses.append(seconds) or wait(seconds))
    soon(lambda: pauses)
    assert min(pauses) >= 1 / 60
    monkeypatch.setattr(panel._picture, "update", burn)
    panel.refresh()
    soon(lambda: max(pauses) > 0.2)
