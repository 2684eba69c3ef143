"""The pictures and their text twins: what they show is what the timeline says, and nothing covers anything else."""

from __future__ import annotations

import ast
import io
import itertools
import random
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from meetupq import canvas, figures, ink, twins
from meetupq.canvas import window
from meetupq.figures import DeliveryPicture, LeasePicture, delivery_attempts, lease_ownership
from meetupq.history import Event, History
from meetupq.ink import encode
from meetupq.palette import (
    JOB_STATE_COLOURS,
    JOB_STATE_MARKS,
    MARKS,
    OKABE_ITO,
    WORKER_MARKS,
    worker_colour,
)
from meetupq.timeline import JOB_STATES, JobLine, Timeline
from meetupq.twins import describe_deliveries, describe_leases

ENDS = ("acked", "naked", "failed", "killed", "timed_out", "terminated")


def history() -> History:
    return History(clock=lambda: 0.0)


def deliver(h: History, job: str, worker: str, attempt: int, at: float, patience: float = 3.0) -> None:
    h.append("delivered", job, worker, at=at, attempt=attempt, until=at + patience if patience else 0.0)


def ordinary() -> History:
    """One job done, one whose worker is killed, one that dies after three deliveries, one at work, one waiting."""
    h = history()
    for name in ("ada", "bo", "cy"):
        h.append("started", worker=name, at=0.1, detail="queue")
    for job in ("resize-1", "resize-2", "poison-1"):
        h.append("published", job, at=0.4)
    deliver(h, "resize-1", "ada", 1, 0.5)
    deliver(h, "resize-2", "bo", 1, 1.0, 5)
    h.append("killed", worker="bo", at=2.8)
    h.append("acked", "resize-1", "ada", attempt=1, at=3.5)
    for attempt, at in ((1, 3.6), (2, 4.6), (3, 12.9)):
        if attempt == 3:
            h.append("timed_out", "resize-2", "bo", attempt=1, at=6.0, source="inferred")
            deliver(h, "resize-2", "cy", 2, 6.0, 5)
            h.append("acked", "resize-2", "cy", attempt=2, at=9.0)
        deliver(h, "poison-1", "ada", attempt, at)
        h.append("naked", "poison-1", "ada", attempt=attempt, at=at + 0.6)
    h.append("exhausted", "poison-1", at=13.7, source="broker")
    h.append("dead_lettered", "poison-1", attempt=3, at=13.75, detail="ValueError")
    h.append("published", "resize-3", at=14.2)
    deliver(h, "resize-3", "ada", 1, 14.3)
    h.append("published", "resize-4", at=14.9)
    return h


def each_end() -> History:
    """Six jobs, each of which ends in another way."""
    h = history()
    for index, how in enumerate(ENDS):
        h.append("published", how, at=0.1)
        deliver(h, how, f"w{index}", 1, 0.5 + index / 10, 2)
    for index, how in enumerate(ENDS):
        job = {} if how == "killed" else {"job": how, "attempt": 1}
        h.append(how, worker=f"w{index}", at=2.0 + index / 10, **job)  # type: ignore[arg-type]
    return h


def in_order(h: History) -> History:
    """The same history, each event at its place."""
    ordered = history()
    for event in sorted(h, key=lambda event: event.at):
        ordered.append(**asdict(event))
    return ordered


def prefetched(*, killed: bool = False) -> History:
    """Ada pulls four jobs at once, each of which takes 2 s; the patience is 5 s, and bo takes one at a time."""
    h = history()
    for worker, prefetch in (("ada", 4), ("bo", 1)):
        h.append("started", worker=worker, at=0.1, detail=f"queue high, heartbeats on, prefetch {prefetch}")
    for number in range(1, 6):
        h.append("published", f"resize-{number}", at=0.3)
        deliver(h, f"resize-{number}", "ada" if number < 5 else "bo", 1, 0.5, 5)
    for number, begun in ((1, 0.5), (2, 2.5), (3, 4.5), (4, 6.5)):
        job = f"resize-{number}"
        h.append("begun", job, "ada", attempt=1, at=begun)
        if killed and number == 2:
            h.append("killed", worker="ada", at=3.5)
            break
        if begun + 2 > 5.5:
            h.append("timed_out", job, "ada", attempt=1, at=5.5)
            deliver(h, job, "bo", 2, 5.6, 5)
        h.append("acked", job, "ada", attempt=1, at=begun + 2)
    return in_order(h)


def escalated(*, gap: float = 0.01, naks: bool = False, jobs: int = 1) -> History:
    """Jobs that ada fails at three times, and that zoe, on the slower consumer, then gets as attempt 1 and does."""
    h = history()
    for job, at in ((f"stats-{number + 1}", 0.4 * number) for number in range(jobs)):
        h.append("published", job, at=at + 0.2, detail="jobs.high.stats")
        for attempt, start in ((1, at + 0.5), (2, at + 2.5), (3, at + 4.5)):
            deliver(h, job, "ada", attempt, start, 2)
            h.append("naked" if naks else "failed", job, "ada", attempt=attempt, at=start + 0.6)
            if not naks:
                h.append("timed_out", job, "ada", attempt=attempt, at=start + 2)
        moved = at + (5.12 if naks else 6.52)
        h.append("exhausted", job, attempt=3, at=moved - 0.01, source="broker")
        h.append("escalated", job, "ada", attempt=3, at=moved, detail="jobs.low.stats", source="broker")
        deliver(h, job, "zoe", 1, moved + gap, 8)
        h.append("acked", job, "zoe", attempt=1, at=moved + gap + 3)
    return in_order(h)


def rejected() -> History:
    """One job copied to the dead letters and then terminated, one terminated without a copy."""
    h = history()
    for job, worker, end in (("bad-1", "ada", 2.0), ("bad-2", "bo", 2.2)):
        h.append("published", job, at=0.2)
        deliver(h, job, worker, 1, 0.5)
        if job == "bad-1":
            h.append("dead_lettered", job, worker, attempt=1, at=end - 0.002, detail="no worker can do this")
        h.append("terminated", job, worker, attempt=1, at=end)
    return h


def zombies() -> History:
    """Three workers without heartbeats at one slow job: all are given up, then ada acks all the same, then bo."""
    h = history()
    h.append("published", "slow-1", at=0.2)
    for attempt, (worker, at) in enumerate((("ada", 0.3), ("bo", 1.8), ("cy", 3.3)), start=1):
        h.append("started", worker=worker, at=0.1, detail="queue high, heartbeats off, prefetch 1")
        deliver(h, "slow-1", worker, attempt, at, 1.5)
        h.append("timed_out", "slow-1", worker, attempt=attempt, at=at + 1.5)
    h.append("exhausted", "slow-1", attempt=3, at=4.81, source="broker")
    h.append("acked", "slow-1", "ada", attempt=1, at=6.3)
    h.append("late_success", "slow-1", at=6.32, source="inferred")
    h.append("acked", "slow-1", "bo", attempt=2, at=7.8)
    return in_order(h)


def traffic(jobs: int, seed: int = 7, workers: int = 10, rate: float = 3.0) -> History:
    rnd, h, events = random.Random(seed), history(), []
    for index in range(jobs):
        job, at = f"job-{index:04d}", index / rate
        events.append((at, "published", job, "", 0, 0.0))
        for attempt in range(1, rnd.choice((2, 2, 2, 3, 4))):
            worker, at = f"worker-{rnd.randrange(workers)}", at + 0.1
            end = at + rnd.uniform(0, 2)
            events.append((at, "delivered", job, worker, attempt, at + 3))
            how = rnd.choice(("acked", "acked", "naked", "failed"))
            events.append((end, how, job, worker, attempt, 0.0))
            if how == "acked":
                break
            at = end if how == "naked" else at + 3
    for at, kind, job, worker, attempt, until in sorted(events):
        h.append(kind, job, worker, at=at, attempt=attempt, until=until)
    return h


def reclaim(after: float = 0.1, cause: str = "killed") -> History:
    h = history()
    h.append("added", "import-eu", at=0.3)
    h.append("claimed", "import-eu", "ada", at=0.6, revision=1, until=4.6)
    for second in (1, 2, 3):
        h.append("renewed", "import-eu", "ada", at=0.6 + second, revision=1, until=4.6 + second)
    h.append(cause, worker="ada", at=4.0)
    h.append("expired", "import-eu", at=7.7, revision=1)
    h.append("reclaimed", "import-eu", "cy", at=7.7 + after, revision=27, until=11.7 + after)
    return h


def zombie() -> History:
    """Ada, a process, is frozen with 40 % done; bo reclaims the work; ada is thawed and writes a stale step.

    Cy is cut off and gives up in time; dan's work is cancelled; eve is frozen so shortly that she loses nothing.
    """
    h = history()
    hired = {"ada": "leases, process", "bo": "leases, 2 slots", "cy": "leases", "dan": "leases by observe, process"}
    for worker, job in {**hired, "eve": "leases, process"}.items():
        h.append("started", worker=worker, at=0.1, detail=job)
    owners = (("import-eu", "ada"), ("import-us", "cy"), ("cleanup", "dan"), ("reindex", "eve"))
    for token, (item, worker) in enumerate(owners, start=1):
        h.append("added", item, at=0.3)
        h.append("claimed", item, worker, at=0.5 + token / 10, revision=token, until=4.5 + token / 10)
        for second in range(1, 19 if worker == "eve" else 6 if worker in ("ada", "dan") else 5):
            if worker != "eve" or not 5 < second < 8:
                facts = {"revision": token, "until": 4.5 + token / 10 + second}
                h.append("renewed", item, worker, at=0.5 + token / 10 + second, **facts)  # type: ignore[arg-type]
    for step in range(1, 5):
        h.append("checkpointed", "import-eu", "ada", at=1.25 * step, revision=1, detail=f"{step} of 10 steps")
        h.append("written", "import-eu", "ada", at=1.25 * step + 0.02, revision=1, attempt=step, detail="step")
    for step in range(1, 4):
        h.append("checkpointed", "import-us", "cy", at=1.5 * step, revision=2, detail=f"{step} of 5 steps")
    h.append("cut", worker="cy", at=5.0)
    h.append("frozen", worker="eve", at=5.4)
    h.append("frozen", worker="ada", at=6.0)
    h.append("cancelled", "cleanup", at=6.4)
    h.append("released", "cleanup", "dan", at=6.7, revision=3)
    h.append("thawed", worker="eve", at=8.1)
    h.append("lost", "import-us", "cy", at=8.2, revision=2, detail="no renewal was confirmed in time")
    h.append("expired", "import-us", "cy", at=8.7, revision=2, source="broker")
    h.append("reclaimed", "import-us", "dan", at=9.0, revision=20, until=13.0)
    h.append("expired", "import-eu", "ada", at=9.7, revision=1, source="broker")
    h.append("reclaimed", "import-eu", "bo", at=10.0, revision=27, until=20.0)
    for step in range(5, 8):
        h.append("written", "import-eu", "bo", at=6.0 + step, revision=27, attempt=step, detail="step")
        h.append("checkpointed", "import-eu", "bo", at=6.0 + step, revision=27, detail=f"{step} of 10 steps")
    h.append("restored", worker="cy", at=11.5)
    h.append("finished", "import-us", "dan", at=12.0, revision=20, detail="5 of 5 steps")
    h.append("thawed", worker="ada", at=14.0)
    h.append("written", "import-eu", "ada", at=14.2, revision=1, attempt=5, detail="stale: token 27 wrote before")
    h.append("fenced", "import-eu", "ada", at=14.21, revision=1, attempt=5, detail="token 1 is older than 27")
    h.append("lost", "import-eu", "ada", at=14.6, revision=1, detail="somebody else holds it now")
    h.append("lobbied", worker="ada", at=15.0)
    return in_order(h)


def lease_traffic(items: int, seed: int = 3, workers: int = 8, until: float = 40.0) -> History:
    """Owners that are frozen, cut off, killed, thawed, and write what they may not, at random."""
    rnd, h, token = random.Random(seed), history(), 0
    for index in range(workers):
        h.append("started", worker=f"worker-{index}", at=0.05, detail="leases, process")
    for index in range(items):
        item, at, steps = f"import-{index:03d}", rnd.uniform(0.1, 4), 0
        h.append("added", item, at=at)
        while at < until:
            token, worker = token + 1, f"worker-{rnd.randrange(workers)}"
            h.append(rnd.choice(("claimed", "reclaimed")), item, worker, at=at, revision=token, until=at + 4)
            end = at + rnd.uniform(0.2, 9)
            while (at := at + 1) < end:
                steps += 1
                h.append("renewed", item, worker, at=at, revision=token, until=at + 4)
                h.append("checkpointed", item, worker, at=at, revision=token, detail=f"{steps} of 90 steps")
                h.append("written", item, worker, at=at, revision=token, attempt=steps, detail="step")
            how = rnd.choice(("frozen", "cut", "killed", "released", "finished", "cancelled"))
            if how in ("released", "finished"):
                h.append(how, item, worker, at=end, revision=token)
            elif how == "cancelled":
                h.append(how, item, at=end)
                h.append("released", item, worker, at=end + 0.3, revision=token)
            else:
                h.append(how, worker=worker, at=end)
                back = {"frozen": "thawed", "cut": "restored", "killed": "started"}[how]
                late = end + rnd.uniform(0.5, 12)
                h.append(back, worker=worker, at=late, detail="leases, process" * (how == "killed"))
                h.append("expired", item, worker, at=end + 3.5, revision=token, source="broker")
                if how == "frozen" and rnd.random() < 0.7:
                    write = {"revision": token, "attempt": steps + 1, "at": late + 0.1}
                    h.append("written", item, worker, detail="stale", **write)  # type: ignore[arg-type]
                    h.append("fenced", item, worker, detail="older", **write)  # type: ignore[arg-type]
                if how != "killed":
                    h.append("lost", item, worker, at=late + rnd.uniform(0.2, 2), revision=token)
                end += 3.5
            if how in ("finished", "cancelled"):
                break
            at = end + rnd.choice((0.002, 0.3, 3.0))
    return in_order(h)


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def drawn(cls: type[DeliveryPicture] | type[LeasePicture], h: Iterable[Event], now: float, **size: float):  # type: ignore[no-untyped-def]
    picture = cls(**size)  # type: ignore[arg-type]
    picture.update(Timeline(e for e in h if e.at <= now), now)
    picture.png()
    return picture


def marks(picture: DeliveryPicture | LeasePicture, kind: str) -> list[tuple[float, float]]:
    return list(zip(*picture._ink.points.get(("mark", kind), ([], [])), strict=True))


def strokes(picture: DeliveryPicture | LeasePicture, kind: str) -> list[tuple[float, float, float]]:
    """All strokes of a kind, whatever the colour: from x, to x, at y."""
    found = []
    for (stroke, _), (xs, ys) in picture._ink.points.items():
        if stroke == kind:
            found += list(zip(xs[::3], xs[1::3], ys[::3], strict=True))
    return sorted(found)


def texts(picture: DeliveryPicture | LeasePicture) -> list[str]:
    return [label.words for label in picture._ink.labels]


def boxes(picture: DeliveryPicture | LeasePicture) -> list[tuple[str, float, float, float, float]]:
    """The text of every label and its real extents in CSS pixels, from the renderer."""
    found = []
    fixed = [text for text in picture._fixed if isinstance(text, Text)]
    moving = [picture.sheet.text(label) for label in picture._ink.labels]
    for text in [*fixed, *moving]:
        box = text.get_window_extent()
        ratio, height = picture.sheet.ratio, picture.height
        found.append(
            (text.get_text(), box.x0 / ratio, height - box.y1 / ratio, box.x1 / ratio, height - box.y0 / ratio)
        )
    for text in moving:
        text.remove()
    return found


def assert_nothing_overlaps(picture: DeliveryPicture | LeasePicture) -> None:
    """No label over another one, over the "now" line, over an end mark, or out of the picture."""
    found = boxes(picture)
    for one, other in itertools.combinations(found, 2):
        apart = one[3] <= other[1] + 1 or other[3] <= one[1] + 1 or one[4] <= other[2] + 3 or other[4] <= one[2] + 3
        assert apart, f"{one} lies over {other}"
    now = picture._x(picture._now)
    for words, left, top, right, bottom in found:
        assert left >= 0 and right <= picture.width + 1 and top >= 0 and bottom <= picture.height + 1, words
        if top > picture._top and bottom < picture._bottom and words != "now":
            assert not left < now - 1 < now + 1 < right, f"{words!r} crosses the now line"
        for x0, x1, y in strokes(picture, "bar"):
            if top < y < bottom:
                inside = x0 - 1 <= left and right <= x1 + 1
                assert inside or right <= x0 + 1 or x1 - 1 <= left, f"{words!r} lies partly over the bar at {x0:.0f}"
        for x0, x1, y in [*strokes(picture, "strip"), *strokes(picture, "faint")]:
            if top < y < bottom and y - top > 3:
                inside = x0 - 1 <= left and right <= x1 + 1
                assert inside or right <= x0 + 1 or x1 - 1 <= left, f"{words!r} lies partly over the strip at {x0:.0f}"
        for kind in MARKS:
            for x, y in marks(picture, kind):
                covered = left < x + 4 and x - 4 < right and top < y + 3 and y - 3 < bottom
                assert not covered, f"{words!r} lies over the mark {kind} at {x:.0f}, {y:.0f}"


# --- colours and marks


def contrast(one: str, other: str) -> float:
    """By the formula of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_text_on_every_worker_colour_can_be_read() -> None:
    timeline = Timeline(traffic(200, workers=25))
    for name in timeline.workers:
        colour = worker_colour(timeline, name)
        assert contrast(colour, canvas.text_on(colour)) >= 4, (name, colour)
    for colour in JOB_STATE_COLOURS.values():
        assert contrast(colour, "#FFFFFF") >= 4.5
    for colour in OKABE_ITO:
        assert contrast(colour, "#FFFFFF") >= 1.9 and contrast(colour, "#1F2328") >= 1.9


def test_a_worker_keeps_its_colour_and_the_first_21_differ() -> None:
    h = history()
    for index in range(21):
        h.append("started", worker=f"w{index}", at=index)
    early, late = Timeline(h.snapshot()[:3]), Timeline(h)
    assert [worker_colour(early, f"w{i}") for i in range(3)] == [worker_colour(late, f"w{i}") for i in range(3)]
    assert len({worker_colour(late, f"w{i}") for i in range(21)}) == 21
    assert worker_colour(late, "nobody") in OKABE_ITO


def test_every_way_to_end_has_its_own_shape_and_colour() -> None:
    kinds = (*ENDS, "stuck", "dead", "escalated")
    assert len({MARKS[kind][0] for kind in kinds}) == len({MARKS[kind][1] for kind in kinds}) == len(kinds)
    of_leases = [*MARKS][[*MARKS].index("free") :]
    assert len({MARKS[kind][0] for kind in [*of_leases, "killed"]}) == len(of_leases) + 1
    assert MARKS["stale"][1] != MARKS["refused"][1]
    assert set(JOB_STATE_MARKS) == set(JOB_STATE_COLOURS) == set(JOB_STATES)
    assert len(set(JOB_STATE_MARKS.values())) == len(JOB_STATES)
    assert len(set(WORKER_MARKS.values())) == len(WORKER_MARKS)


def test_every_glyph_is_in_the_font() -> None:
    glyphs = [glyph for glyph, _, _ in MARKS.values() if glyph not in ink.SHAPES]
    for glyph in [*glyphs, *JOB_STATE_MARKS.values(), *WORKER_MARKS.values(), "·", "…"]:
        assert canvas.plain(glyph) == glyph
    assert canvas.plain("a日b\n c") == "a\ufffdb c"


# --- what the delivery picture shows


def test_each_end_is_marked_in_the_row_of_its_job() -> None:
    picture = drawn(DeliveryPicture, each_end(), 3.0)
    for index, how in enumerate(ENDS):
        ((x, y),) = marks(picture, how)
        assert y == picture._ys[index], how
        end = 2.0 + index / 10 if how != "timed_out" else 2.4
        assert 0 < x - picture._x(end) < 15, how


def test_bars_and_tails_are_where_the_timeline_says() -> None:
    h, now = ordinary(), 15.0
    picture, timeline = drawn(DeliveryPicture, h, now), Timeline(h)
    expected = []
    for job, y in zip(timeline.jobs.values(), picture._ys, strict=False):
        expected += [(picture._x(a.start), picture._x(a.end if a.end is not None else now), y) for a in job.attempts]
    assert strokes(picture, "bar") == pytest.approx(np.array(sorted(expected)))
    ((left, right, y),) = strokes(picture, "tail")
    assert (left, right, y) == pytest.approx((picture._x(2.8), picture._x(6.0), picture._ys[1]))
    assert {words for words in texts(picture) if "ada" in words} >= {"1  ada"}
    # The broker's patience with the attempt under way reaches into the future, right of "now".
    assert strokes(picture, "patience")[0][:2] == pytest.approx((picture._x(now), picture._x(17.3)))


def test_a_dead_job_lands_in_the_dlq_with_its_deliveries() -> None:
    picture = drawn(DeliveryPicture, ordinary(), 16.6)
    assert marks(picture, "dead") == [(picture._x(13.75), picture._ys[-1])]
    assert "poison-1 after 3 deliveries" in texts(picture)
    assert [t.get_text() for t in picture._fixed if isinstance(t, Text)].count("DLQ") == 1
    assert not drawn(DeliveryPicture, ordinary(), 10.0)._dlq


def test_a_stuck_job_says_that_it_is_still_in_the_queue() -> None:
    h = history()
    h.append("published", "job", at=0.1)
    deliver(h, "job", "ada", 1, 0.2, 1)
    h.append("timed_out", "job", "ada", attempt=1, at=1.2)
    h.append("exhausted", "job", at=1.3, source="broker")
    picture = drawn(DeliveryPicture, h, 8.0)
    assert len(marks(picture, "stuck")) == 1 and "exhausted, still in the queue" in texts(picture)
    assert not marks(picture, "dead")
    assert "stuck" in describe_deliveries(h)


def test_a_redriven_job_starts_again_in_its_row() -> None:
    h = ordinary()
    h.append("redriven", "poison-1", at=15.0)
    deliver(h, "poison-1", "cy", 1, 15.2)
    h.append("acked", "poison-1", "cy", attempt=1, at=16.5)
    picture = drawn(DeliveryPicture, h, 24.0)
    assert marks(picture, "redriven") == [(picture._x(15.0), picture._ys[-1])]
    assert marks(picture, "dead") == [(picture._x(13.75), picture._ys[-1])], "its death stays to be seen"
    assert any(y == picture._ys[2] and x0 == picture._x(15.2) for x0, _, y in strokes(picture, "bar"))
    assert "redriven at 15.0 s" in describe_deliveries(h)


def test_every_death_has_its_diamond() -> None:
    h = ordinary()
    h.append("redriven", "poison-1", at=15.0)
    deliver(h, "poison-1", "cy", 1, 15.2)
    h.append("naked", "poison-1", "cy", attempt=1, at=16.0)
    h.append("dead_lettered", "poison-1", attempt=1, at=19.5)
    picture = drawn(DeliveryPicture, h, 30.0)
    assert [x for x, _ in marks(picture, "dead")] == [picture._x(19.5), picture._x(13.75)]
    assert [x for x, _ in marks(picture, "redriven")] == [picture._x(15.0)]
    assert "poison-1 after 1 delivery" in texts(picture)
    assert_nothing_overlaps(picture)


def test_work_after_the_broker_gave_up_is_drawn_below_the_bar_of_the_next_attempt() -> None:
    h = history()
    h.append("published", "job", at=0.1)
    deliver(h, "job", "ada", 1, 0.5, 2)
    h.append("timed_out", "job", "ada", attempt=1, at=2.5)
    deliver(h, "job", "bo", 2, 2.6, 3)
    h.append("acked", "job", "ada", attempt=1, at=4.0)
    picture = drawn(DeliveryPicture, h, 5.0)
    ((x0, x1, y),) = strokes(picture, "late")
    assert (x0, x1) == pytest.approx((picture._x(2.5), picture._x(4.0))) and y > picture._ys[0]
    assert marks(picture, "timed_out") and marks(picture, "acked")


def test_each_worker_that_was_given_up_has_a_strip_and_the_ack_that_counts_is_named() -> None:
    picture = drawn(DeliveryPicture, zombies(), 5.5)
    strips = strokes(picture, "late")
    assert [strip[:2] for strip in strips] == [(picture._x(at), picture._x(5.5)) for at in (1.8, 3.3, 4.8)], "all go on"
    assert len({y for _, _, y in strips}) == 3, "none hides another one"
    for others in (5, 6, 9):
        dense = drawn(DeliveryPicture, [*traffic(others, rate=9), *zombies()], 5.5)
        words_below = dense._ys[-1] + dense._pitch - dense._bar / 2 - max(dense._lane - 2, 0)
        assert all(y + 1.5 <= words_below for *_, y in strokes(dense, "late") if y > dense._ys[-1]), others
    picture = drawn(DeliveryPicture, zombies(), 7.2)
    assert strokes(picture, "late")[0][:2] == (picture._x(1.8), picture._x(6.3))
    assert len(marks(picture, "acked")) == 1 and "ada's late ack counts" in texts(picture)
    assert not marks(picture, "stuck")
    picture = drawn(DeliveryPicture, zombies(), 30.0)
    assert len(marks(picture, "acked")) == 2, "bo's ack is to be seen too"
    assert [words for words in texts(picture) if "late" in words and "bo" in words] == []


def test_a_job_in_hand_is_a_dotted_box_until_the_work_begins() -> None:
    picture = drawn(DeliveryPicture, prefetched(), 3.5)
    start, begun, now = (picture._x(at) for at in (0.5, 2.5, 3.5))
    paper = {y: (x0, x1) for x0, x1, y in strokes(picture, "paper")}
    assert paper == {picture._ys[1]: (start, begun), picture._ys[2]: (start, now), picture._ys[3]: (start, now)}
    bars = {y: (x0, x1) for x0, x1, y in strokes(picture, "bar")}
    assert bars[picture._ys[1]] == (begun, now)
    assert picture._ys[2] not in bars and picture._ys[3] not in bars, "nobody works on them"
    assert texts(picture).count("1  ada, in hand") == 3
    assert strokes(picture, "hand") and ("hand", OKABE_ITO[0]) in picture._ink.points


def test_words_go_into_the_bar_if_that_is_longer_than_the_time_in_hand() -> None:
    picture = drawn(DeliveryPicture, [e for e in prefetched() if e.job in ("", "resize-1", "resize-2")], 8.0)
    assert "1  ada, in hand" in texts(picture), "as long as the bar"
    h = prefetched()
    early = [replace(e, at=1.6) if e.kind == "begun" and e.job == "resize-2" else e for e in h]
    picture = drawn(DeliveryPicture, early, 4.4)
    assert "in hand" in texts(picture) and "1  ada" in texts(picture)
    narrow = drawn(DeliveryPicture, h, 2.4, width=400)
    assert not [words for words in texts(narrow) if "in h" in words and not words.endswith("in hand")], "never cut"
    assert_nothing_overlaps(picture)


def test_a_worker_that_is_killed_takes_what_it_had_in_hand_along() -> None:
    picture = drawn(DeliveryPicture, prefetched(killed=True), 4.5)
    assert [y for _, y in marks(picture, "killed")] == picture._ys[1:4]
    assert len(strokes(picture, "tail")) == 3
    (bar,) = [bar for bar in strokes(picture, "bar") if bar[2] == picture._ys[1]]
    assert bar[:2] == (picture._x(2.5), picture._x(3.5))


def test_a_job_that_times_out_in_hand_is_worked_on_in_vain_from_its_beginning_only() -> None:
    picture = drawn(DeliveryPicture, prefetched(), 8.2)
    strips = {y: (x0, x1) for x0, x1, y in strokes(picture, "late")}
    third, fourth = (next(strips[y] for y in strips if 0 < y - row < 22) for row in picture._ys[2:4])
    assert third == (picture._x(5.5), picture._x(6.5))
    assert fourth == (picture._x(6.5), picture._x(8.2)), "not while it was in hand"


@pytest.mark.parametrize("gap", [0.01, 1.5])
def test_an_escalation_has_a_mark_and_the_row_goes_on_with_attempt_1(gap: float) -> None:
    picture = drawn(DeliveryPicture, escalated(gap=gap), 9.0)
    assert marks(picture, "escalated") == [(picture._x(6.52) - 9, picture._ys[0])]
    assert "escalated" in [text.get_text() for text in picture._fixed if isinstance(text, Text)]
    assert len(strokes(picture, "bar")) == 4 and "1  zoe" in texts(picture)
    waits = [stroke for stroke in strokes(picture, "wait") if stroke[0] == picture._x(6.52)]
    assert len(waits) == (gap > 1) and len(marks(picture, "waiting")) == 0
    assert not picture._dlq


def test_marks_near_an_escalation_keep_clear_of_it() -> None:
    picture = drawn(DeliveryPicture, escalated(naks=True), 9.0)
    ((move, y),) = marks(picture, "escalated")
    assert all(other != y or abs(x - move) > 14 for kind in ("naked", "acked") for x, other in marks(picture, kind))
    assert_nothing_overlaps(picture)


def test_a_terminated_job_ends_in_its_mark_and_a_rejected_one_falls_into_the_dlq_too() -> None:
    picture = drawn(DeliveryPicture, rejected(), 3.5)
    assert [y for _, y in marks(picture, "terminated")] == picture._ys[:2]
    assert not marks(picture, "timed_out") and not strokes(picture, "late") and not strokes(picture, "tail")
    assert marks(picture, "dead") == [(picture._x(1.998), picture._ys[-1])]
    assert len(strokes(picture, "fall")) == 1 and "bad-1 after 1 delivery" in texts(picture)
    assert Timeline(rejected()).counts == {**dict.fromkeys(JOB_STATES, 0), "dead": 1, "terminated": 1}


def test_a_heartbeat_leaves_the_letters_in_its_bar_alone() -> None:
    h = history()
    h.append("published", "job", at=0.1)
    deliver(h, "job", "gy", 1, 0.5)
    h.append("progressed", "job", "gy", attempt=1, at=0.9, until=4)
    picture = drawn(DeliveryPicture, h, 5.0, height=260)
    (top,) = [min(ys[:2]) for (kind, _), (_, ys) in picture._ink.points.items() if kind == "beat"]
    (label,) = [box for box in boxes(picture) if box[0] == "1  gy"]
    assert label[4] <= top + 0.5


def test_what_is_pointed_out_has_light_behind_it() -> None:
    picture = DeliveryPicture()
    for spot, rows in ((("poison-1", 13.0), {2}), (("DLQ", 13.75), {3}), (("nobody", 1.0), set()), (None, set())):
        picture.spot = spot
        picture.update(Timeline(ordinary()), 16.6)
        assert {y for _, _, y in strokes(picture, "spot")} == {picture._ys[-1 if row == 3 else row] for row in rows}
        assert_nothing_overlaps(picture)


def test_an_outage_is_a_grey_band() -> None:
    h = ordinary()
    h.append("broker_killed", at=15.0)
    assert strokes(drawn(DeliveryPicture, h, 16.0), "outage")[0][:2] == pytest.approx(
        tuple(drawn(DeliveryPicture, h, 16.0)._x(at) for at in (15.0, 16.0))
    )
    assert "still down" in describe_deliveries(h)


# --- rows


def test_finished_jobs_are_folded_first_and_counted() -> None:
    h = history()
    for index in range(40):
        h.append("published", f"job-{index:02d}", at=index / 10)
        deliver(h, f"job-{index:02d}", "ada", 1, index / 10 + 0.01)
        if index not in (3, 17):
            h.append("acked", f"job-{index:02d}", "ada", attempt=1, at=index / 10 + 0.05)
    picture = drawn(DeliveryPicture, h, 4.0)
    shown = [job.name for job in picture._jobs]
    assert {"job-03", "job-17"} <= set(shown) and shown == sorted(shown) and shown[-1] == "job-39"
    assert f"+ {40 - len(shown)} finished jobs not shown" in texts(picture)
    taller = drawn(DeliveryPicture, h, 4.0, height=1200)
    assert len(taller._jobs) == 40 and not any("not shown" in words for words in texts(taller))


def test_a_long_queue_leaves_room_for_what_happened() -> None:
    h = history()
    for index in range(50):
        h.append("published", f"job-{index:02d}", at=0.1)
    for index in range(4):
        deliver(h, f"job-{index:02d}", "ada", 1, 0.2 + index)
        h.append("acked", f"job-{index:02d}", "ada", attempt=1, at=1.1 + index)
    picture = drawn(DeliveryPicture, h, 5.0)
    shown = [job.name for job in picture._jobs]
    assert shown == [f"job-{index:02d}" for index in range(len(shown))] and len(shown) > 5
    assert f"+ {50 - len(shown)} waiting jobs not shown" in texts(picture)


def test_what_lies_left_of_the_window_is_folded() -> None:
    h = ordinary()
    picture = drawn(DeliveryPicture, h, 100.0)
    assert window(100.0)[0] > 14
    assert [job.name for job in picture._jobs] == ["resize-3", "resize-4"]
    assert "+ 1 dead, 2 finished jobs not shown" in texts(picture)


@pytest.mark.parametrize("now", [0, 1, 8.4, 8.6, 25, 51, 51.1, 66.5, 3600.7])
def test_the_window_holds_now_and_some_future_and_moves_in_steps(now: float) -> None:
    start, stop = window(now)
    assert start <= now <= start + 0.85 * (stop - start) + 1e-9 and stop - start <= 60
    assert start == 0 or (start % 15 == 0 and now - start > 30)


# --- odd histories


@pytest.mark.parametrize("build", [delivery_attempts, lease_ownership])
def test_an_empty_history_draws_one_friendly_sentence(build) -> None:  # type: ignore[no-untyped-def]
    figure = build(history())
    words = {text.get_text() for text in figure.texts}
    assert words & {"nothing published yet", "no work items yet"}
    assert figure.axes[0].get_xlim() == (0, 10)
    assert describe_deliveries([]) == "Nothing was published yet."
    assert describe_leases([]) == "There are no work items yet."


def test_one_event_draws_one_waiting_job() -> None:
    h = history()
    h.append("published", "resize-1", at=0.5)
    picture = drawn(DeliveryPicture, h, 2.0)
    assert marks(picture, "waiting") == [(picture._x(0.5), picture._ys[0])]
    assert_nothing_overlaps(picture)
    assert describe_deliveries(h) == "resize-1 waits for a worker."


def test_ten_thousand_events_fold_into_a_readable_picture() -> None:
    h = traffic(3200, workers=40, rate=60)
    assert len(h) >= 10_000
    picture = drawn(DeliveryPicture, h, 50.0)
    assert 5 <= len(picture._jobs) <= 12
    assert_nothing_overlaps(picture)
    timeline = Timeline(event for event in h if event.at <= 50.0)
    folded = next(words for words in texts(picture) if words.endswith("not shown"))
    hidden = sum(int(word) for word in folded.split() if word.isdigit())
    assert hidden + len(picture._jobs) == len(timeline.jobs)
    assert len(describe_deliveries(h, now=50.0)) < 700


class OutOfReach(dict[str, JobLine]):
    """Jobs that can be looked up and counted; whoever walks through all of them is caught."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("nobody looks at every job for every frame")

    keys = values = items = __iter__  # type: ignore[assignment]


def test_the_cost_of_a_frame_follows_what_it_shows_not_what_has_ever_happened() -> None:
    timeline = Timeline(event for event in traffic(600, rate=60) if event.at < 9.9)
    for number in range(300):
        timeline.feed([Event(9.9, "published", f"old-{number}"), Event(9.9, "dead_lettered", f"old-{number}")])
    picture = DeliveryPicture()
    picture.update(timeline, 10.0)
    before, told = texts(picture), describe_deliveries(timeline, now=10.0)
    timeline.jobs = OutOfReach(timeline.jobs)
    for state, jobs in timeline.by_state.items():
        if state in ("done", "dead", "waiting"):
            timeline.by_state[state] = Counted(jobs)
    picture.update(timeline, 10.0)
    picture.png()
    assert texts(picture) == before and describe_deliveries(timeline, now=10.0) == told
    assert sum(timeline.counts.values()) == len(timeline.jobs) > 800
    assert Counted.looked_at < 40


class Counted(dict[str, JobLine]):
    """Jobs that count how many of them are looked at."""

    looked_at = 0

    def values(self):  # type: ignore[no-untyped-def]
        return CountedValues(super().values())


class CountedValues:
    def __init__(self, jobs: Any) -> None:
        self.jobs = jobs

    def __iter__(self) -> Iterator[JobLine]:
        return self.count(self.jobs)

    def __reversed__(self) -> Iterator[JobLine]:
        return self.count(reversed(self.jobs))

    def count(self, jobs: Iterable[JobLine]) -> Iterator[JobLine]:
        for job in jobs:
            Counted.looked_at += 1
            yield job


def test_awkward_names_are_drawn_as_they_are() -> None:
    h = history()
    names = ["$x_1$", "<b>&amp;</b>", r"\frac{1}{2}", "a" * 40, "日本語", "line\nbreak", "DLQ", "", "$"]
    for index, name in enumerate(names):
        h.append("published", name, at=0.1)
        deliver(h, name, f"worker-{name}", 1, 0.2 + index / 10)
        h.append("naked", name, f"worker-{name}", attempt=1, at=2.2 + index / 10)
        h.append("dead_lettered", name, attempt=1, at=3.0 + index / 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = drawn(DeliveryPicture, h, 5.0)
        assert_nothing_overlaps(picture)
        encode(delivery_attempts(h))
    assert not any(text.get_parse_math() for text in delivery_attempts(h).texts)
    labels = [text.get_text() for text in picture._fixed if isinstance(text, Text)]
    assert "$x_1$" in labels and any(label.startswith("aaaa") and label.endswith("…") for label in labels)


def test_odd_numbers_do_no_harm() -> None:
    h = history()
    h.append("published", "job", at=5.0)
    deliver(h, "job", "ada", 1, 5.0, 0)
    h.append("acked", "job", "ada", attempt=1, at=5.0)
    deliver(h, "back", "bo", 0, 4.0, -3)
    h.append("naked", "back", "bo", attempt=0, at=3.0)
    h.append("dead_lettered", "never-seen", at=-2.0)
    h.append("acked", "unknown", "cy", attempt=9, at=4.0)
    h.append("delivered", "no-worker", at=4.5)
    h.append("claimed", "item", at=-1.0, until=0)
    h.append("expired", "item", at=-3.0)
    h.append("finished", "other", "zed", at=1.0)
    for now in (None, 0.0, 4.2, 1e6):
        assert encode(delivery_attempts(h, now=now)) and encode(lease_ownership(h, now=now))
        assert describe_deliveries(h, now=now) and describe_leases(h, now=now)
    (zero,) = [s for s in strokes(drawn(DeliveryPicture, h, 6.0), "bar") if s[1] - s[0] == pytest.approx(3)][:1]
    assert zero, "an attempt of no length can be seen"


# --- nothing covers anything


@pytest.mark.parametrize("now", [0.6, 1.2, 3.0, 4.7, 7.0, 13.3, 13.8, 14.0, 14.4, 15.1, 16.6, 20.0, 40.0])
def test_labels_keep_clear_in_an_ordinary_run(now: float) -> None:
    assert_nothing_overlaps(drawn(DeliveryPicture, ordinary(), now))


@pytest.mark.parametrize("width, height", [(960, 380), (560, 220)])
@pytest.mark.parametrize("now", [1.9, 4.9, 5.7, 7.3, 9.0, 30.0])
@pytest.mark.parametrize(
    "make",
    [prefetched, lambda: prefetched(killed=True), escalated, lambda: escalated(naks=True, gap=0.5),
     lambda: escalated(jobs=9), rejected, zombies],
)  # fmt: skip
def test_labels_keep_clear_of_hands_escalations_and_late_acks(make, now: float, width: int, height: int) -> None:  # type: ignore[no-untyped-def]
    assert_nothing_overlaps(drawn(DeliveryPicture, make(), now, width=width, height=height))


@pytest.mark.parametrize("width, height, ratio", [(960, 380, 1), (960, 380, 2), (640, 300, 1.5), (1400, 700, 1)])
@pytest.mark.parametrize("now", [5.3, 11.9, 29.0, 70.2])
def test_labels_keep_clear_in_heavy_traffic(width: int, height: int, ratio: float, now: float) -> None:
    picture = drawn(DeliveryPicture, traffic(200), now, width=width, height=height, pixel_ratio=ratio)
    assert_nothing_overlaps(picture)


@pytest.mark.parametrize("every", [0.15, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("name", ["bo", "a-worker-with-a-long-name"])
def test_labels_of_short_attempts_in_a_row_keep_clear(every: float, name: str) -> None:
    h = history()
    h.append("published", "job", at=0.1)
    for attempt in range(1, 9):
        deliver(h, "job", name, attempt, attempt * every)
        h.append("naked", "job", name, attempt=attempt, at=attempt * every + 0.05)
    picture = drawn(DeliveryPicture, h, 8.4)
    assert_nothing_overlaps(picture)
    shown = [words.split()[0] for words in texts(picture)]
    assert "8" in shown, "the last attempt has room for its number"
    if every >= 0.3:
        assert {str(attempt) for attempt in range(1, 9)} <= set(shown), "each number is to be seen"


@pytest.mark.parametrize("now", [13.76, 14.5, 16.0, 19.0, 24.0, 34.0])
def test_dlq_labels_never_cross_the_now_line_or_each_other(now: float) -> None:
    h = ordinary()
    for index in range(5):
        name = f"poison-{index + 2}"
        h.append("published", name, at=13.0)
        h.append("dead_lettered", name, attempt=3, at=13.76 + index * index)
    picture = drawn(DeliveryPicture, h, now)
    dead = sum(kind == ("mark", "dead") for kind in picture._ink.points)
    assert dead and len(marks(picture, "dead")) == sum(j.dead is not None for j in picture._timeline.jobs.values())
    assert_nothing_overlaps(picture)


# --- leases


def test_the_reclaim_says_both_delays() -> None:
    picture = drawn(LeasePicture, reclaim(), 25.0)
    assert "reclaimed 3.8 s after the kill, 0.10 s after expiry" in texts(picture)
    assert_nothing_overlaps(picture)
    assert "3.8 s after the kill, 0.10 s after expiry" in texts(drawn(LeasePicture, reclaim(), 21.0, width=1020)), (
        "less room"
    )
    told = describe_leases(reclaim(), now=9.0)
    assert "ada held import-eu (r1) and was killed at 4.0 s; the lease stood until 7.7 s." in told
    assert "cy reclaimed it (r27) 3.8 s after the kill, 0.10 s after expiry." in told
    assert "after the freeze" in describe_leases(reclaim(cause="frozen"), now=9.0)


def test_the_lease_of_a_gone_owner_is_hatched_until_it_ends() -> None:
    picture = drawn(LeasePicture, reclaim(), 6.0)
    ((x0, x1, _),) = strokes(picture, "tail")
    assert (x0, x1) == pytest.approx((picture._x(4.0), picture._x(6.0)))
    hatch = [x for stroke in strokes(picture, "hatch") for x in stroke[:2]]
    assert min(hatch) >= x0 and max(hatch) <= x1
    assert marks(picture, "killed")[0] == (picture._x(4.0), picture._ys[0])
    assert len(strokes(picture, "beat")) == 3
    assert "1.6 s" in texts(picture), "the roster says when the lease expires"


def test_the_cause_stays_when_the_worker_is_started_again() -> None:
    h = reclaim()
    h.append("started", worker="ada", at=9.0, detail="leases")
    picture = drawn(LeasePicture, h, 25.0)
    assert marks(picture, "killed") and "reclaimed 3.8 s after the kill, 0.10 s after expiry" in texts(picture)


@pytest.mark.parametrize(
    "until, words", [(4.6, "2.7 s after the kill, 0.10 s after expiry"), (6.0, "2.7 s after the kill")]
)
def test_a_superseded_ownership_looks_expired_but_never_after_the_new_claim(until: float, words: str) -> None:
    h = history()
    h.append("added", "import-eu", at=0.3)
    h.append("claimed", "import-eu", "ada", at=0.6, revision=1, until=until)
    h.append("killed", worker="ada", at=2.0)
    h.append("claimed", "import-eu", "cy", at=4.7, revision=9, until=8.7)
    picture = drawn(LeasePicture, h, 25.0)
    ((x, y),) = marks(picture, "expired")
    assert x == picture._x(min(until, 4.7)) and y < picture._ys[0]
    assert f"reclaimed {words}" in texts(picture)
    assert f"cy reclaimed it (r9) {words}." in describe_leases(h)


@pytest.mark.parametrize("now", [0.7, 2.0, 4.05, 6.0, 7.75, 7.81, 8.0, 10.0, 13.0, 40.0])
@pytest.mark.parametrize("after", [0.002, 0.1, 2.0])
def test_labels_keep_clear_in_the_lease_picture(now: float, after: float) -> None:
    assert_nothing_overlaps(drawn(LeasePicture, reclaim(after), now))


@pytest.mark.parametrize("now", [11.0, 20.0, 26.0, 40.0])
def test_the_name_above_a_short_ownership_and_the_reclaim_keep_clear(now: float) -> None:
    h = history()
    h.append("added", "import-eu", at=0.3)
    h.append("claimed", "import-eu", "ada", at=6.0, revision=1, until=9.0)
    h.append("killed", worker="ada", at=6.05)
    h.append("expired", "import-eu", at=9.0, revision=1)
    h.append("reclaimed", "import-eu", "cy", at=9.1, revision=2, until=12.0)
    picture = drawn(LeasePicture, h, now)
    assert marks(picture, "expired") and any("expiry" in words for words in texts(picture))
    assert_nothing_overlaps(picture)


def test_release_finish_and_loss_have_their_marks() -> None:
    h = history()
    for index, how in enumerate(("released", "finished", "lost")):
        h.append("added", how, at=0.2)
        h.append("claimed", how, f"w{index}", at=0.5, revision=index + 1, until=9.0)
        h.append(how, how, f"w{index}", at=3.0 + index, revision=index + 1)
    picture = drawn(LeasePicture, h, 8.0)
    for index, how in enumerate(("released", "finished")):
        x, y = marks(picture, how)[0]
        assert y == picture._ys[index] and 0 < x - picture._x(3.0 + index) < 15
        assert how in texts(picture)
    assert marks(picture, "lost")[0] == (picture._x(5.0), picture._ys[2])
    tails = [tail for tail in strokes(picture, "tail") if tail[2] == picture._ys[2]]
    assert tails == [(picture._x(5.0), picture._x(8.0), picture._ys[2])], "the lease stands, and nobody works"
    assert_nothing_overlaps(picture)
    told = describe_leases(h, now=8.0)
    assert told.startswith("3 work items: 1 held by an owner that is gone, 1 free and 1 finished.")
    assert "w0 held released (r1) and released it at 3.0 s." in told
    assert "w2 held lost (r3); w2 gave up at 5.0 s, while the lease still stands until 9.0 s." in told


def below(picture: LeasePicture, row: int, kind: str) -> list[tuple[float, float]]:
    """What is in the lane below a row's bars."""
    top = picture._ys[row] + picture._bar / 2
    return [(x0, x1) for x0, x1, y in strokes(picture, kind) if top < y < top + picture._under + 2]


def test_a_zombie_has_a_thinner_bar_of_its_own_below_that_of_the_heir() -> None:
    picture = drawn(LeasePicture, zombie(), 12.5, width=1200)
    assert below(picture, 0, "faint") == [(picture._x(9.7), picture._x(12.5))], "frozen: it can't know"
    assert not below(picture, 0, "strip")
    heir = [bar for bar in strokes(picture, "bar") if bar[0] == picture._x(10.0)]
    assert heir == [(picture._x(10.0), picture._x(12.5), picture._ys[0])], "two believers at once"
    assert "ada still believes" in texts(picture)

    picture = drawn(LeasePicture, zombie(), 15.5)
    assert below(picture, 0, "faint") == [(picture._x(9.7), picture._x(14.0))]
    assert below(picture, 0, "strip") == [(picture._x(14.0), picture._x(14.6))], "at work, until it finds out"
    train = [next(x for x, y in marks(picture, kind) if y > picture._ys[0]) for kind in ("thawed", "stale", "refused")]
    train += [max(x for x, y in marks(picture, "lost") if y < picture._ys[1] - 20)]
    assert train == sorted(train) and min(b - a for a, b in itertools.pairwise(train)) >= 14, "beside each other"
    assert train[0] == picture._x(14.0)
    assert any(words.startswith("stale write") for words in texts(picture))
    assert len(strokes(picture, "write")) == 4 + 3, "those that did no harm are notches"


def test_frozen_cut_and_killed_are_told_apart_by_their_patterns() -> None:
    def slants(cause: str) -> set[str]:
        picture = drawn(LeasePicture, reclaim(cause=cause), 6.0)
        assert marks(picture, cause) == [(picture._x(4.0), picture._ys[0])] * 1 + marks(picture, cause)[1:]
        found = set()
        for (kind, _), (xs, ys) in picture._ink.points.items():
            for x0, x1, y0, y1 in zip(xs[::3], xs[1::3], ys[::3], ys[1::3], strict=True):
                if kind in ("hatch", "wire"):
                    found.add("upright" if x0 == x1 else "level" if y0 == y1 else "slanting")
        return found

    assert [slants(cause) for cause in ("killed", "frozen", "cut")] == [{"slanting"}, {"upright"}, {"level"}]


def test_a_freeze_that_cost_nothing_shows_both_its_ends_and_the_bar_goes_on() -> None:
    picture = drawn(LeasePicture, zombie(), 12.0, width=1200)
    y = picture._ys[3]
    assert [x for x, at in marks(picture, "frozen") if at == y] == [picture._x(5.4)]
    assert [x for x, at in marks(picture, "thawed") if at == y] == [picture._x(8.1)]
    bars = [bar[:2] for bar in strokes(picture, "bar") if bar[2] == y]
    assert bars == [(picture._x(0.9), picture._x(5.4)), (picture._x(8.1), picture._x(12.0))]
    assert "eve · r4" in texts(picture)


def test_what_befell_a_worker_before_it_had_the_lease_is_not_told_of_the_lease() -> None:
    h = history()
    for at, kind in (
        (1.0, "frozen"),
        (2.0, "thawed"),
        (2.5, "cut"),
        (3.0, "restored"),
        (3.1, "killed"),
        (4.0, "started"),
    ):
        h.append(kind, worker="ada", at=at, detail="leases, process")
    h.append("added", "import-eu", at=4.5)
    h.append("claimed", "import-eu", "ada", at=5.0, revision=1, until=12.0)
    picture = drawn(LeasePicture, h, 8.0)
    assert not {kind for key, kind in picture._ink.points if key == "mark"}
    assert [bar[:2] for bar in strokes(picture, "bar")] == [(picture._x(5.0), picture._x(8.0))]


def test_an_owner_that_gives_up_in_time_leaves_its_lease_behind() -> None:
    picture = drawn(LeasePicture, zombie(), 12.0, width=1200)
    assert (picture._x(8.2), picture._ys[1]) in marks(picture, "lost")
    assert not below(picture, 1, "strip") and not below(picture, 1, "faint"), "nobody believes in vain"
    assert "dan · r20 · from 60 %" in texts(drawn(LeasePicture, zombie(), 12.0, width=1600))


def test_cancelled_work_has_its_mark_in_the_row_and_in_the_roster() -> None:
    picture = drawn(LeasePicture, zombie(), 9.0)
    x, y = marks(picture, "cancelled")[0]
    assert y == picture._ys[2] and 0 < x - picture._x(6.7) < 15
    assert texts(picture).count("cancelled") == 2 and not marks(picture, "released")
    h = history()
    h.append("added", "never", at=0.5)
    h.append("cancelled", "never", at=3.0)
    picture = drawn(LeasePicture, h, 8.0)
    assert strokes(picture, "wait") == [(picture._x(0.5), picture._x(3.0), picture._ys[0])]
    assert marks(picture, "cancelled")[0][0] - picture._x(3.0) < 15
    assert describe_leases(h) == "1 work item: 1 cancelled. never was cancelled at 3.0 s."


def test_progress_is_shown_at_the_takeover_and_at_the_right_edge() -> None:
    picture = drawn(LeasePicture, zombie(), 15.5, width=1200)
    assert "bo · r27 · from 40 %" in texts(picture)
    assert {"70 %", "100 %"} <= set(texts(picture))
    (share,) = [(x0, x1) for x0, x1, y in strokes(picture, "share") if y == picture._ys[0] + 9]
    (rail,) = [(x0, x1) for x0, x1, y in strokes(picture, "rail") if y == picture._ys[0] + 9]
    assert (share[1] - share[0]) / (rail[1] - rail[0]) == pytest.approx(0.7)


@pytest.mark.parametrize("width, height, ratio", [(860, 380, 1), (1200, 500, 1), (560, 300, 1), (960, 380, 1.5)])
@pytest.mark.parametrize("now", [5.2, 6.3, 8.25, 9.75, 10.2, 12.5, 14.1, 14.5, 15.5, 22.0, 40.0])
def test_labels_keep_clear_in_the_story_of_a_zombie(width: int, height: int, ratio: float, now: float) -> None:
    assert_nothing_overlaps(drawn(LeasePicture, zombie(), now, width=width, height=height, pixel_ratio=ratio))


@pytest.mark.parametrize("items", [1, 4, 5, 8, 40, 500])
@pytest.mark.parametrize("width, height", [(860, 380), (1200, 500)])
@pytest.mark.parametrize("now", [3.0, 16.0, 39.0])
def test_labels_keep_clear_among_many_zombies(items: int, width: int, height: int, now: float) -> None:
    h = lease_traffic(items, seed=items, until=min(40.0, 4000 / items))
    picture = drawn(LeasePicture, h, now, width=width, height=height)
    unfinished = [item for item in picture._timeline.items.values() if item.ended is None]
    assert len(picture._items) >= min(len(unfinished), 8)
    assert_nothing_overlaps(picture)
    assert len(describe_leases(h, now=now)) < 1200


def test_many_items_fold_the_finished_ones_first() -> None:
    h = history()
    for index in range(20):
        h.append("added", f"item-{index:02d}", at=0.1)
        h.append("claimed", f"item-{index:02d}", f"w{index % 4}", at=0.5, revision=index + 1, until=5.0)
        if index < 16:
            h.append("finished", f"item-{index:02d}", f"w{index % 4}", at=1.0 + index / 10, revision=index + 1)
    picture = drawn(LeasePicture, h, 4.0)
    shown = [item.name for item in picture._items]
    assert shown[-4:] == [f"item-{index}" for index in range(16, 20)]
    assert f"+ {20 - len(shown)} finished items not shown" in texts(picture)
    assert_nothing_overlaps(picture)


# --- live and static are one


@pytest.mark.parametrize("ratio", [1.0, 2.0])
@pytest.mark.parametrize(
    "cls, build, make", [(DeliveryPicture, delivery_attempts, ordinary), (LeasePicture, lease_ownership, zombie)]
)
def test_live_frames_equal_the_static_picture(cls, build, make, ratio: float) -> None:  # type: ignore[no-untyped-def]
    picture, timeline = cls(pixel_ratio=ratio), Timeline()
    events = list(make())
    for now in (0.5, 3.0, 4.1, 7.75, 8.3, 13.0, 15.5, 16.0, 16.1):
        fresh = [event for event in events if event.at <= now][timeline.seen :]
        timeline.feed(fresh)
        picture.update(timeline, now)
        figure = build(timeline, now=now, height=380, pixel_ratio=ratio)
        live, static = picture.sheet.draw()[..., :3].copy(), pixels(encode(figure))
        assert live.shape == (380 * ratio, 960 * ratio, 3)
        # Letters are blended by us in a live picture: the last of 8 bits may be rounded otherwise.
        assert np.abs(live.astype(int) - static).max() <= 1, now
        sent = pixels(picture.png()).astype(int)
        assert np.abs(sent - static).mean() < 1.5 and np.array_equal(sent[0, 0], static[0, 0]), "few colours, the same"
    # The static figure is an ordinary one: drawn completely it is the same again.
    figure.canvas.draw()
    assert np.array_equal(static, pixels(encode(figure)))


def test_the_background_is_drawn_only_when_axis_or_rows_change() -> None:
    picture, timeline = DeliveryPicture(), Timeline(ordinary())
    for step in range(20):
        picture.update(timeline, 17.1 + step / 10)
        picture.png()
    assert picture.sheet.full_draws == 1
    picture.update(timeline, 26.0)
    picture.png()
    assert picture.sheet.full_draws == 2, "the axis grew"
    timeline.feed(list(ordinary_tail()))
    picture.update(timeline, 26.1)
    picture.png()
    assert picture.sheet.full_draws == 3, "a row more"


def ordinary_tail() -> History:
    h = history()
    h.append("published", "resize-5", at=26.05)
    return h


def test_an_unchanged_frame_leaves_nothing_behind() -> None:
    """A frame restores the background first: a bar that is gone must not shine through."""
    picture = DeliveryPicture()
    picture.update(Timeline(ordinary()), 16.6)
    picture.png()
    picture.update(Timeline(), 16.6)
    empty = picture.sheet.draw()[..., :3].astype(int)
    assert np.abs(empty - pixels(encode(delivery_attempts(Timeline(), now=16.6, height=380)))).max() <= 1


@pytest.mark.parametrize(
    "module, allowed",
    [
        (canvas, ("errors", "history", "ink", "palette", "timeline")),
        (figures, ("canvas", "ink", "palette", "timeline")),
        (twins, ("canvas", "subjects", "timeline", "timing")),
    ],
)
def test_a_module_imports_only_what_it_may(module, allowed: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = {name for name in names if name.startswith("meetupq")}
    assert ours <= {f"meetupq.{name}" for name in allowed}
    assert not {"matplotlib.pyplot", "nats", "IPython", "ipywidgets"} & names
