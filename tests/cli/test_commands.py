"""Each command as a person starts it: in an interpreter that has imported nothing, in a pipe and on a terminal.

Most other tests fork their commands from a process that has imported everything (warm.py). These find a module that
does not import all that it uses, and a command that cannot start or end by itself."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cli.support import HOLDFAST, PATIENCE, Started, World
from holdfast.cli.completion import commands

CALLS: dict[str, tuple[list[str], int, str]] = {
    "run": (["other", "--", "echo", "it ran"], 0, "it ran"),
    "try": (["--no-keeper", "other"], 0, ""),
    "acquire": (["-n", "the.lock"], 1, "held by process"),
    "release": (["other"], 0, ""),
    "wait": (["-w", "0.01", "the.lock"], 1, "still held by process"),
    "status": (["the.lock"], 1, "state     held"),
    "ls": (["."], 0, "the.lock"),
    "watch": (["."], -signal.SIGTERM, '"first_look": true'),
    "top": (["--once", "."], 0, "1 held"),
    "timeline": (["events"], 0, "events.html"),
    "doctor": (["."], 0, "exclusive creation"),
    "clean": (["."], 0, "nothing to remove"),
    "break": (["--id", "0123456789ab", "the.lock"], 1, "was not removed"),
    "reap": (["."], -signal.SIGTERM, "watching"),
    "protocols": ([], 0, "-p flock"),
    "postgresql": (["init", "postgresql://127.0.0.1:1/none"], 3, "cannot be reached"),
    "completion": (["bash"], 0, "-F _holdfast holdfast"),
    "beads check": (["-j", "."], 0, '"result": "proceed"'),
    "beads daemon": ([".", "--", "echo", "it ran"], -signal.SIGHUP, "it ran"),
    "sema": (["status", "the.lock"], 1, "LOCKED"),
    "semats": (["status", "the.lock"], 0, "locked: true"),
}
"""What follows it, how it ends, and what it says among other things; one that a signal ends does so when it has."""
EVENT = {"kind": "acquired", "time": 1, "path": "/l", "protocol": "sema", "pid": 1, "host": "h", "waited": 0.0}


def until(started: Started, wanted: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while wanted not in started.text.decode():
        assert started._more(deadline), f"no {wanted!r}, but {started.text!r}"


def test_every_command_is_tested() -> None:
    assert [*CALLS] == [command.name for command in commands()]


@pytest.mark.parametrize("place", ["pipe", "terminal"])
@pytest.mark.parametrize("name", CALLS)
def test_every_command_imports_all_that_it_uses(world: World, tmp_path: Path, held: int, name: str, place: str) -> None:
    if name == "postgresql":
        pytest.importorskip("psycopg")
    (tmp_path / "events").write_text(json.dumps(EVENT))
    words, status, wanted = CALLS[name]
    command = [*HOLDFAST, *name.split(), *words]
    if place == "terminal":
        started = world.terminal(command, real=True)
    else:
        started = world.start(command, real=True, stderr=subprocess.STDOUT)
    until(started, wanted)
    if status < 0:
        started.signal(-status)
    assert "Traceback" not in started.rest()
    assert started.wait() == status
