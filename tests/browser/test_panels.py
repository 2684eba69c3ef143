"""The panels' buttons, pressed with the mouse: what the history then says, and what the learner sees of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from .conftest import OpenNotebook
from .notebook import IN_THE_BROWSER, Notebook

pytestmark = IN_THE_BROWSER

OPEN = """
import asyncio, time
import meetupq
lab = meetupq.Lab("ci")
"""
QUEUE = """
lab.launch("ada", "bo", "cy")
lab.queue_panel()
"""
LONG_JOB = """
lab.publish("video-1", seconds=8)
holder = (await lab.until("delivered", job="video-1")).worker
"""
LEASES = """
lab.launch("ada", "bo", role="leases")
lab.lease_panel()
"""
LONG_WORK = """
lab.add_work("import-eu", seconds=60)
owner = (await lab.until("claimed", job="import-eu")).worker
"""
DELIVERIES = '[(e.worker, e.at) for e in lab.history.where("delivered", job="video-1")]'


async def open_queue(open_notebook: OpenNotebook, *more: str) -> tuple[Notebook, Any]:
    notebook = await open_notebook("queue.ipynb", OPEN, QUEUE, *more)
    await notebook.run(0)
    await notebook.run(1)
    return notebook, await notebook.show(1)


async def open_leases(open_notebook: OpenNotebook, *more: str) -> tuple[Notebook, Any]:
    notebook = await open_notebook("leases.ipynb", OPEN, LEASES, *more)
    await notebook.run(0)
    await notebook.run(1)
    return notebook, await notebook.show(1)


async def card(panel: Any, worker: str) -> str:
    """What a worker's card says."""
    return " ".join((await panel.locator(f".meetupq-worker-{worker}").text_content()).split())


async def until_card_says(panel: Any, worker: str, word: str, within: float = 5) -> None:
    async with asyncio.timeout(within):
        while word not in await card(panel, worker):
            await asyncio.sleep(0.02)


async def test_kill_whoever_holds_the_job(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """Kill: the job comes to somebody else after the patience, and the picture shows that one's colour in its row."""
    notebook, panel = await open_queue(open_notebook, LONG_JOB, 'heir = (await lab.until("delivered", count=2)).worker')
    await notebook.run(2)
    await notebook.show(1)
    holder = await notebook.ask("holder")
    await until_card_says(panel, holder, "holds video-1 (attempt 1)")
    before, src = await notebook.pixels(panel), await notebook.picture(panel)
    await notebook.screenshot(panel, screenshots / "queue-before-kill.png")

    await notebook.press(panel, "Kill", holder)

    await until_card_says(panel, holder, "killed")
    await notebook.new_picture(panel, src)
    await notebook.run(3)
    await notebook.show(1)
    heir = await notebook.ask("heir")
    await until_card_says(panel, heir, "holds video-1 (attempt 2)")
    [killed] = await notebook.ask('[e.at for e in lab.history.where("killed", worker=holder)]')
    (first, _), (second, again) = await notebook.ask(DELIVERIES)
    assert (first, second) == (holder, heir) and holder != heir
    assert killed < again < killed + 3, "by the patience of 0.6 s, counted from the last heartbeat, and some slack"
    colour = await notebook.colour(panel, heir)
    assert before.count(colour) == 0, "the heir had no part in the picture before"
    await notebook.until_painted(panel, colour)
    await notebook.screenshot(panel, screenshots / "queue-after-kill.png")
    assert await notebook.ask("lab.failures") == []


async def test_kill_while_a_cell_waits(open_notebook: OpenNotebook) -> None:
    """The cell awaits what the click brings about: were the click to wait for the cell, both would wait for ever."""
    waiting = """
began = lab.history.now()
await lab.until("delivered", job="video-1", count=2, within=20)
ended = lab.history.now()
"""
    notebook, panel = await open_queue(open_notebook, LONG_JOB, waiting)
    await notebook.run(2)
    holder = await notebook.ask("holder")
    cell = await notebook.start(3)
    await notebook.show(1)
    src = await notebook.picture(panel)

    await notebook.press(panel, "Kill", holder)

    await until_card_says(panel, holder, "killed")
    await notebook.new_picture(panel, src)
    await notebook.end_of(cell)
    [killed] = await notebook.ask('[e.at for e in lab.history.where("killed", worker=holder)]')
    (_, _), (heir, again) = await notebook.ask(DELIVERIES)
    assert await notebook.ask("began") < killed < again <= await notebook.ask("ended")
    assert heir != holder


async def test_the_picture_moves_while_a_cell_sleeps(open_notebook: OpenNotebook) -> None:
    """`time.sleep` blocks the kernel, but neither workers nor picture."""
    notebook, panel = await open_queue(open_notebook, "lab.publish(count=20)\ntime.sleep(3)\nprint('slept')")
    src = await notebook.picture(panel)
    cell = await notebook.start(2)
    await notebook.show(1)

    for _ in range(3):
        src = await notebook.new_picture(panel, src)

    assert not cell.done(), "three new pictures while the cell sleeps"
    await notebook.end_of(cell)
    assert await notebook.ask('len(lab.history.where("acked"))') >= 12


async def test_the_other_buttons(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """Publish 5, Stop, Start, Poison, Kill all; and after close() they are off and the panel says so."""
    five = 'await lab.until("acked", count=5)'
    dead = 'await lab.until("dead_lettered")'
    notebook, panel = await open_queue(open_notebook, five, dead, "lab.close()")

    await notebook.press(panel, "Publish 5")
    await notebook.run(2)
    await notebook.show(1)
    await notebook.press(panel, "Stop", "ada")
    await until_card_says(panel, "ada", "stopped")
    assert await panel.locator(".meetupq-worker-ada").get_by_role("button", name="Kill").is_disabled()
    await notebook.press(panel, "Start", "ada")
    await until_card_says(panel, "ada", "waiting")
    await notebook.press(panel, "Poison")
    await notebook.run(3)
    await notebook.show(1)
    await panel.get_by_text("1 dead", exact=False).first.wait_for(timeout=5000)
    await notebook.press(panel, "Kill all")
    for worker in ("ada", "bo", "cy"):
        await until_card_says(panel, worker, "killed")
    await notebook.screenshot(panel, screenshots / "queue-all-dead.png")
    assert await notebook.ask("lab.failures") == []

    await notebook.run(4)
    await notebook.show(1)

    await panel.get_by_text("closed", exact=False).first.wait_for(timeout=5000)
    for button in await panel.locator(".meetupq-card").get_by_role("button").all():
        assert await button.is_disabled()
    await notebook.screenshot(panel, screenshots / "queue-closed.png")


async def test_a_dead_letter_is_put_back(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """Poison; the letter appears in the table; Inspect, by the keyboard, and Redrive, by the mouse. Nothing jumps."""
    dead = 'await lab.until("dead_lettered", job="poison-1")'
    notebook, panel = await open_queue(open_notebook, "lab.letters_panel()", dead)
    await notebook.run(2)
    letters = notebook.panel(2)
    await letters.get_by_text("no dead letters", exact=True).wait_for(timeout=10_000)
    empty = await letters.bounding_box()
    await notebook.show(1)

    await notebook.press(panel, "Poison")

    await notebook.run(3)
    await letters.scroll_into_view_if_needed()
    redrive = letters.locator('button[title*="lab.redrive(1)"]:visible')
    await redrive.wait_for(timeout=5000)
    assert "poison-1" in await letters.locator(".meetupq-line").nth(1).text_content()
    inspect = letters.get_by_role("button", name="Inspect")
    await inspect.focus()
    await notebook.page.keyboard.press("Enter")
    await letters.get_by_text("1 · poison-1").wait_for(timeout=5000)
    await notebook.screenshot(letters, screenshots / "letters.png")
    full = await letters.bounding_box()
    assert (empty["width"], empty["height"]) == (full["width"], full["height"])
    frame = await letters.evaluate("panel => [panel.scrollWidth, panel.clientWidth]")
    assert frame[0] <= frame[1], "nothing is cut off at the right"

    await redrive.click(timeout=5000)

    await redrive.wait_for(state="hidden", timeout=5000)
    await letters.get_by_text("no longer among the dead letters").wait_for(timeout=5000)
    assert await notebook.ask('[(e.job, e.revision) for e in lab.history.where("redriven")]') == [["poison-1", 1]]
    assert await notebook.ask("lab.failures") == []


async def test_the_toggles_of_a_worker(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """They follow the worker, whoever has changed it; four cards fit into a row, and none of them changes its size."""
    notebook, panel = await open_queue(open_notebook, 'lab.launch("dan", priority="low")\nlab.heartbeats("ada", True)')
    ada = panel.locator(".meetupq-worker-ada")
    size = await ada.bounding_box()
    await notebook.press(panel, "♥", "ada")
    await notebook.press(panel, "×1", "ada")
    await ada.get_by_role("button", name="♡").wait_for(timeout=5000)
    await ada.get_by_role("button", name="×3").wait_for(timeout=5000)
    await notebook.screenshot(panel, screenshots / "queue-toggles.png")
    assert await notebook.ask('[e.detail for e in lab.history.where("tuned")][-1]') == (
        "queue high, heartbeats off, prefetch 3"
    )
    await notebook.run(2)
    await notebook.show(1)
    await ada.get_by_role("button", name="♥").wait_for(timeout=5000)
    await panel.locator(".meetupq-worker-dan").wait_for(timeout=5000)
    boxes = [await panel.locator(f".meetupq-worker-{name}").bounding_box() for name in ("ada", "bo", "cy", "dan")]
    assert len({(box["y"], box["width"], box["height"]) for box in boxes}) == 1
    now = await ada.bounding_box()
    assert (now["width"], now["height"]) == (size["width"], size["height"])


async def test_kill_the_owner_of_a_lease(open_notebook: OpenNotebook, screenshots: Path) -> None:
    notebook, panel = await open_leases(open_notebook, LONG_WORK, 'await lab.until("reclaimed", job="import-eu")')
    await notebook.run(2)
    await notebook.show(1)
    owner = await notebook.ask("owner")
    await until_card_says(panel, owner, "holds import-eu")
    before, src = await notebook.pixels(panel), await notebook.picture(panel)
    await notebook.screenshot(panel, screenshots / "leases-before-kill.png")

    await notebook.press(panel, "Kill", owner)

    await until_card_says(panel, owner, "killed")
    await notebook.new_picture(panel, src)
    await notebook.run(3)
    await notebook.show(1)
    heir = {"ada": "bo", "bo": "ada"}[owner]
    await until_card_says(panel, heir, "holds import-eu")
    events = await notebook.ask("[(e.kind, e.worker, e.at, e.revision) for e in lab.history.where(lambda e: e.job)]")
    (_, first, _, token) = next(event for event in events if event[0] == "claimed")
    (_, second, reclaimed, larger) = next(event for event in events if event[0] == "reclaimed")
    renewed = max(event[2] for event in events if event[0] in ("claimed", "renewed") and event[1] == owner)
    assert (first, second) == (owner, heir)
    assert larger > token, "the fencing token grows"
    ttl = await notebook.ask("lab.timing.lease_ttl")
    assert renewed + ttl - 0.1 < reclaimed < renewed + ttl + 1.5, "after the TTL, counted from the last renewal"
    colour = await notebook.colour(panel, heir)
    assert before.count(colour) == 0
    await notebook.until_painted(panel, colour)
    await panel.get_by_role("row").filter(has_text="import-eu").filter(has_text=heir).wait_for(timeout=5000)
    await notebook.screenshot(panel, screenshots / "leases-after-kill.png")


async def test_kill_the_owner_of_a_lease_while_a_cell_waits(open_notebook: OpenNotebook) -> None:
    waiting = """
began = lab.history.now()
await lab.until("reclaimed", job="import-eu", within=20)
ended = lab.history.now()
"""
    notebook, panel = await open_leases(open_notebook, LONG_WORK, waiting)
    await notebook.run(2)
    owner = await notebook.ask("owner")
    cell = await notebook.start(3)
    await notebook.show(1)

    await notebook.press(panel, "Kill", owner)

    await until_card_says(panel, owner, "killed")
    await notebook.end_of(cell)
    [killed] = await notebook.ask('[e.at for e in lab.history.where("killed", worker=owner)]')
    [heir] = await notebook.ask('[e.worker for e in lab.history.where("reclaimed")]')
    assert await notebook.ask("began") < killed < await notebook.ask("ended") - 0.5
    assert heir != owner


async def test_the_stop_button_ends_a_cell_that_waits(open_notebook: OpenNotebook) -> None:
    """Jupyter's own one, in the toolbar; panel and lab go on."""
    waiting = 'print("waiting")\nawait lab.until("dead_lettered", within=60)'
    notebook, panel = await open_queue(open_notebook, waiting, 'await lab.until("acked", job=lab.publish("later")[0])')
    cell = await notebook.start(2)
    await notebook.page.get_by_text("waiting", exact=True).last.wait_for()

    await notebook.page.get_by_role("button", name="Interrupt the kernel").click()

    await notebook.end_of(cell, within=5)
    await notebook.run(3)
    await notebook.show(1)
    await notebook.press(panel, "Kill", "ada")
    await until_card_says(panel, "ada", "killed")


async def test_four_cards_fit_a_row_and_the_roster_scrolls_and_stays_where_it_is(
    open_notebook: OpenNotebook, screenshots: Path
) -> None:
    """The table is made anew several times a second; who has scrolled it must not be thrown back to its top."""
    more = """
lab.launch("cy", "dan", role="leases")
lab.add_work(*[f"import-{number:02d}" for number in range(12)], seconds=60)
await lab.until("claimed", count=4, within=20)
"""
    notebook, panel = await open_leases(open_notebook, more)
    table = panel.locator(".meetupq-claims")
    empty = await table.bounding_box()
    await notebook.run(2)
    await notebook.show(1)
    await table.get_by_role("row").filter(has_text="import-11").wait_for(timeout=5000)
    boxes = [await panel.locator(f".meetupq-worker-{name}").bounding_box() for name in ("ada", "bo", "cy", "dan")]
    assert len({(box["y"], box["width"], box["height"]) for box in boxes}) == 1
    assert boxes[-1]["x"] + boxes[-1]["width"] <= (await panel.bounding_box())["x"] + 892
    for button in await panel.get_by_role("button").all():
        fits = await button.evaluate("button => button.scrollWidth <= button.clientWidth + 1")
        assert fits, await button.text_content()
    full = await table.bounding_box()
    assert full["height"] > empty["height"] > 100
    assert await table.evaluate("box => box.scrollHeight > box.clientHeight && box.scrollWidth <= box.clientWidth")
    await notebook.screenshot(panel, screenshots / "leases-roster.png")

    await table.evaluate("box => { box.scrollTop = 60 }")
    src = await notebook.picture(panel)
    for _ in range(3):
        src = await notebook.new_picture(panel, src)

    assert await table.evaluate("box => box.scrollTop") == 60
    now = await table.bounding_box()
    assert (now["width"], now["height"]) == (full["width"], full["height"])
    head = await table.get_by_role("columnheader").first.bounding_box()
    assert abs(head["y"] - now["y"]) < 3, "the names of the columns stay in sight"


async def test_an_owner_that_is_cut_off_gives_up_and_is_restored(
    open_notebook: OpenNotebook, screenshots: Path
) -> None:
    """Cut, on the owner's card: somebody else gets the work; Restore brings the worker back."""
    notebook, panel = await open_leases(open_notebook, LONG_WORK, 'await lab.until("reclaimed", job="import-eu")')
    await notebook.run(2)
    await notebook.show(1)
    owner = await notebook.ask("owner")
    await until_card_says(panel, owner, "holds import-eu")
    size = await panel.locator(f".meetupq-worker-{owner}").bounding_box()

    await notebook.press(panel, "Cut", owner)

    await until_card_says(panel, owner, "cut off")
    await notebook.run(3)
    await notebook.show(1)
    await until_card_says(panel, {"ada": "bo", "bo": "ada"}[owner], "holds import-eu")
    await notebook.screenshot(panel, screenshots / "leases-cut.png")
    assert await panel.locator(f".meetupq-worker-{owner}").get_by_role("button", name="Freeze").is_disabled()
    await notebook.press(panel, "Restore", owner)
    await panel.locator(f".meetupq-worker-{owner}").get_by_role("button", name="Cut").wait_for(timeout=5000)
    now = await panel.locator(f".meetupq-worker-{owner}").bounding_box()
    assert (now["width"], now["height"]) == (size["width"], size["height"])
    assert await notebook.ask("lab.failures") == []


async def test_a_frozen_process_wakes_up_as_a_zombie(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """Freeze and Thaw, on the card of a worker that is a process: it believes in its lease when that is over."""
    crew = 'lab.launch("zoe", role="leases", process=True)\nlab.add_work("import-eu", seconds=60)'
    claimed = 'await lab.until("claimed", worker="zoe", within=20)\nlab.launch("ada", role="leases")'
    notebook = await open_notebook(
        "zombie.ipynb", OPEN, "lab.lease_panel()", crew + "\n" + claimed, 'await lab.until("reclaimed", within=20)'
    )
    await notebook.run(0)
    await notebook.run(1)
    panel = await notebook.show(1)
    await notebook.run(2)
    await notebook.show(1)
    await until_card_says(panel, "zoe", "holds import-eu")
    await until_card_says(panel, "zoe", "process")
    await notebook.press(panel, "Freeze", "zoe")
    await until_card_says(panel, "zoe", "frozen")
    await notebook.run(3)
    await notebook.show(1)
    await until_card_says(panel, "zoe", "still believes in import-eu")
    await notebook.screenshot(panel, screenshots / "leases-zombie.png")
    await notebook.press(panel, "Thaw", "zoe")
    await until_card_says(panel, "zoe", "waiting", within=10)
    assert await notebook.ask('[e.worker for e in lab.history.where("lost")]') == ["zoe"]
    assert await notebook.ask("lab.failures") == []
