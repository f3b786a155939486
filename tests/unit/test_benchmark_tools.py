"""Results that the benchmarks compute from their measurements."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from airflow_eos_testing.exceptions import EmbeddedKafkaError
from benchmarks import fresh, processes
from benchmarks.airflow_task import moments_of
from benchmarks.chart import timeline_chart
from benchmarks.rounds import WARM_UPS, open_share, ratio, run_rounds, shares

ROOT = Path(__file__).resolve().parents[2]


def test_the_ratio_is_the_median_of_the_rounds_not_of_the_times():
    """A slow minute of the machine affects both times of a round."""
    assert ratio([1.0, 10.0, 2.0], [2.0, 20.0, 1.0]) == 0.5


def test_shares_are_of_what_passed_before_a_state():
    """They add up to one; the transaction is open from OPEN to COMMITTED."""
    stages = [{"SEALED": 6.0, "OPEN": 6.5, "COMMITTED": 9.0, "END": 10.0}]
    assert shares(stages) == {"SEALED": 0.6, "OPEN": 0.05, "COMMITTED": 0.25, "END": 0.1}
    assert open_share(stages) == 0.25


def test_the_first_rounds_are_not_counted(capsys):
    """They warm up."""
    calls = []
    series = run_rounds({"a": lambda: calls.append("a"), "b": lambda: {"END": 1.0}}, 2)
    assert len(calls) == WARM_UPS + 2
    assert len(series["a"].seconds) == len(series["a"].cpu) == 2
    assert (series["a"].stages, series["b"].stages) == ([], [{"END": 1.0}] * 2)
    assert capsys.readouterr().out.count("warm-up: a") == WARM_UPS


def number_from(script):
    """Run a script in a process without other descendants: those of the tests work, and end, meanwhile."""
    command = [sys.executable, "-c", script]
    return float(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


@pytest.mark.process
def test_cpu_of_children_that_have_ended_is_counted():
    """A benchmark's clients live for one round only."""
    used = number_from(
        "import subprocess, sys\n"
        "from benchmarks.processes import Watch\n"
        "work = 'import time\\nwhile time.process_time() < 0.5: pass'\n"
        "with Watch() as usage: subprocess.run([sys.executable, '-c', work], check=True)\n"
        "print(usage.cpu)"
    )
    assert used >= 0.4


def test_waiting_costs_no_cpu():
    """Elapsed seconds are not CPU seconds."""
    used = number_from(
        "import time\n"
        "from benchmarks.processes import cpu_seconds\n"
        "before = cpu_seconds()\n"
        "time.sleep(0.3)\n"
        "print(cpu_seconds() - before)"
    )
    assert used == pytest.approx(0, abs=0.25)


@pytest.mark.process
def test_memory_of_a_tree_counts_shared_pages_once():
    """A forked worker that touches none of its parent's memory adds nothing."""
    held = number_from(
        "import os, subprocess, sys, time\n"
        "from benchmarks.processes import PeakMemory\n"
        "work = 'import os, time; held = bytearray([1]) * 200_000_000;'\n"
        "work += 'os.fork() and os.wait() or time.sleep(1.5)'\n"
        "child = subprocess.Popen([sys.executable, '-c', work])\n"
        "memory = PeakMemory(child.pid)\n"
        "child.wait()\n"
        "print(memory.mb)"
    )
    assert 200 <= held < 300


def test_memory_is_read_again_when_a_process_has_ended_meanwhile(monkeypatch):
    """Its share was read while it shared its pages, its child's when the child held them alone."""
    root, parent, child = 1, 2, 3
    trees = iter([[root, parent, child], [root, child], [root, child]])
    shares = iter([10.0, 100.0, 200.0, 10.0, 200.0])
    monkeypatch.setattr(processes, "descendants", lambda _: next(trees))
    monkeypatch.setattr(processes, "_proportional_mb", lambda _: next(shares))
    assert processes.tree_mb(root) == 210.0


def test_disk_that_a_block_needed_is_the_most_it_held(tmp_path):
    """Sealed batches are deleted when the run has ended."""
    used = number_from(
        "import time\n"
        "from pathlib import Path\n"
        "from benchmarks.processes import Watch\n"
        f"file = Path({str(tmp_path)!r}) / 'block'\n"
        "with Watch(file.parent) as usage:\n"
        "    file.write_bytes(b'x' * 5_000_000)\n"
        "    while usage.peak_disk_mb < 4.9: time.sleep(0.01)\n"
        "    file.unlink()\n"
        "    time.sleep(0.3)\n"
        "print(usage.peak_disk_mb)"
    )
    assert used == pytest.approx(5.0, abs=0.1)


def test_a_task_log_says_what_took_how_long():
    """From the task runner's log, with other lines in between."""
    events = [
        (10.0, "::group::Pre Execute"),
        (13.5, "state ASKED after 1.500 s"),
        (14.0, "state PLANNED after 2.000 s"),
        (14.5, "Starting Spark: local[2]"),
        (30.0, "sealing 1000 offsets: done in 4.0 s"),
        (30.5, "state SEALED after 18.500 s"),
        (32.0, "state COMMITTED after 20.000 s"),
        (33.0, "Pushing xcom"),
    ]
    log = "\n".join(
        json.dumps({"timestamp": f"1970-01-01T00:00:{moment:09.6f}Z", "event": event})
        for moment, event in events
    )
    assert moments_of(log) == [12.0, 14.5, 26.0, 30.5, 32.0]


def test_the_parts_of_a_task_are_drawn_one_behind_the_other():
    """In proportion to their seconds, with names, and the sum at the end."""
    rows = {"one": {"a": 1.0, "b": 3.0}, "two": {"a": 1.0, "b": 1.0}}
    drawn = ET.fromstring(timeline_chart("A task", rows))
    bars = [(float(r.get("x")), float(r.get("width"))) for r in drawn.findall("{*}rect")[1:]]
    (x, first), (second_x, second), (_, third), _ = bars
    assert second == pytest.approx(3 * first, rel=0.01)
    assert second_x == pytest.approx(x + first, abs=0.2)
    assert third == pytest.approx(first)
    texts = {text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert texts == {"A task", "a", "b", "one", "two", "4.0 s", "2.0 s"}


def without_flink(kind, workload):
    """Start every contender except Flink, whose jars are unavailable."""
    if kind == "flink":
        raise EmbeddedKafkaError("no repository answers")
    return [kind]


def test_a_peer_that_cannot_be_had_is_left_out_and_said(monkeypatch, capsys):
    """The others are measured."""
    monkeypatch.setattr(fresh, "command", without_flink)
    assert set(fresh.commands(fresh.CONTENDERS, (), "copy")) == set(fresh.CONTENDERS.values()) - {"flink"}
    assert (
        capsys.readouterr().out
        == "fresh: without Flink, exactly once: no repository answers (docs/errors.md#eoserror)\n"
    )


@pytest.mark.parametrize(("kind", "only"), [("flink", ["flink"]), ("arrow", [])])
def test_what_was_asked_for_or_is_ours_is_never_left_out(monkeypatch, kind, only):
    """The benchmark fails."""

    def failing(contender, workload):
        if contender == kind:
            raise RuntimeError("not to be had")
        return [contender]

    monkeypatch.setattr(fresh, "command", failing)
    with pytest.raises(RuntimeError, match="not to be had"):
        fresh.commands(fresh.CONTENDERS, only, "copy")


@pytest.mark.parametrize(("only", "workload"), [(["arrow", "java"], "copy"), (["flink"], "parse")])
def test_a_contender_that_there_is_not_is_an_error(only, workload, tmp_path):
    """Otherwise a comparison would end without the intended peer."""
    with pytest.raises(SystemExit, match=f"{only[-1]}: not a contender of the workload {workload}: tuned"):
        fresh.fresh(10, 1, tmp_path, only, workload)
