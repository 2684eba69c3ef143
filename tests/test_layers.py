"""The layers: what each module imports, read from its source and compared with the table of the design."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import meetupq

ROWS = [
    {"errors", "guard", "tasks"},
    {"history", "timing", "subjects"},
    {"timeline", "forecast"},
    {"broker", "buckets", "palette", "wire", "processes"},
    {"work_queue", "leases", "ink"},
    {"dead_letters", "work_items", "observer", "ledger", "witness", "canvas"},
    {"roster", "takeovers", "summary", "figures", "twins"},
    {"workers", "trials", "view"},
    {"hiring", "checks"},
    {"crew", "worker_process"},
    {"stage", "panels", "letters", "tour", "cloud", "sliders"},
    {"lab", "scenarios"},
    {"course", "doctor", "demo"},
    {"cli", "__init__"},
]
ROW = {module: number for number, row in enumerate(ROWS) for module in row}

SPEAKS_NATS = {
    "broker", "buckets", "work_queue", "leases", "work_items", "dead_letters", "roster", "workers", "witness",
    "summary", "observer", "takeovers", "trials", "ledger", "hiring", "crew", "stage", "lab",
}  # fmt: skip
STARTS_PROCESSES = {"broker", "guard", "processes"}
SHOWS_WIDGETS = {"view", "sliders", "panels", "letters", "tour", "lab", "__init__"}

PACKAGE = Path(meetupq.__file__).parent
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py"))


def imports(module: str) -> set[str]:
    """Everything that a module imports anywhere in it, in a function or for types only as well: "nats.errors", ..."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports by dots: write the full name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_imports(module: str) -> set[str]:
    return {name.split(".")[1] for name in imports(module) if name.startswith("meetupq.")}


def foreign_imports(module: str) -> set[str]:
    return {name.partition(".")[0] for name in imports(module)}


def test_every_module_has_a_row() -> None:
    assert set(MODULES) <= set(ROW)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_higher_rows(module: str) -> None:
    """Which also rules out circles."""
    too_low = {name for name in own_imports(module) if ROW[name] >= ROW[module]}
    assert not too_low, f"{module} (row {ROW[module]}) imports {', '.join(sorted(too_low))}"


def test_nobody_imports_the_front_door() -> None:
    assert [module for module in MODULES if "meetupq" in imports(module)] == []


def test_only_named_modules_speak_nats() -> None:
    assert {module for module in MODULES if "nats" in foreign_imports(module)} <= SPEAKS_NATS


def test_only_named_modules_start_processes() -> None:
    starters = {"subprocess", "multiprocessing", "pty"}
    starting = {module for module in MODULES if foreign_imports(module) & starters}
    starting |= {module for module in MODULES if "ProcessPool" in (PACKAGE / f"{module}.py").read_text()}
    assert starting <= STARTS_PROCESSES


def test_figures_never_import_pyplot() -> None:
    """pyplot keeps every figure alive, and is not made for threads."""
    for module in MODULES:
        assert not {name for name in imports(module) if name.startswith(("matplotlib.pyplot", "pylab"))}


def test_only_the_panels_side_knows_of_widgets() -> None:
    widgets = {"ipywidgets", "IPython", "ipykernel", "jupyterlab", "jupyter_server", "traitlets"}
    assert {module for module in MODULES if foreign_imports(module) & widgets} <= SHOWS_WIDGETS


@pytest.mark.parametrize("module", ["stage", "figures", "checks"])
def test_plain_asyncio_needs_no_jupyter(module: str) -> None:
    """Measured in a fresh interpreter; `meetupq/__init__.py` is kept from running, since it opens every door."""
    script = (
        "import sys, types\n"
        "package = types.ModuleType('meetupq')\n"
        f"package.__path__ = [{str(PACKAGE)!r}]\n"
        "sys.modules['meetupq'] = package\n"
        f"import meetupq.{module}\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, 'matplotlib.pyplot' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    loaded = set(done.stdout.split())
    assert "meetupq" in loaded, done.stderr
    assert not loaded & {"ipywidgets", "IPython", "ipykernel", "True"}


def test_the_guard_stands_alone() -> None:
    """It runs as a script with `-I -S`: the standard library is all there is."""
    assert not own_imports("guard")
    assert foreign_imports("guard") <= set(sys.stdlib_module_names)
