"""The plugin for pytest as it is installed: found by its entry point, in a session with workers of pytest-xdist."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

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


def test_it_is_found_by_its_entry_point() -> None:
    (found,) = importlib.metadata.entry_points(group="pytest11", name="holdfast")
    assert found.value == "holdfast.pytest"


def test_what_is_expensive_is_made_once_though_a_worker_dies_over_it(tmp_path: Path) -> None:
    """OP1, OP2."""
    (tmp_path / "test_it.py").write_text(TESTS)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "HOLDFAST"))}
    words = ["-m", "pytest", "-q", "-n", "2", "-p", "xdist", "-p", "holdfast.pytest", "--basetemp", tmp_path / "temp"]
    env = {**plain, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # those of this environment cost more than the test
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "1 failed, 11 passed" in done.stdout, done.stdout + done.stderr
    assert len((tmp_path / "calls").read_text().split()) == 2
    assert len((tmp_path / "seen").read_text().split()) == 11
