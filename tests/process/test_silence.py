"""A filesystem whose server does not answer: FUSE with a stopped process (_drivers/apart.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from process.filesystem import UNABLE, Unable, command

HERE = Path(__file__).parent


def test_a_filesystem_whose_process_is_stopped_blocks_no_call(shm: Path) -> None:
    if any(os.environ.get(name) for name in ("HOLDFAST_OS", "HOLDFAST_WITHOUT", "HOLDFAST_TEST_PLACE")):
        pytest.skip("says how it is with all that Linux can, on a filesystem of its own")
    try:
        words = command("fuse", [sys.executable, str(HERE / "silent_filesystem.py"), str(shm)])
    except Unable as why:
        pytest.skip(f"no fuse here: {why}")
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    if done.returncode == UNABLE:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    rows = {name: (float(took), text) for name, took, text in (line.split("|") for line in done.stdout.splitlines())}
    for name in ("acquire", "wait", "task"):
        assert 1 <= rows[name][0] < 4.5, rows
        assert "(fuse, " in rows[name][1]
        assert "has not answered" in rows[name][1]
    looks = ["status", "ensure_held", "lost", "making semats", "making sidecar", "sema lock_info", "sema is_locked"]
    looks += ["semats status", "semats clean_stale", "semats release", "beads release", "beads check"]
    for name in looks:
        assert 5 <= rows[name][0] < 9.5, rows
        assert "has not answered" in rows[name][1]
    for name, status, seconds in (
        ("run", "75", 1), ("status", "3", 5), ("ls", "3", 5), ("release", "3", 5),
        ("sema status", "3", 5), ("sema release", "3", 5), ("sema wait", "3", 1), ("break", "3", 5), ("watch", "3", 5),
        ("reap", "3", 5), ("run of two", "75", 6), ("wait", "3", 1),
        ("ls -r", "3", 10), ("clean", "3", 5), ("doctor", "3", 5), ("timeline", "3", 5), ("timeline -o", "3", 5),
        ("run --record", "0", 5),
    ):  # fmt: skip
        took, said = rows[f"command {name}"]
        # Not for ever. A process that stops and wakes a thread lets it seem to run once (AP6).
        assert seconds <= took < seconds + 20, rows
        assert said.startswith(f"{status} ")
        assert "has not answered" in said
    assert rows["patient"][1].startswith("holdfast: waiting for ")
    assert re.search(r" has not answered for \d+\.\d s", rows["patient"][1])
    assert rows["local"][1] == "acquired"
    assert rows["left"][1] == "[]"
