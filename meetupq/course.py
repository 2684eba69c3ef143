"""`meetupq lab`: where the lessons are, copying them without ever overwriting one, and opening JupyterLab there."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from meetupq.errors import MeetupqError
from meetupq.timing import Timing

PACKAGE: Final = Path(__file__).resolve().parent
JUPYTER_SETTINGS: Final = PACKAGE / "jupyter"
"""A folder for JUPYTER_CONFIG_PATH: all cells stay in the page, and JupyterLab asks nothing and fetches no news."""


def open_lab(folder: str | None, timing: str | None, port: int | None, browser: bool, extra: Sequence[str]) -> int:
    """Become JupyterLab: every signal reaches it, and there is nobody left who could forget it."""
    Timing.chosen(timing)  # a wrong MEETUPQ_TIMING is better told here than in every lesson
    lesson = prepare(folder)
    print(f"opening {lesson}; Ctrl-C ends it", file=sys.stderr)
    command = lab_command(lesson, port=port, browser=browser, extra=extra)
    return os.execve(command[0], command, lab_environment(os.environ, timing))


def prepare(folder: str | None) -> Path:
    """The lesson to open, the first by name: in a source tree where it lies, or else in a copy of all of them. Says on
    stderr what was kept.

    Raises:
        MeetupqError: this installation has no lessons, or the folder can't be written.
    """
    tree = PACKAGE.parent
    ours = (tree / "pyproject.toml").is_file() and any((tree / "notebooks").glob("*.ipynb"))
    source = (tree if ours else PACKAGE) / "notebooks"
    first = min(source.glob("*.ipynb"), default=None)
    if first is None:
        raise MeetupqError(
            "this installation of meetupq has no notebooks: install it again, or run this in a checkout of its source"
        )
    if ours and folder is None:
        return first
    target = Path(folder or "notebooks").expanduser().absolute()
    try:
        kept = copy_lessons(source, target)
    except OSError as error:
        raise MeetupqError(
            f"can't put the notebooks into {target} ({error.strerror or error}): "
            "change to a folder that you may write to, or choose one with --dir"
        ) from error
    if kept:
        print(f"kept as you left them, in {target}: {', '.join(kept)}", file=sys.stderr)
        print("(rename or remove one of them, and the next `meetupq lab` puts the shipped one there)", file=sys.stderr)
    return target / first.name


def copy_lessons(source: Path, target: Path) -> list[str]:
    """Copy the lessons and what belongs to them. Returns the files that were kept as the learner left them: a file
    that exists is never written to."""
    kept = []
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        name = file.relative_to(source)
        goal = target / name
        if any(part.startswith((".", "__")) for part in name.parts):
            continue  # .ipynb_checkpoints, __pycache__
        if os.path.lexists(goal):
            if not (goal.is_file() and goal.read_bytes() == file.read_bytes()):
                kept.append(str(name))
            continue
        goal.parent.mkdir(parents=True, exist_ok=True)
        # In one step, so that an interrupt leaves no half lesson that would be "kept" from then on.
        part = goal.with_name(f".{goal.name}.part")
        try:
            part.write_bytes(file.read_bytes())
            part.rename(goal)
        finally:
            part.unlink(missing_ok=True)
    return kept


def lab_command(lesson: Path, *, port: int | None = None, browser: bool = True, extra: Sequence[str] = ()) -> list[str]:
    """The command line that opens JupyterLab of this very environment at a lesson."""
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={lesson.parent}"]
    command += [f"--LabApp.default_url=/lab/tree/{lesson.name}", "--LabApp.news_url="]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    command += ["-y"]  # Ctrl-C ends it at once; the notebooks are saved as one works
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"] if port else []
    command += [] if browser else ["--no-browser"]
    command += ["--allow-root"] if os.geteuid() == 0 else []
    return [*command, *extra]


def lab_environment(environment: Mapping[str, str], timing: str | None = None) -> dict[str, str]:
    """The environment for JupyterLab. Our settings come as defaults; whatever the user has set still wins."""
    paths = [str(JUPYTER_SETTINGS), environment.get("JUPYTER_CONFIG_PATH", "")]
    ours = {"JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, paths))}
    return {**environment, **ours, **({"MEETUPQ_TIMING": timing} if timing else {})}
