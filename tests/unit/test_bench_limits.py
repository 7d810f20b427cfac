"""The limits of the benchmarks (bench/limits.c): the output of each mode, and that no process or file is left."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"

# bench/ is no package: its modules find each other by the directory that run.py is in.
sys.path.insert(0, str(BENCH))
try:
    from limits import LIMITS, Limit, compiled, numbers
    from procs import Failed, NotAvailable
finally:
    sys.path.remove(str(BENCH))

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
MS = 1_000_000


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(params=LIMITS, ids=lambda one: one.word)
def limit(request: pytest.FixtureRequest) -> type[Limit]:
    return request.param  # type: ignore[no-any-return]


@needs_cc
def test_a_limit_times_each_cycle_and_each_turn(limit: type[Limit], programs: Path, tmp_path: Path) -> None:
    samples = limit.measured(programs, tmp_path / "lock", "uncontended", MS, 20)
    assert min(samples) > 0
    turns = limit.measured(programs, tmp_path / "lock", "handoff", -1, -1, 2, *[MS] * 7)
    assert len(turns) == 5
    assert min(turns) > 0


@needs_cc
def test_a_limit_is_free_after_the_death_of_its_holder(limit: type[Limit], programs: Path, tmp_path: Path) -> None:
    kills = limit.measured(programs, tmp_path / "lock", "crash", *[MS] * 4)
    assert len(kills) == 3
    assert min(kills) > 0


@needs_cc
def test_contenders_for_a_limit_are_counted_one_by_one(limit: type[Limit], programs: Path, tmp_path: Path) -> None:
    found = limit.measured(programs, tmp_path / "lock", "fairness", 3, 30 * MS, MS)
    each, sample = [found[at : at + 5] for at in (0, 5, 10)], found[15:]
    for acquired, waits, waited, longest, _ in each:
        assert waits - 1 <= acquired <= waits  # the end may cut off one
        assert longest <= waited
    assert 0 < len(sample) <= sum(one[1] for one in each)
    assert max(sample) <= max(one[3] for one in each)


@needs_cc
def test_every_waiter_for_a_limit_gets_it(limit: type[Limit], programs: Path, tmp_path: Path) -> None:
    woken, asleep, memory, *moments = limit.measured(programs, tmp_path / "lock", "waiters", 20, MS, 10_000 * MS)
    assert len(moments) == 20
    assert moments == sorted(moments)
    assert moments[0] > 0
    assert woken >= 20
    assert asleep >= 0
    assert memory % 1024 == 0


@needs_cc
def test_the_processes_of_a_limit_end_with_it(limit: type[Limit], programs: Path, tmp_path: Path) -> None:
    words = [compiled("limits.c", programs), limit.word, tmp_path / "lock", "fairness", "2", str(60_000 * MS), "0"]
    # Each process has the pipe open: it ends when the last one has.
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(children.read_text().split()) < 2:
            time.sleep(0.001)
        process.kill()
        assert process.stdout.read() == b""


def test_a_limit_that_cannot_be_compiled_is_not_available(tmp_path: Path) -> None:
    with pytest.raises(NotAvailable):
        compiled("no-such-source.c", tmp_path)


@needs_cc
def test_a_limit_that_fails_says_why(programs: Path, tmp_path: Path) -> None:
    program = compiled("limits.c", programs)
    with pytest.raises(Failed, match="open: No such file or directory"):
        numbers(program, "flock", tmp_path / "missing" / "lock", "uncontended", MS, 1, timeout=10)
    with pytest.raises(Failed, match="no-such-mode: Invalid argument"):
        numbers(program, "flock", tmp_path / "lock", "no-such-mode", 1, timeout=10)
    with pytest.raises(Failed, match="timed out"):
        numbers(program, "flock", tmp_path / "lock", "uncontended", 60_000 * MS, 1, timeout=0.05)
