"""Run the notebooks and store what readers and nbval need: counts and outputs of the check cells, nothing else.

python tests/notebooks/refresh.py [NAME.ipynb ...]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def refresh(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    started = time.monotonic()
    NotebookClient(
        notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        if "check" in cell.metadata.get("tags", []):
            print(f"  {cell.outputs[0]['data']['text/plain']}")
        else:
            cell.execution_count, cell.outputs = None, []
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)
    print(f"{path.name}: {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    os.environ["MEETUPQ_TIMING"] = "ci"
    for name in sys.argv[1:] or sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")):
        refresh(NOTEBOOKS / name)
