"""`make flaky`: its reports about tests that fail now and then, and what it leaves behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from process.support import eventually

ROOT = Path(__file__).parents[2]
FLAKY = ROOT / "tests" / "flaky.py"

ORDER = """
    import pytest

    seen = []

    @pytest.fixture(scope="module")
    def shared():
        with open(f"{__file__}.made", "a") as file:
            file.write("made ")

    def test_one(): seen.append(1)
    def test_two(): assert seen, "nothing yet"
    def test_with(shared): seen.append(2)
    def test_with_as_well(shared): seen.append(3)
"""
OTHERS = """
    import pytest

    @pytest.mark.parametrize("n", range(40))
    def test_other(n): pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return tmp_path


def flaky(project: Path, *options: str, **files: str) -> list[str]:
    """The command line for these tests."""
    for name, text in files.items():
        (project / f"{name}.py").write_text(textwrap.dedent(text))
    words = ["-c", str(project / "pyproject.toml"), "-p", "shuffled", "-p", "no:cacheprovider", str(project)]
    return [sys.executable, str(FLAKY), "--keep", str(project / "kept"), *options, "--", *words]


def play(project: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(FLAKY.parent), "TMPDIR": str(project)}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=600)


def order(log: Path) -> list[str]:
    return re.findall(r"^\S+::(\S+) (?:PASSED|FAILED)", log.read_text(), re.MULTILINE)


def test_a_test_that_depends_on_the_order_is_found_and_reproduced_by_its_seed(project: Path) -> None:
    """A module's fixture is made once per run, as no test of another module comes between its tests."""
    files = {"test_order": ORDER, "test_others": OTHERS}
    done = play(project, flaky(project, "--times=3", "--jobs=0", "--load=0", "--seed=1", **files))
    assert done.returncode == 1, done.stdout + done.stderr
    told = re.search(r"(?m)^(\d) of 3  \S*test_order\.py::test_two\n((?:    SEED=.*\n)+)", done.stdout)
    assert told, done.stdout
    kept = sorted((project / "kept").rglob("*.log"))
    assert 0 < len(kept) == int(told[1]) < 3, "only what failed is kept, and these seeds have both orders"
    assert all("nothing yet" in log.read_text() and str(log) in told[2] for log in kept)
    assert (project / "test_order.py.made").read_text() == "made " * 3
    seed = re.findall(r"SEED=(\d+)", told[2])[-1]
    again = play(project, flaky(project, "--times=1", "--jobs=0", "--load=0", f"--seed={seed}"))
    assert again.returncode == 1
    (log,) = set((project / "kept").rglob("*.log")) - set(kept)
    assert order(log) == order(kept[-1])


def test_workers_use_the_same_order(project: Path) -> None:
    done = play(project, flaky(project, "--times=1", "--jobs=2", "--load=0", test_others=OTHERS))
    assert (done.returncode, done.stdout.count("40 passed")) == (0, 2), done.stdout  # in the run, and in the table
    assert "nothing failed in 1 rounds" in done.stdout
    assert not list((project / "kept").iterdir())


def test_a_run_without_tests_does_not_count_as_passed(project: Path) -> None:
    done = play(project, flaky(project, "--times=1", "--jobs=0", "--load=0"))
    assert done.returncode == 1
    assert "1 of 1  pytest itself, with status 5" in done.stdout


def test_the_busy_loops_end_with_a_killed_run(project: Path) -> None:
    waits = """
        import os, time
        def test_that_waits_for_the_end_of_the_run():
            parent = os.getppid()
            open(f"{__file__}.there", "w").close()
            while os.getppid() == parent:
                time.sleep(0.01)
    """
    command = flaky(project, "--times=1", "--jobs=0", "--load=2", test_waits=waits)
    environment = {**os.environ, "PYTHONPATH": str(FLAKY.parent)}
    with subprocess.Popen(command, cwd=project, env=environment, stdout=subprocess.DEVNULL) as driver:
        try:
            eventually((project / "test_waits.py.there").exists, what="the test")
            children = psutil.Process(driver.pid).children()
        finally:
            driver.kill()
    assert len(children) == 3
    eventually(lambda: not any(child.is_running() and child.status() != "zombie" for child in children))
