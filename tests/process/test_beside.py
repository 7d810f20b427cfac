"""Tests that wait run in a process beside the workers (beside.py): their reports are complete, and none is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from process.support import eventually

TESTS = Path(__file__).parents[1]
CONFTEST = """
    import beside

    beside.SHARES = (("test_a_waits.py",),)

    def pytest_configure(config):
        if hasattr(config, "workerinput"):
            config.pluginmanager.register(beside.Beside(config))
"""
QUICK = """
    import os, pathlib, psutil, pytest

    @pytest.fixture(scope="module", autouse=True)
    def _shared():
        yield
        note("torn")

    def note(word):
        (pathlib.Path(__file__).parent / f"{word}-{os.getpid()}").touch()

    @pytest.mark.parametrize("number", range(9))
    def test_quick(number):
        note("quick")
        assert psutil.Process().children() == []
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "conftest.py").write_text(textwrap.dedent(CONFTEST))
    (tmp_path / "test_z_quick.py").write_text(textwrap.dedent(QUICK))
    return tmp_path


def command(project: Path, waits: str) -> list[str]:
    (project / "test_a_waits.py").write_text(textwrap.dedent(waits))
    return [
        *(sys.executable, "-m", "pytest", "-c", str(project / "pyproject.toml"), f"--basetemp={project}/base"),
        *("-p", "no:cacheprovider", "-n", "2", "--dist", "worksteal", "-rA", str(project)),
    ]


def environment(project: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(project)}


def play(project: Path, waits: str) -> subprocess.CompletedProcess[str]:
    words = command(project, waits)
    return subprocess.run(words, cwd=project, env=environment(project), capture_output=True, text=True, timeout=120)


def pids(project: Path, word: str) -> set[str]:
    return {path.name.partition("-")[2] for path in project.glob(f"{word}-*")}


WAITS = """
    import pathlib, pytest
    from test_z_quick import note

    @pytest.fixture(scope="module")
    def server(tmp_path_factory):
        note("server")
        yield tmp_path_factory.mktemp("server")
        note("stopped")

    @pytest.mark.parametrize("number", range(9))
    def test_waits(number, server, tmp_path):
        print("heard of", number)
        assert tmp_path.is_dir()
        note("waits")
        if number == 3:
            pytest.skip("not here")
        assert number != 5, "five"

    def test_output(capfd):
        print("mine")
        assert capfd.readouterr().out == "mine\\n"
"""


def test_a_test_that_waits_runs_in_a_companion_and_is_reported_as_usual(project: Path) -> None:
    """BS1, BS2: with its output and the cause of its failure; it shares no fixture, and is no worker's child."""
    done = play(project, WAITS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 17 passed, 1 skipped" in done.stdout
    assert "AssertionError: five" in done.stdout
    assert "heard of 5" in done.stdout
    assert "not here" in done.stdout
    (companion,) = pids(project, "waits")
    assert pids(project, "server") == pids(project, "stopped") == {companion}
    assert companion not in pids(project, "quick")
    assert pids(project, "torn") == pids(project, "quick")


def test_the_workers_run_the_tests_left_by_a_killed_companion(project: Path) -> None:
    """BS3."""
    killed = "if number == 4 and not pathlib.Path('killed').exists():"
    killed += " pathlib.Path('killed').touch(), os.kill(os.getpid(), 9)"
    done = play(
        project, "import os\n" + textwrap.dedent(WAITS).replace('note("waits")\n', f'note("waits")\n    {killed}\n')
    )
    assert "1 failed, 17 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert (project / "killed").exists()
    assert len(pids(project, "waits")) > 1
    assert pids(project, "server") == pids(project, "stopped") | (pids(project, "waits") - pids(project, "quick"))


def test_a_companion_does_not_outlive_its_run(project: Path) -> None:
    """BS4: a worker whose controller was killed ends some seconds later."""
    words = command(project, "import time\ndef test_waits():\n    open('begun', 'w').close()\n    time.sleep(1000)\n")
    run = subprocess.Popen(
        words, cwd=project, env=environment(project), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        eventually((project / "begun").exists, 60)
    finally:
        run.kill()
        run.wait(60)
    eventually(lambda: not [name for name in os.listdir("/proc") if name.isdecimal() and _is_in(name, project)], 60)


def _is_in(pid: str, directory: Path) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd") == str(directory)
    except OSError:
        return False
