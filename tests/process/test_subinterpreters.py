"""Isolated subinterpreters: no ctypes before Python 3.13, no daemon threads. Locks work there, and waits poll."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast import Lock

ISOLATED = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
path, source = sys.argv[1:]
code = f'''
import logging, sys
logging.disable()
sys.path[:] = {[source, *sys.path]!r}
import holdfast
try:
    lock = holdfast.Lock({path!r})
    try:
        lock.acquire(timeout=0.1)
    except holdfast.AcquireTimeout as error:
        print("held by", error.holder.pid, flush=True)
    sys.stdin.readline()
    lock.acquire(timeout=30).release()
    print("released", flush=True)
except BaseException as error:
    print(repr(error), flush=True)
'''
interpreters.run_string(interpreters.create(), code)
"""


def test_a_contended_lock_works_in_an_isolated_subinterpreter(tmp_path: Path) -> None:
    with Lock(tmp_path / "l") as hold:
        words = [sys.executable, "-c", ISOLATED, str(tmp_path / "l"), str(Path(holdfast.__file__).parent.parent)]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == f"held by {hold.record.pid}\n"
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "released\n"
    child.communicate(timeout=30)
    assert [*tmp_path.iterdir()] == []


WITHOUT = """
import sys
sys.modules["ctypes"] = sys.modules["_ctypes"] = None  # as where it cannot be loaded: ImportError
import holdfast
lock = holdfast.Lock(sys.argv[1])
print(lock.try_acquire(), flush=True)
with lock:
    print("in", flush=True)
"""


@pytest.mark.parametrize("without", ["", "proc"])
def test_a_wait_works_without_ctypes(tmp_path: Path, without: str) -> None:
    """So does an acquisition where an unnamed file cannot be linked through `/proc`."""
    import os

    hold = Lock(tmp_path / "l").acquire()
    child = subprocess.Popen(
        [sys.executable, "-c", WITHOUT, tmp_path / "l"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOLDFAST_WITHOUT": without},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "None\n"
    threading.Timer(0.05, hold.release).start()
    out, complaint = child.communicate(timeout=30)
    assert (child.returncode, out, complaint) == (0, "in\n", "")
    assert [*tmp_path.iterdir()] == []
