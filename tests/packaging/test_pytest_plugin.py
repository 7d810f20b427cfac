"""The plugin for pytest as it is installed: found by its entry point, in a session with workers of pytest-xdist."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os
import pytest

def make():
    with open("calls", "a") as calls:
        calls.write(f"{os.getpid()}\\n")
    if len(open("calls").readlines()) == 1:
        os._exit(9)  # the first worker dies
    return {"port": 4711}

@pytest.mark.parametrize("number", range(12))
def test_it(once_per_session, number):
    assert once_per_session("database", make, timeout=60) == {"port": 4711}
    with open("seen", "a") as seen:
        seen.write(f"{os.getpid()}\\n")
"""


WITH_TEARDOWN = """
import os, pathlib, signal, time
import pytest

def note(word):
    with open("notes", "a") as notes:
        notes.write(f"{word}\\n")

def one_has_died():
    if not pathlib.Path("killed").exists():
        return False
    threads = pathlib.Path("/proc") / pathlib.Path("killed").read_text() / "task"
    try:  # the last of them closes its files
        states = [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads.iterdir()]
        return states in ([], ["Z"], ["X"])
    except OSError:
        return True

@pytest.fixture(scope="session")
def database(once_per_session):
    port = once_per_session("database", lambda: note("made") or 4711, teardown=lambda port: note(f"torn {port}"))
    pathlib.Path(f"has-it-{os.getpid()}").touch()
    while len(list(pathlib.Path().glob("has-it-*"))) < int(os.environ["PYTEST_XDIST_WORKER_COUNT"]):
        time.sleep(0.001)  # one that asked only when the others are over would have it made again
    yield port
    while not one_has_died():
        time.sleep(0.001)  # if the others were over by then, nobody would tear down

@pytest.mark.parametrize("number", range(12))
def test_it(database, number):
    if number == 5:
        pathlib.Path("about-to-be").write_text(str(os.getpid()))
        os.rename("about-to-be", "killed")
        os.kill(os.getpid(), signal.SIGKILL)
    note("tested")
"""


def test_the_plugin_is_found_by_its_entry_point() -> None:
    (found,) = importlib.metadata.entry_points(group="pytest11", name="holdfast")
    assert found.value == "holdfast.pytest"


def session(directory: Path, tests: str, *words: object) -> str:
    """The output of a separate pytest session."""
    (directory / "test_it.py").write_text(tests)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "HOLDFAST"))}
    command = ["-m", "pytest", "-q", *words, "-p", "xdist", "-p", "holdfast.pytest", "--basetemp", directory / "temp"]
    env = {**plain, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the plugins of this environment cost more than the test
    done = subprocess.run([sys.executable, *command], cwd=directory, env=env, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_a_shared_value_is_made_once_more_if_its_worker_dies(tmp_path: Path) -> None:
    """OP1, OP2."""
    said = session(tmp_path, TESTS, "-n", "2")
    assert "1 failed, 11 passed" in said, said
    assert len((tmp_path / "calls").read_text().split()) == 2
    assert len((tmp_path / "seen").read_text().split()) == 11


@pytest.mark.parametrize("workers", [2, 3])
def test_each_shared_value_is_torn_down_once_although_a_worker_with_it_is_killed(tmp_path: Path, workers: int) -> None:
    """OP4; OP5 if xdist replaces that worker only after the others have ended."""
    said = session(tmp_path, WITH_TEARDOWN, "-n", str(workers))
    assert "1 failed, 11 passed" in said, said
    notes = (tmp_path / "notes").read_text()
    assert re.fullmatch("(made\n(tested\n)+torn 4711\n){1,2}", notes), notes
    assert notes.count("tested") == 11
