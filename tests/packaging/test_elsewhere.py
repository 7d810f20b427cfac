"""Systems that holdfast does not know, simulated by a Python without the modules and names that they lack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import abilities

SCRIPT = Path(__file__).parent / "elsewhere.py"


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_no_module_needs_a_module_or_function_that_another_system_lacks(system: str, disk: Path) -> None:
    """`fcntl`, `pwd`, `os.register_at_fork`, `select.poll` and so on: each module is imported, and locks are used."""
    command = [sys.executable, SCRIPT, system, disk]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **abilities.LINUX}, timeout=120)
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr
