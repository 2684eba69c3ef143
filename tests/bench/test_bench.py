"""The bench, with small numbers: it must not rot. What it measures is for people to compare, not for a test."""

from __future__ import annotations

import math

import bench_leases
import bench_queue
import pytest


@pytest.mark.slow
async def test_the_bench_fills_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_queue, "FEW", 20)
    monkeypatch.setattr(bench_queue, "LEFT", 10)
    rows = await bench_queue.measure(jobs=60, letters=5, frames=2)
    told = [row.what.partition(",")[0] for row in rows]
    assert told[:3] == ["publish", "summary()", "letters()"]
    assert told.count("frame") == 7 and {"History.append", "memory of the timeline"} <= set(told)
    for row in rows:
        assert row.figure > 0 and math.isfinite(row.figure), row
        assert row.what in str(row) and row.unit in str(row)
        assert row.beside > 0 or not row.beside_what, row
    assert "5 of them" in rows[2].what, "all broken jobs became dead letters"


def test_a_row_sets_a_figure_beside_another_one() -> None:
    row = bench_queue.Row("publish", 500.0, "jobs/s", 1000.0, "nats-py alone")
    assert str(row).split() == ["publish", "500.000", "1000.000", "jobs/s", "0.50", "x", "nats-py", "alone"]


@pytest.mark.slow
async def test_the_bench_of_the_leases_fills_both_tables() -> None:
    trials = await bench_leases.all_trials(kills=2, standbys=2, others=2, spread=0.2)
    assert [trial.how for trial in trials] == ["poll", "marker", "key_ttl", "observe", "Lock on Valkey"]
    assert all(len(trial.delays) == 2 and all(map(math.isfinite, trial.delays)) for trial in trials)
    line = await bench_leases.price(6, seconds=1.5)
    assert (line.leases, line.watchers) == (6, 1)
    assert line.kilobytes > 0 and line.processor > 0 and line.bare_processor > 0
    assert str(line).split()[0] == "6"
