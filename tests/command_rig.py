"""The command `meetupq` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def in_new_process(*words: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """`meetupq WORDS` in a process and a temp folder of its own, which is `cwd/tmp`."""
    (cwd / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "meetupq.cli", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(cwd / "tmp"), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
