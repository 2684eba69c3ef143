"""A small lesson that has every point of the rubric, to show that each of them can be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from meetupq.checks import Verdict

NOTES = {"slideshow": {"slide_type": "notes"}, "jupyter": {"source_hidden": True}}


def _text(ident: str, tags: str, source: str, **metadata: Any) -> NotebookNode:
    return new_markdown_cell(source.strip(), id=ident, metadata={"tags": tags.split(), **metadata})


def _note(ident: str, minutes: float, say: str) -> NotebookNode:
    note = f'**Speaker, {minutes:g} min.** Say: "{say}" If it goes wrong: run the first cell again.'
    return _text(ident, "notes", note, **NOTES)


def _code(ident: str, tags: str, source: str, **metadata: Any) -> NotebookNode:
    return new_code_cell(source.strip(), id=ident, metadata={"tags": tags.split(), **metadata})


def _check(ident: str, source: str, verdict: str) -> NotebookNode:
    status, _, sentence = verdict.partition(": ")
    shown = Verdict(status, sentence)._repr_html_() if status in ("HELD", "NOT YET", "BROKEN") else verdict  # type: ignore[arg-type]
    stored = new_output("execute_result", data={"text/plain": verdict, "text/html": shown}, execution_count=1)
    cell = _code(ident, "check", source, jupyter={"outputs_hidden": True})
    cell.execution_count, cell.outputs = 1, [stored]
    return cell


def model_lesson() -> NotebookNode:
    """A new copy, to be spoiled at will."""
    once = "HELD: 2 jobs, 2 deliveries, 2 acks: each job went to one worker only"
    retried = (
        "HELD: video-1 took 2 attempts: attempt 2 began only after the patience with attempt 1, with another worker"
    )
    nobody = "NOT YET: some of these jobs were not delivered to anybody so far"
    done = "HELD: 1 job, 1 delivery, 1 ack: each job went to one worker only"
    cells = [
        _text(
            "intro",
            "intro",
            """
# 00 · A model

After this lesson you can

1. **show** that each job goes to one worker,
2. **predict** when a job starts again.

Minutes: 4

Needs: a little Python.

Works offline.
""",
        ),
        _text("words", "words", "| word | NATS thing | example |\n|--|--|--|\n| job | a message | `resize-1` |"),
        _code(
            "setup",
            "setup",
            """
import meetupq
from meetupq import checks

lab = meetupq.Lab()
lab.queue_panel()
""",
        ),
        _code(
            "win",
            "",
            """
lab.launch("ada", "bo", "cy")
lab.publish("hello-1")
await lab.until("acked", job="hello-1")
""",
        ),
        _text(
            "predict-1",
            "predict",
            "## 1 · Jobs\n\n**Many believe:** every worker gets every job.\n\nAnd you?\n\n- **a** one\n- **b** all",
        ),
        _note("notes-1", 1, "Raise your hands."),
        _code(
            "run-1",
            "run",
            """
lab.publish("resize-1", "resize-2")
for job in ("resize-1", "resize-2"):
    await lab.until("acked", job=job)
""",
        ),
        _check("check-1", 'checks.delivered_once(lab.history, "resize-1", "resize-2")', once),
        _text(
            "explain-1",
            "explain",
            "**a.** They compete: two jobs, 2 deliveries.",
            meetupq={"asserted_by": ["check:check-1"]},
        ),
        _text(
            "predict-2",
            "predict",
            "## 2 · A death\n\n**Many believe:** the broker sees it.\n\nWhen does it go on?\n\n- **a** at once\n"
            "- **b** after the patience\n\nPress **Kill** on a card, or run the next cell.",
        ),
        _note("notes-2", 1.5, "Watch the bar."),
        _code(
            "run-2",
            "run",
            """
lab.publish("video-1", kind="video", seconds=2 * lab.timing.effective_ack_wait)
holder = (await lab.until("delivered", job="video-1")).worker
lab.kill(holder)
await lab.until("delivered", job="video-1", count=2)
""",
        ),
        _check("check-2", 'checks.retried_elsewhere(lab.history, "video-1")', retried),
        _text(
            "explain-2",
            "explain",
            "**b.** It waits, as in lesson 07.",
            meetupq={
                "asserted_by": [
                    "check:check-2",
                    "tests/notebooks/test_rubric.py::test_the_model_lesson_has_every_point",
                ],
                "not_figures": ["lesson 07"],
            },
        ),
        _text("change-text", "", "## Change one number\n\nTry another name."),
        _code("change", "change", 'lab.publish("report-1")\nawait lab.until("acked", job="report-1")'),
        _check("check-0", 'checks.delivered_once(lab.history, "report-1")', done),
        _text("your-turn", "", "## Your turn\n\nGet `calc-1` done."),
        _note("notes-3", 1.5, "Your turn."),
        _code("exercise", "exercise", "# your line here"),
        _check("check-3", 'checks.delivered_once(lab.history, "calc-1")', nobody),
        _code(
            "solution",
            "solution",
            'lab.publish("calc-1")\nawait lab.until("acked", job="calc-1")',
            jupyter={"source_hidden": True},
        ),
        _check("check-4", 'checks.delivered_once(lab.history, "calc-1")', done),
        _text(
            "remember",
            "remember",
            "## What to remember\n\n- A job goes to one worker.",
            meetupq={"asserted_by": ["check:check-1"]},
        ),
        _code("close", "close", "lab.close()"),
    ]
    kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernelspec, "language_info": {"name": "python"}})


def write(notebook: NotebookNode, folder: Path) -> Path:
    """Store it as `model.ipynb`."""
    path = folder / "model.ipynb"
    nbformat.write(notebook, path)
    return path
