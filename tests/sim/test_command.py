"""`python -m holdfast.testing.sim`: its output, and its exit status."""

from __future__ import annotations

import re

import pytest

from sim.__main__ import DONE, FAILED, USAGE, main
from sim.mutants import MUTANTS
from sim.workloads import HOLES, WORKLOADS


def test_every_workload_is_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*WORKLOADS, *HOLES]
    assert [line for line in lines if len(line.split()) < 3] == []


def test_a_replay_needs_only_the_line_that_was_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    MUTANTS["unlocked_before_it_is_removed"].mutate(monkeypatch)
    assert main(["--workload", "two", "--run-seed", "88"]) == FAILED
    said = capsys.readouterr().out
    again = re.search(r"--replay (\S+) '(.*)'", said)
    assert again is not None
    assert main(["--replay", again[1], again[2]]) == FAILED
    assert "Violation: " in capsys.readouterr().out
    monkeypatch.undo()
    assert main(["--replay", again[1], again[2]]) == DONE


@pytest.mark.parametrize("arguments", [["--workload", "none"], ["--replay", "none", "0"], ["--run-seed", "1"]])
def test_a_usage_error_runs_nothing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == USAGE
    said = capsys.readouterr()
    assert not said.out
    assert said.err


def test_a_timed_search_reports_its_interleavings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seconds", "1", "--jobs", "1", "--workload", "two"]) == DONE
    assert re.search(r"^[\d,]+ interleavings of 1 workloads in .* failed: none$", capsys.readouterr().out, re.MULTILINE)
