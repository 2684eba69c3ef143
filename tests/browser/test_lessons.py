"""The lessons in a real JupyterLab: from top to bottom, and with the button pressed where a lesson asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from jupyter_rig import REPOSITORY

from .conftest import OpenNotebook
from .notebook import IN_THE_BROWSER, text_of

pytestmark = IN_THE_BROWSER

LESSONS = [path.name for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb"))]
WIDGET = "application/vnd.jupyter.widget-view+json"
FOR_PEOPLE = "__import__('os').environ.update(MEETUPQ_TIMING='class')"


@pytest.mark.parametrize("lesson", LESSONS)
async def test_a_lesson_runs_from_top_to_bottom(lesson: str, open_notebook: OpenNotebook, screenshots: Path) -> None:
    """Run All Cells: nothing raises, and each verdict is the one that is stored in the file."""
    notebook = await open_notebook(lesson)
    name = Path(lesson).stem
    await notebook.screenshot(notebook.page, screenshots / f"{name}-fresh.png")
    stored = {index: text_of(cell) for index, cell in enumerate(await notebook.cells()) if cell.get("outputs")}
    assert any("HELD" in verdict for verdict in stored.values())

    await notebook.run_all()

    cells = await notebook.cells()
    assert {index: text_of(cells[index]) for index in stored} == stored
    for index, cell in enumerate(cells):
        if any(WIDGET in output.get("data", {}) for output in cell.get("outputs", [])):
            await notebook.show(index)
            await notebook.screenshot(notebook.page, screenshots / f"{name}-cell-{index}.png")


async def test_lesson_1_with_the_mouse(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """The learner presses Kill on the card of the worker that holds the job, as the lesson asks."""
    notebook = await open_notebook("01_work_queue.ipynb")
    await notebook.ask(FOR_PEOPLE)
    await notebook.run_from("lab = meetupq.Lab(timing)", "holder = ")
    panel = await notebook.show("holder = ")
    holder, src = await notebook.ask("holder"), await notebook.picture(panel)

    await notebook.press(panel, "Kill", holder)

    await notebook.new_picture(panel, src)
    done = await notebook.index('await lab.until("delivered", job=job, count=2)')
    await notebook.run(done)
    panel = await notebook.show("holder = ")
    await notebook.screenshot(notebook.page, screenshots / "01_work_queue-killed.png")
    assert (await notebook.run("checks.retried_elsewhere")).startswith("HELD"), await notebook.output(done)
    assert (await notebook.run("checks.untouched")).startswith("HELD")


async def test_lesson_2_with_the_mouse(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """The learner presses Poison instead of running the cell."""
    notebook = await open_notebook("02_dead_letters.ipynb")
    await notebook.run("lab = meetupq.Lab(timing)")
    panel = await notebook.show("lab = meetupq.Lab(timing)")
    src = await notebook.picture(panel)

    await notebook.press(panel, "Poison")

    await notebook.new_picture(panel, src)
    await notebook.run('await lab.until("dead_lettered", job="poison-1")')
    await notebook.show("lab = meetupq.Lab(timing)")
    await notebook.screenshot(notebook.page, screenshots / "02_dead_letters-poison.png")
    assert (await notebook.run("checks.died_after")).startswith("HELD")
    assert (await notebook.run("checks.gaps_follow")).startswith("HELD")


async def test_lesson_3_with_the_mouse(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """All workers are dead and the broker is silent; the learner presses Sweep instead of running the cell."""
    notebook = await open_notebook("03_silent_dlq.ipynb")
    await notebook.run_from("lab = meetupq.Lab(ours)", 'await lab.until("exhausted", job="poison-1")')
    panel = await notebook.show('lab.kill("dan")')
    await notebook.screenshot(notebook.page, screenshots / "03_silent_dlq-silent.png")
    assert (await notebook.run("checks.silent_while_dead")).startswith("HELD")
    assert (await notebook.run("checks.counted(lab.summary(), retrying=2)")).startswith("HELD")
    src = await notebook.picture(panel)

    await notebook.press(panel, "Sweep")

    await notebook.new_picture(panel, src)
    await notebook.ask("[event.job for event in lab.history.where('dead_lettered')]")
    await notebook.screenshot(notebook.page, screenshots / "03_silent_dlq-swept.png")
    assert (await notebook.run('checks.buried_once(lab.history, "poison-1", "poison-2")')).startswith("HELD")


async def test_lesson_4_with_the_mouse(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """The learner presses Kill on the owner's card, and its work is taken over when the TTL has run out."""
    notebook = await open_notebook("04_leases.ipynb")
    await notebook.ask(FOR_PEOPLE)
    await notebook.run_from("lab = meetupq.Lab()", "owner = lab.owner")
    panel = await notebook.show("owner = lab.owner")
    owner, src = await notebook.ask("owner"), await notebook.picture(panel)

    await notebook.press(panel, "Kill", owner)

    await notebook.new_picture(panel, src)
    await notebook.run("heir = ")
    await notebook.show("owner = lab.owner")
    await notebook.screenshot(notebook.page, screenshots / "04_leases-killed.png")
    assert (await notebook.run("checks.reclaimed_after_ttl")).startswith("HELD")
    assert (await notebook.run("checks.never_two_owners")).startswith("HELD")
