"""The rig itself, with plain widgets: a click in the browser reaches the lab, whatever the kernel does meanwhile."""

from __future__ import annotations

import asyncio

from .conftest import OpenNotebook
from .notebook import IN_THE_BROWSER

pytestmark = IN_THE_BROWSER

OPEN = """
import asyncio
import ipywidgets
import meetupq
lab = meetupq.Lab()
lab.launch("ada", "bo")
button = ipywidgets.Button(description="Kill")
button.on_click(lambda _: lab.press("kill", "ada"))
lab
"""
KILLED = '[event.at for event in lab.history.where("killed", worker="ada")]'


async def test_a_cell_runs_and_its_words_come_back(open_notebook: OpenNotebook) -> None:
    notebook = await open_notebook("words.ipynb", "print('printed')\n6 * 7", "1 / 0")

    await notebook.run(0)

    assert await notebook.output(0) == "printed\n\n42"
    assert await notebook.ask("{'answer': 6 * 7}") == {"answer": 42}
    try:
        await notebook.run(1)
    except AssertionError as error:
        assert "ZeroDivisionError" in str(error)
    else:
        raise AssertionError("a cell that raises must not pass for one that ran")


async def test_a_click_reaches_the_lab(open_notebook: OpenNotebook) -> None:
    notebook = await open_notebook("click.ipynb", OPEN, "button")
    assert "Lab: open, timing" in await notebook.run(0)
    await notebook.run(1)

    await notebook.page.get_by_role("button", name="Kill", exact=True).click()

    async with asyncio.timeout(5):
        while not await notebook.ask(KILLED):
            pass


async def test_a_click_reaches_the_lab_while_a_cell_waits(open_notebook: OpenNotebook) -> None:
    waiting = """
began = lab.history.now()
print("waiting")
await asyncio.sleep(3)
ended = lab.history.now()
"""
    notebook = await open_notebook("await.ipynb", OPEN, "button", waiting)
    await notebook.run(0)
    await notebook.run(1)
    cell = await notebook.start(2)
    await notebook.page.get_by_text("waiting", exact=True).wait_for()

    await notebook.page.get_by_role("button", name="Kill", exact=True).click()

    await notebook.end_of(cell)
    [killed] = await notebook.ask(KILLED)
    assert await notebook.ask("began") < killed < await notebook.ask("ended") - 1
