"""What is made once for all workers of a test session (holdfast/pytest.py); a session with workers: tests/packaging."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast import AcquireTimeout, Lock
from holdfast.pytest import OncePerSession


def test_the_first_worker_makes_it_and_the_others_get_it(tmp_path: Path) -> None:
    """OP2: those that come meanwhile wait for it."""
    calls: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def make() -> dict[str, int]:
        calls.append("made")
        begun.set()
        assert go_on.wait(20)
        return {"port": 4711}

    results: list[dict[str, int]] = []
    workers = [OncePerSession(tmp_path, f"gw{number}") for number in range(3)]
    threads = [threading.Thread(target=lambda w=w: results.append(w("db", make, timeout=20))) for w in workers]
    for thread in threads:
        thread.start()
    assert begun.wait(20)
    with pytest.raises(AcquireTimeout, match="once_per_session: db"):
        OncePerSession(tmp_path, "gw3")("db", make, timeout=0)
    go_on.set()
    for thread in threads:
        thread.join()
    assert (calls, results) == (["made"], [{"port": 4711}] * 3)
    assert workers[0]("db", make) is workers[0]("db", make)
    assert OncePerSession(tmp_path, "gw0")("another", lambda: 1) == 1


def test_a_worker_that_died_while_it_wrote_leaves_no_result(tmp_path: Path) -> None:
    """OP1."""
    code = """
import os, sys, pathlib, holdfast.pytest as plugin
plugin.os.replace = lambda *paths: os._exit(9)
plugin.OncePerSession(pathlib.Path(sys.argv[1]), "gw0")("db", lambda: "half")
"""
    assert subprocess.run([sys.executable, "-c", code, tmp_path]).returncode == 9
    assert OncePerSession(tmp_path, "gw1")("db", lambda: "whole", timeout=20) == "whole"
    assert OncePerSession(tmp_path, "gw2")("db", lambda: "again", timeout=20) == "whole"
    assert not list(tmp_path.glob("*.unfinished"))


def test_a_failure_is_told_to_the_others_and_not_repeated(tmp_path: Path) -> None:
    """OP3."""
    with pytest.raises(ZeroDivisionError):
        OncePerSession(tmp_path, "gw0")("db", lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="'db' could not be made by the worker gw0: ZeroDivisionError: integer div"):
        OncePerSession(tmp_path, "gw1")("db", lambda: 1)


def test_an_interruption_is_no_failure(tmp_path: Path) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        OncePerSession(tmp_path, "gw0")("db", interrupted)
    assert OncePerSession(tmp_path, "gw1")("db", lambda: 1) == 1


def test_what_cannot_be_pickled_is_refused_with_workers_only(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="other workers cannot get 'db': it cannot be pickled"):
        OncePerSession(tmp_path, "gw0")("db", lambda: lambda: 1)
    made = OncePerSession(None, "")("db", lambda: lambda: 1)
    assert made() == 1
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".lock"] == []
    assert not Lock(tmp_path / "x").status().locked


def test_the_plugin_is_offered_and_loads_no_more_than_the_locks(tmp_path: Path) -> None:
    code = "import sys, pytest, holdfast.pytest; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    heavy = {"holdfast.cli", "holdfast.aio", "holdfast.engines.etcd", "holdfast.engines.postgresql"}
    assert not heavy.intersection(done.stdout.split())
