"""Chromium and JupyterLab for all tests of this folder, and a page of its own for each test.

Playwright's async API on one loop for the whole session: its sync API would keep a loop running between the tests, and
no other asynchronous test could run any more. So each module here says `pytestmark = IN_THE_BROWSER`.

MEETUPQ_CHROMIUM names the browser to use, MEETUPQ_TIMING the durations ("ci" by default), MEETUPQ_SCREENSHOTS a folder
for pictures, and with MEETUPQ_REQUIRE_BROWSER=1 a missing browser is a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import pytest_asyncio
from jupyter_rig import REPOSITORY, JupyterLab

from .notebook import Notebook

TIMING = os.environ.get("MEETUPQ_TIMING") or "ci"
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()

OpenNotebook = Callable[..., Awaitable[Notebook]]


def chromium() -> str:
    """The browser to use; ends the test, one way or the other, where there is none."""
    named = os.environ.get("MEETUPQ_CHROMIUM")
    for name in [named] if named else ["chromium", "chromium-browser", "google-chrome"]:
        if found := shutil.which(name):
            return found
    missing = f"{named} can't be run" if named else "no Chromium on PATH"
    why = f"{missing}: install one, or set MEETUPQ_CHROMIUM to its path"
    if os.environ.get("MEETUPQ_REQUIRE_BROWSER") == "1":
        pytest.fail(why)
    pytest.skip(why)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def browser() -> AsyncIterator[Any]:
    path = chromium()
    playwright = pytest.importorskip("playwright.async_api")
    async with playwright.async_playwright() as session:
        browser = await session.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture(scope="package")
def jupyterlab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterLab]:
    """JupyterLab on a copy of the notebooks."""
    with JupyterLab(tmp_path_factory.mktemp("jupyterlab"), MEETUPQ_TIMING=TIMING) as server:
        for lesson in (REPOSITORY / "notebooks").glob("*.ipynb"):
            shutil.copy(lesson, server.notebooks)
        yield server


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Where pictures go."""
    folder = Path(os.environ.get("MEETUPQ_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Any) -> AsyncIterator[Any]:
    """A window of a usual laptop. An error in the page's own scripts fails the test."""
    context = await browser.new_context(viewport={"width": 1440, "height": 1000})
    page = await context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    await context.close()
    assert not errors


@pytest_asyncio.fixture(loop_scope="session")
async def open_notebook(page: Any, jupyterlab: JupyterLab) -> AsyncIterator[OpenNotebook]:
    """Open a lesson by name, or a notebook made of the given cells; ends its kernel afterwards."""
    opened: list[Notebook] = []

    async def open_notebook(name: str = "probe.ipynb", *cells: str) -> Notebook:
        if cells:
            made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
            made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
            nbformat.write(made, jupyterlab.notebooks / name)
        opened.append(Notebook(page, jupyterlab, name))
        await opened[-1].open()
        return opened[-1]

    yield open_notebook
    for notebook in opened:
        await notebook.close()
    for session in jupyterlab.ask("GET", "/api/sessions"):
        jupyterlab.ask("DELETE", f"/api/sessions/{session['id']}")
    jupyterlab.footprint.wait_gone([])
