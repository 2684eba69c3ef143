"""The guided tour: its steps are found in the recording, and each picture shows what its sentence says, no more."""

from __future__ import annotations

import itertools
import re
from html import unescape

import ipywidgets as widgets
import pytest
from test_figures import assert_nothing_overlaps, deliver, each_end, history, marks, ordinary, pixels, traffic
from test_panels import all_of

from meetupq import History, Tour
from meetupq.palette import MARKS
from meetupq.timeline import Timeline
from meetupq.tour import SHIPPED, find_steps

STORY = [
    "waiting", "bar", "patience", "beat", "acked", "killed", "tail", "failed", "again", "stuck", "dead", "redriven",
    "restarted",
]  # fmt: skip


def kinds(events: History) -> list[str]:
    return [step.kind for step in find_steps(events)]


# --- the recording that is shipped


def test_the_shipped_recording_tells_the_whole_story_in_some_ten_seconds() -> None:
    recording = History.load(SHIPPED)
    assert kinds(recording) == STORY
    assert 8 < Timeline(recording).last < 13
    assert {event.worker for event in recording if event.kind == "delivered"} == {"ada", "bo", "cy"}


def test_every_sentence_is_short_and_names_what_is_in_the_picture() -> None:
    recording = History.load(SHIPPED)
    names = {event.job for event in recording} | {event.worker for event in recording} - {""}
    steps = find_steps(recording)
    for step in steps:
        assert len(step.sentence) <= 130 and step.mark
        assert any(name in step.sentence for name in names)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert len({(step.mark, step.colour) for step in steps}) >= len(steps) - 1


def test_each_picture_shows_its_new_mark_and_none_of_the_marks_to_come() -> None:
    with_marks = [kind for kind in STORY if kind in MARKS]
    tour = Tour.shipped()
    for number, step in enumerate(tour.steps, start=1):
        tour.show(number)
        assert tour._picture
        if step.kind in MARKS:
            assert marks(tour._picture, step.kind), step
        for later in with_marks[with_marks.index(step.kind) + 1 :] if step.kind in MARKS else []:
            assert not marks(tour._picture, later), (step, later)
        assert_nothing_overlaps(tour._picture)
        assert tour._picture._ink.points.keys() >= {("spot", "#FFE184")}, "what is new is pointed out"
    tour.close()


# --- steps of other runs


def test_the_steps_of_a_hand_made_run() -> None:
    found = {step.kind: step for step in find_steps(ordinary())}
    assert list(found) == [
        "waiting", "bar", "patience", "killed", "tail", "acked", "naked", "again", "stuck", "dead",
    ]  # fmt: skip
    assert found["killed"].sentence == "bo was killed at 2.8 s, in the middle of resize-2. Nobody tells the broker."
    assert (found["killed"].mark, found["killed"].row, found["killed"].moment) == ("✗", "resize-2", 2.8)
    assert "ada handed it back: at 4.6 s ada got poison-1. This is attempt 2, with the same worker." in (
        found["again"].sentence
    )
    assert (found["dead"].row, found["dead"].moment) == ("DLQ", 13.75)


def test_every_way_to_end_has_its_step() -> None:
    assert set(kinds(each_end())) == {
        "waiting", "bar", "patience", "acked", "naked", "failed", "killed", "timed_out", "terminated", "tail",
    }  # fmt: skip


def test_a_late_ack_an_outage_and_an_escalation_have_steps() -> None:
    h = history()
    h.append("published", "job", at=0.1)
    deliver(h, "job", "ada", 1, 0.5, 2)
    h.append("timed_out", "job", "ada", attempt=1, at=2.5)
    deliver(h, "job", "bo", 2, 2.6, 3)
    h.append("acked", "job", "ada", attempt=1, at=4.0)
    h.append("published", "stats", at=4.5)
    deliver(h, "stats", "ada", 1, 4.6, 1)
    h.append("escalated", "stats", at=5.7, detail="jobs.low.stats")
    h.append("broker_killed", at=8.0)
    found = {step.kind: step for step in find_steps(h)}
    assert "ada went on after the broker had given up on attempt 1" in found["late"].sentence
    assert "Its ack came late, but it counts." in found["late"].sentence
    assert found["escalated"].moment == 5.7 and found["escalated"].row == "stats"
    assert found["outage"].moment == 8.0 and found["outage"].row == ""


def test_a_job_that_waits_in_a_workers_hands_has_a_step() -> None:
    h = history()
    for job in ("one", "two"):
        h.append("published", job, at=0.1)
        deliver(h, job, "ada", 1, 0.5)
    h.append("begun", "one", "ada", attempt=1, at=0.5)
    h.append("acked", "one", "ada", attempt=1, at=1.5)
    h.append("begun", "two", "ada", attempt=1, at=1.5)
    (step,) = [step for step in find_steps(h) if step.kind == "hand"]
    assert step.row == "two" and 0.5 < step.at < 1.5
    assert "two is in ada's hands" in step.sentence


@pytest.mark.parametrize("seed", range(5))
def test_any_run_has_steps_in_order_with_one_of_a_kind(seed: int) -> None:
    steps = find_steps(traffic(40, seed=seed))
    assert len({step.kind for step in steps}) == len(steps) >= 6
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    for step, after in itertools.pairwise(steps):
        assert step.moment <= step.at and (step.at < after.moment or step.at == step.moment)


def test_a_step_is_over_before_the_next_one_begins() -> None:
    """A letter is shown a little after it was written, so that its diamond stands clear; not if it is redriven then."""
    h = ordinary()
    h.append("redriven", "poison-1", at=13.8)
    *_, dead, redriven = find_steps(h)
    assert (dead.kind, redriven.kind) == ("dead", "redriven")
    assert dead.moment == 13.75 < dead.at < redriven.moment == 13.8
    assert find_steps(ordinary())[-1].at > 13.9


# --- the widget


def said(tour: Tour) -> str:
    told = " ".join(html.value for html in all_of(tour, widgets.HTML))
    return unescape(re.sub("(?s:<style>.*?</style>)|<[^>]*>", " ", told))


def test_next_back_and_show_walk_through_the_steps_and_stop_at_the_ends() -> None:
    tour = Tour(ordinary())
    count = len(tour.steps)
    assert repr(tour) == f"<Tour: step 1 of {count}>" and tour.number == 1
    tour.back()
    assert tour.number == 1
    for number in range(2, count + 1):
        tour.next()
        assert tour.number == number and f"step {number} of {count}" in said(tour)
        assert tour.step is tour.steps[number - 1] and tour.step.sentence in said(tour)
    tour.next()
    assert tour.number == count
    tour.show(3)
    tour.back()
    assert repr(tour) == f"<Tour: step 2 of {count}>"
    for wrong in (0, count + 1, -1, "2", None):
        with pytest.raises(ValueError, match=f"this tour has the steps 1 to {count}"):
            tour.show(wrong)  # type: ignore[arg-type]
    assert tour.number == 2


def test_the_buttons_do_what_the_methods_do_and_say_so() -> None:
    tour = Tour(ordinary())
    back, on = all_of(tour, widgets.Button)
    assert (back.description, on.description) == ("◀ Back", "Next ▶")
    for button in (back, on):
        method = button.tooltip.partition("tour.")[2].partition("(")[0]
        assert callable(getattr(Tour, method)), button.tooltip
    assert back.disabled and not on.disabled
    on.click()
    assert tour.number == 2 and not back.disabled
    back.click()
    assert tour.number == 1 and back.disabled
    tour.show(len(tour.steps))
    assert on.disabled


def test_the_picture_and_the_twin_are_those_of_the_step() -> None:
    tour = Tour(ordinary())
    (image,) = all_of(tour, widgets.Image)
    seen = set()
    for number in range(1, len(tour.steps) + 1):
        tour.show(number)
        seen.add(image.value)
        assert pixels(image.value).shape == (320, 860, 3)
    assert len(seen) == len(tour.steps)
    assert "poison-1 failed 3 times (ada) and is in the DLQ since 13.8 s." in said(tour)
    assert "dead letter" in said(tour)
    tour.show(1)
    assert "DLQ" not in said(tour) and "wait for a worker" in said(tour)


def test_nothing_jumps_from_step_to_step() -> None:
    tour = Tour(ordinary(), width=700, height=300)
    (image,) = all_of(tour, widgets.Image)
    assert (image.layout.width, image.layout.height) == ("700px", "300px")
    assert tour._sentence.layout.height and tour._twin.layout.height


def test_names_with_markup_are_text() -> None:
    h = history()
    h.append("published", "<b>job", at=0.1)
    deliver(h, "<b>job", "<i>ada", 1, 0.5)
    tour = Tour(h)
    tour.next()
    assert "&lt;i&gt;ada" in tour._sentence.value and "<i>ada" not in tour._sentence.value + tour._twin.value


def test_an_empty_history_has_no_steps_and_says_so() -> None:
    tour = Tour(history())
    assert repr(tour) == "<Tour: step 0 of 0>" and tour.step is None
    tour.next()
    tour.back()
    assert "Nothing happened." in said(tour) and all(button.disabled for button in all_of(tour, widgets.Button))
    with pytest.raises(ValueError):
        tour.show(1)


def test_what_comes_later_is_not_shown() -> None:
    h = history()
    h.append("published", "job", at=0.1)
    tour = Tour(h)
    deliver(h, "job", "ada", 1, 0.5)
    assert len(tour.steps) == 1


def test_a_closed_tour_lets_go_of_its_picture() -> None:
    tour = Tour(ordinary())
    tour.close()
    tour.close()
    assert tour._picture is None
    tour.next()  # a click that was under way does no harm
