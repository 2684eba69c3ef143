"""Runs of a notebook outside any browser: strict nbval, and cell by cell in a kernel of its own, which may be killed.

Every run has a folder of its own, outside the repository, with its own temp files: what is left of it can be found.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import nbformat
import psutil
from jupyter_client.manager import KernelManager
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
GONE_LIMIT: Final = 5.0
CELL_LIMIT: Final = 60.0
LOOPBACK_ONLY: Final = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def environment(folder: Path) -> dict[str, str]:
    """That of a process which runs a notebook in `folder`, with the durations of a machine."""
    temp = folder / "tmp"
    temp.mkdir(exist_ok=True)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"MEETUPQ_TIMING": "ci", "TMPDIR": str(temp), "IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": path}
    return {name: value for name, value in os.environ.items() if name != "MEETUPQ_NATS_URL"} | own


# --- what a run leaves behind ----------------------------------------------------------------------


def left_behind(folder: Path) -> list[str]:
    """Servers, guards and temp folders of a run in `folder` that are still there."""
    temp = str(folder / "tmp")
    processes = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    return [line for line in processes if temp in line] + [str(p) for p in Path(temp).glob("meetupq-*")]


def left_for_good(folder: Path, within: float = GONE_LIMIT) -> list[str]:
    """What is still there when there was time enough for it to go."""
    deadline = time.monotonic() + within
    while (left := left_behind(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """An empty folder for one run. What the run left is ended with it, so that one failure doesn't become the next."""
    folder = Path(tempfile.mkdtemp(prefix="lesson-"))
    try:
        yield folder
    finally:
        for process in psutil.process_iter(["cmdline"]):
            if any(str(folder / "tmp") in word for word in process.info["cmdline"] or []):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        shutil.rmtree(folder, ignore_errors=True)


# --- strict nbval ----------------------------------------------------------------------------------


@cache
def without_network() -> tuple[str, ...]:
    """The words before a command that leave it only the loopback network; () where that can't be done."""
    for words in (("unshare", "-n"), ("unshare", "-rn")):
        with contextlib.suppress(OSError):
            if subprocess.run([*words, *LOOPBACK_ONLY, "true"], capture_output=True, check=False).returncode == 0:
                return (*words, *LOOPBACK_ONLY)
    return ()


def run_nbval(
    folder: Path, name: str, *, offline: bool = False, core: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one notebook strictly, in `folder`, with temp files of its own.

    Args:
        offline: with no network but the loopback, where the system can do that.
        core: the only processor that it may use.
    """
    words = [sys.executable, "-m", "pytest", "--nbval", "-p", "no:cacheprovider"]
    words += [f"--nbval-cell-timeout={CELL_LIMIT:g}", "-q", "--color=no", name]
    return subprocess.run(
        [*without_network(), *words] if offline else words,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
    )


def strict_runs(notebook: NotebookNode, name: str, times: int = 1, *, core: int | None = None) -> Iterator[str]:
    """Run it strictly so many times in one folder far from the repository, with no network but the loopback.

    Yields what was wrong with each run: a cell that failed, or something that was left; "" where all was well.
    """
    with own_folder() as folder:
        nbformat.write(notebook, folder / name)
        for _ in range(times):
            result = run_nbval(folder, name, offline=True, core=core)
            left = left_for_good(folder)
            failed = why_failed(result.stdout, notebook) if result.returncode else ""
            yield "; ".join(filter(None, [failed, f"it left {left}" if left else ""]))


def why_failed(report: str, notebook: NotebookNode) -> str:
    """What nbval reports about the first cell that failed, in one line: the cell's id and the error or the outputs."""
    report = re.sub(r"\x1b\[[\d;]*m", "", report)
    block = re.search(r"^Cell (\d+): (.+?)$(.*?)(?=^____|^====|\Z)", report, re.MULTILINE | re.DOTALL)
    if not block:
        return report.strip()[-400:] or "nbval said nothing"
    code = [cell.id for cell in notebook.cells if cell.cell_type == "code"]
    told = re.findall(
        r"^[A-Za-z_.]+: \S.*$|^ *['\"].*['\"] == ['\"].*$", block[3].partition("Traceback:")[2], re.MULTILINE
    )
    return " · ".join([code[int(block[1])], block[2], *(line.strip() for line in told[-1:])])


@contextlib.contextmanager
def busy(core: int | None, loops: int) -> Iterator[None]:
    """Endless loops, all on one processor if it is given, as if the machine had much else to do."""
    pin = f"import os; os.sched_setaffinity(0, {{{core}}})" if core is not None else ""
    code = f"{pin}\nwhile True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


# --- cell by cell ----------------------------------------------------------------------------------

PROBE: Final = '''
def _look(shown, namespace):
    """What there is to see of labs and of the package's widgets, as JSON."""
    import json, re
    from ipywidgets.widgets import widget
    from meetupq import Lab
    from meetupq.timeline import Timeline

    def twins(item):
        text = str(getattr(item, "value", ""))
        found = re.findall(r'class="meetupq-twin">(.*?)</div>', text, re.S)
        return found + [twin for child in getattr(item, "children", ()) for twin in twins(child)]

    widgets = {}
    for ident in shown:
        item = widget._instances.get(ident)
        if item is not None:
            ours = type(item).__module__.startswith("meetupq")
            twin = " ".join(twins(item)).strip()
            # What has no thread, such as a tour, does nothing any more once another one is shown in its place.
            widgets[ident] = {"ours": ours, "ended": getattr(item, "ended", True), "twin": twin}
    labs, kinds, failure = {}, set(), ""
    for name, value in list(namespace.items()):
        if isinstance(value, Lab) and not value.closed and not name.startswith("_"):
            try:
                events = value.history.snapshot()
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                continue
            kinds |= {event.kind for event in events}
            labs[name] = {worker.name: worker.state for worker in Timeline(events).workers.values()}
    return json.dumps({"widgets": widgets, "crews": labs, "kinds": sorted(kinds), "failure": failure})
'''


@dataclass
class Look:
    """What a probe has seen between two cells.

    Attributes:
        widgets: by model id, those of the shown ones that exist: are they the package's, are they over, their twin.
        crews: the workers of each open lab and their states, by the lab's variable.
        kinds: of all events of the open labs.
        failure: what had failed in the background of a lab.
    """

    widgets: dict[str, dict[str, Any]] = field(default_factory=dict)
    crews: dict[str, dict[str, str]] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)
    failure: str = ""


@dataclass
class Outcome:
    """One execution of one cell: how long it took, what it showed, and the error that it ended with, if any."""

    cell: str
    seconds: float = 0.0
    outputs: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""

    @property
    def result(self) -> str:
        """The text of the cell's last value."""
        return next((o["data"].get("text/plain", "") for o in self.outputs if o["kind"] == "execute_result"), "")

    @property
    def printed(self) -> str:
        return "".join(output.get("text", "") for output in self.outputs if output["kind"] == "stream")

    @property
    def widgets(self) -> list[str]:
        """The model ids of the widgets that it showed."""
        views = [output.get("data", {}).get("application/vnd.jupyter.widget-view+json") for output in self.outputs]
        return [view["model_id"] for view in views if view]

    @property
    def shows_picture(self) -> bool:
        return any(name.startswith("image/") for output in self.outputs for name in output.get("data", {}))


class Kernel:
    """A fresh kernel in `folder`, with a blocking client: `with Kernel(folder) as kernel: kernel.run(cell)`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown: list[str] = []
        self._manager = KernelManager(kernel_name="python3")

    def __enter__(self) -> Self:
        self._manager.start_kernel(cwd=str(self.folder), env=environment(self.folder), stderr=subprocess.DEVNULL)
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        try:
            self._client.wait_for_ready(timeout=CELL_LIMIT)
            self._execute("probe", PROBE)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()

    def _execute(self, ident: str, source: str) -> Outcome:
        outcome = Outcome(ident)

        def take(message: dict[str, Any]) -> None:
            kind, content = message["header"]["msg_type"], message["content"]
            if kind in ("stream", "display_data", "execute_result"):
                outcome.outputs.append({"kind": kind, **content})
            elif kind == "error":
                outcome.error = f"{content['ename']}: {content['evalue']}".splitlines()[0]

        started = time.monotonic()
        try:
            self._client.execute_interactive(
                source, timeout=CELL_LIMIT, output_hook=take, allow_stdin=False, stop_on_error=False
            )
        except TimeoutError:
            outcome.error = f"TimeoutError: not done within {CELL_LIMIT:g} s"
            self._manager.interrupt_kernel()
        outcome.seconds = time.monotonic() - started
        return outcome

    def run(self, cell: NotebookNode) -> Outcome:
        """Run a cell to its end. An error that the cell announces by the tag `raises-exception` is none."""
        outcome = self._execute(cell.id, cell.source)
        self.shown += [ident for ident in outcome.widgets if ident not in self.shown]
        if "raises-exception" in cell.metadata.get("tags", []):
            outcome.error = ""
        return outcome

    def look(self) -> Look:
        """What there is to see now."""
        outcome = self._execute("probe", f"print(_look({self.shown!r}, globals()))")
        return Look(**json.loads(outcome.printed)) if outcome.printed else Look(failure=outcome.error)

    def kill_in(self, cell: NotebookNode, after: float) -> None:
        """Start a cell and kill the process so many seconds later: no farewell, no atexit."""
        self._client.execute(cell.source)
        time.sleep(after)
        assert self._manager.provisioner is not None
        os.kill(self._manager.provisioner.pid, signal.SIGKILL)


@dataclass
class Pass:
    """A walk through a notebook: the outcomes in order, the looks that were taken, and what was left after it."""

    outcomes: list[Outcome] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def errors(self) -> list[str]:
        return [f"{outcome.cell} raised {outcome.error}" for outcome in self.outcomes if outcome.error]


def walk(cells: list[NotebookNode], *, look_after: int) -> Pass:
    """Run cells once, in order, in a fresh kernel; look after so many cells and at the end.

    It ends at the first error: what comes after it would mostly repeat it.
    """
    taken = Pass()
    with own_folder() as folder, Kernel(folder) as kernel:
        for number, cell in enumerate(cells, start=1):
            taken.outcomes.append(kernel.run(cell))
            if number == look_after:
                taken.looks.append(kernel.look())
            if taken.outcomes[-1].error:
                break
        taken.looks.append(kernel.look())
        taken.left = left_for_good(folder)
    return taken


def walk_all(cells: list[NotebookNode]) -> Pass:
    """Run cells that don't need each other, whatever becomes of each, and look at nothing else."""
    with own_folder() as folder, Kernel(folder) as kernel:
        return Pass([kernel.run(cell) for cell in cells])


def walk_twice(cells: list[NotebookNode]) -> Pass:
    """Run every cell twice in succession; the looks are before the first cell and after every single execution.

    It ends where a cell fails at the first time.
    """
    taken = Pass()
    with own_folder() as folder, Kernel(folder) as kernel:
        taken.looks.append(kernel.look())
        for cell in cells:
            for _ in range(2):
                taken.outcomes.append(kernel.run(cell))
                taken.looks.append(kernel.look())
            if taken.outcomes[-2].error:
                break
        taken.left = left_for_good(folder)
    return taken


def walk_and_kill(cells: list[NotebookNode], after: float) -> list[str]:
    """Run cells, but kill the kernel in the last one, after so many seconds of it. Returns what is left 5 s later."""
    with own_folder() as folder:
        with Kernel(folder) as kernel:
            for cell in cells[:-1]:
                kernel.run(cell)
            kernel.kill_in(cells[-1], after)
        return left_for_good(folder)
