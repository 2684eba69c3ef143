"""One notebook in JupyterLab, as a learner handles it: run a cell, press a button, look at the picture."""

from __future__ import annotations

import ast
import asyncio
import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_rig import JupyterLab
from PIL import Image

IN_THE_BROWSER = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

CONNECTED = """() => {
  const panel = window.jupyterapp?.shell.currentWidget;
  return panel?.sessionContext?.session?.kernel?.connectionStatus === 'connected'
    && panel.sessionContext.session.kernel.status === 'idle' && panel.content.widgets.length > 0;
}"""
PANEL = ".meetupq-panel, .meetupq-tour, .meetupq-timers"
SELECT = """async (index) => {
  const content = window.jupyterapp.shell.currentWidget.content;
  content.deselectAll();
  content.activeCellIndex = index;
  await content.scrollToCell(content.widgets[index]);
}"""
RUN = """async (index) => {
  window.jupyterapp.shell.currentWidget.content.activeCellIndex = index;
  await window.jupyterapp.commands.execute('notebook:run-cell');
}"""
RUN_ALL = "async () => { await window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
CELL = "(index) => window.jupyterapp.shell.currentWidget.content.widgets[index].model.toJSON()"
CELLS = "() => window.jupyterapp.shell.currentWidget.content.widgets.map(cell => cell.model.toJSON())"
ASK = """async (expression) => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const request = {code: '', silent: true, store_history: false, user_expressions: {value: expression}};
  return (await kernel.requestExecute(request).done).content.user_expressions.value;
}"""


PIXELS = """async (image) => {
  const blob = await (await fetch(image.src)).blob();
  return await new Promise(done => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsDataURL(blob);
  });
}"""
Colour = tuple[int, int, int]


class Pixels:
    """The colours of a picture, and how often each occurs."""

    def __init__(self, png: bytes) -> None:
        with Image.open(io.BytesIO(png)) as image:
            picture = image.convert("RGB")
        self._colours = {colour: count for count, colour in picture.getcolors(picture.width * picture.height) or []}

    def count(self, colour: Colour) -> int:
        """How many pixels have this colour, or one that the eye can't tell from it."""
        return sum(
            count
            for shown, count in self._colours.items()
            if all(abs(a - b) <= 6 for a, b in zip(shown, colour, strict=True))
        )


def text_of(cell: dict[str, Any]) -> str:
    """What a cell has printed, shown as text, or raised."""
    parts = []
    for output in cell.get("outputs", []):
        shown = output.get("text") or output.get("data", {}).get("text/plain") or output.get("traceback") or ""
        parts.append(shown if isinstance(shown, str) else "".join(shown))
    return "\n".join(parts)


class Notebook:
    """Steers a notebook through the page, and the page only; cells are named by their index or by a piece of them."""

    def __init__(self, page: Any, lab: JupyterLab, name: str) -> None:
        self.page = page
        self.lab = lab
        self.name = name
        self._cells: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Open it in a fresh workspace, and wait until its kernel is ready."""
        await self.page.goto(f"{self.lab.url}/lab/tree/{self.name}?reset&token={self.lab.token}")
        await self.page.locator(".jp-Notebook").wait_for(timeout=60_000)
        await self.page.wait_for_function(CONNECTED, timeout=30_000)

    async def close(self) -> None:
        """Wait for no cell any more."""
        for cell in self._cells:
            cell.cancel()
        await asyncio.gather(*self._cells, return_exceptions=True)

    # --- cells -------------------------------------------------------------------------------------

    async def cells(self) -> list[dict[str, Any]]:
        """All cells with their outputs, in the notebook's own format."""
        return list(await self.page.evaluate(CELLS))

    async def index(self, cell: int | str, after: int = -1) -> int:
        """The place of the first code cell that contains the text."""
        if isinstance(cell, int):
            return cell
        for place, found in enumerate(await self.cells()):
            if place > after and found["cell_type"] == "code" and cell in "".join(found["source"]):
                return place
        raise AssertionError(f"{self.name} has no code cell with {cell!r}")

    async def start(self, cell: int | str) -> asyncio.Task[None]:
        """Run a cell; the task ends with it."""
        index = await self.index(cell)
        await self.page.evaluate(SELECT, index)
        self._cells.append(asyncio.create_task(self.page.evaluate(RUN, index)))
        return self._cells[-1]

    async def run(self, cell: int | str, *, within: float = 60) -> str:
        """Run a cell to its end and return its text; fails if it raises."""
        index = await self.index(cell)
        await self.end_of(await self.start(index), within=within)
        return await self.output(index)

    async def end_of(self, task: asyncio.Task[None], *, within: float = 60) -> None:
        await asyncio.wait_for(task, within)

    async def run_from(self, first: int | str, last: int | str) -> None:
        """Run the code cells from one to another, both included."""
        begin = await self.index(first)
        end = await self.index(last, after=begin - 1)
        for index, cell in enumerate(await self.cells()):
            if begin <= index <= end and cell["cell_type"] == "code":
                await self.run(index)

    async def run_all(self, *, within: float = 120) -> None:
        """Run > Run All Cells. Fails if a cell raises."""
        await asyncio.wait_for(self.page.evaluate(RUN_ALL), within)
        for index, cell in enumerate(await self.cells()):
            assert not list(errors_of(cell)), f"cell {index}: {text_of(cell)}"

    async def output(self, cell: int | str) -> str:
        """The text of a cell's output; fails if it raised."""
        found = await self.page.evaluate(CELL, await self.index(cell))
        assert not list(errors_of(found)), text_of(found)
        return text_of(found)

    async def ask(self, expression: str) -> Any:
        """The value of an expression in the kernel, through JSON. It waits for a cell that runs."""
        answer = await asyncio.wait_for(self.page.evaluate(ASK, f"__import__('json').dumps({expression})"), 60)
        assert answer["status"] == "ok", answer
        return json.loads(ast.literal_eval(answer["data"]["text/plain"]))

    # --- panels ------------------------------------------------------------------------------------

    def panel(self, cell: int | None = None) -> Any:
        """The panel below a cell, or the last one on the page."""
        if cell is None:
            return self.page.locator(PANEL).last
        return self.page.locator(f'.jp-Notebook .jp-Cell[data-windowed-list-index="{cell}"]').locator(PANEL)

    async def show(self, cell: int | str) -> Any:
        """Scroll to a cell's panel and return it once its picture is there, or its table."""
        index = await self.index(cell)
        await self.page.evaluate(SELECT, index)
        panel = self.panel(index)
        await panel.scroll_into_view_if_needed(timeout=20_000)
        classes = (await panel.get_attribute("class") or "").split()
        has_picture = not {"meetupq-letters", "meetupq-timers"} & set(classes)
        await panel.locator("img" if has_picture else ".meetupq-twin").wait_for(timeout=20_000)
        return panel

    async def press(self, panel: Any, description: str, worker: str = "") -> None:
        """Click a button with the mouse: one of the panel, or one on a worker's card."""
        place = panel.locator(f".meetupq-worker-{worker}") if worker else panel
        await place.get_by_role("button", name=description, exact=True).click(timeout=10_000)

    async def picture(self, panel: Any) -> str:
        """The address of the picture that is shown; a new picture has a new one."""
        return str(await panel.locator("img").get_attribute("src"))

    async def new_picture(self, panel: Any, old: str, within: float = 5) -> str:
        """Wait for a picture that is not the old one."""
        async with asyncio.timeout(within):
            while (src := await self.picture(panel)) == old:
                await asyncio.sleep(0.02)
        return src

    async def pixels(self, panel: Any) -> Pixels:
        """The picture as it is shown now."""
        shown = await self.page.evaluate(PIXELS, await panel.locator("img").element_handle())
        return Pixels(base64.b64decode(shown.partition(",")[2]))

    async def colour(self, panel: Any, worker: str) -> Colour:
        """A worker's colour, as its card shows it."""
        spot = panel.locator(f".meetupq-worker-{worker} i")
        shown = await spot.evaluate("spot => getComputedStyle(spot).backgroundColor")
        red, green, blue = (int(number) for number in re.findall(r"\d+", shown)[:3])
        return red, green, blue

    async def until_painted(self, panel: Any, colour: Colour, within: float = 5) -> None:
        """Wait until the picture has a spot in the colour."""
        async with asyncio.timeout(within):
            while (await self.pixels(panel)).count(colour) < 20:
                await asyncio.sleep(0.1)

    async def screenshot(self, target: Any, path: Path) -> bytes:
        """A picture of a panel or of the page, at the path."""
        return bytes(await target.screenshot(path=path))


def errors_of(cell: dict[str, Any]) -> Iterator[str]:
    """The exceptions that a cell has raised."""
    for output in cell.get("outputs", []):
        if output["output_type"] == "error":
            yield output["ename"]
