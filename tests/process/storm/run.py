"""Running a storm of all kinds from a test, and judging its result."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import abilities
from process.foreign import node
from process.journal import Outcome, read_journal

CROWD = Path(__file__).with_name("crowd.py")
COMMON = ("sync", "sync", "sync", "threads", "asyncio", "uvloop", "run")
KINDS = {
    "sema": (*COMMON, "shell", "face", "drop-in sema", "stand-in"),
    "semats": (*COMMON, "shell", "face", "drop-in semats", "stand-in"),
    "sidecar": (*COMMON, "shell", "face", "fs-safe 0.3.0", "fs-safe 0.21.0"),
    "beads": (*COMMON, "shell", "face"),
    "flock": (*COMMON, "flock(1)"),
    "ofd": (*COMMON, "lockf", "flock(1) --fcntl"),
    # Only the kernel's tables tell `release` which keeper has a lock without a record.
    "proper-lockfile": (*COMMON, *(["shell"] if abilities.has("linux") else []), "proper-lockfile"),
}
PRIVILEGED = ("container", "other clock")
LOOSE = "RHFDNMSPL"
"""Letters of kinds in which a process other than the one that the lock file names is inside."""

STAYS = ("flock", "ofd", "proper-lockfile")
"""Protocols with a file that stays, whose lock does not say from whom it was taken over."""

LONG = 20.0
"""Seconds in which contenders of each kind get in, even if some are killed before they do."""

PASS_THROUGH = """
import sys
from holdfast import Lock
path, protocol = sys.argv[1:]
with Lock(path, protocol=protocol, timeout=20):
    pass
"""


@dataclass
class Result:
    told: dict[str, Any]
    outcome: Outcome
    missing: dict[str, str]

    def line(self, protocol: str) -> str:
        told, seen = self.told, self.outcome
        kinds = ", ".join(
            f"{told['by_kind'][k]} {n}" for k, n in sorted(seen.by_letter.items()) if k in told["by_kind"]
        )
        missing = "".join(f"; without {name}: {why}" for name, why in self.missing.items())
        return (
            f"{protocol}: {len(told['killed'])} kills, {told['stops']} stops ({told['kept']} inside), "
            f"{seen.done} increments ({kinds}), {seen.unfinished} killed inside, {seen.recovered} takeovers, "
            f"{len(seen.overlaps)} overlaps, {len(told['robbed'])} robbed{missing}"
        )


def storm(place: Path, state: Path, protocol: str, seconds: float, kinds: tuple[str, ...] = ()) -> Result:
    """Run a storm; AssertionError for whatever is wrong with it."""
    locks = place / "locks"
    for directory in (locks, state):
        directory.mkdir()
    path = locks if protocol == "beads" else locks / "counter.lock"
    if protocol in STAYS:
        path.touch()
    wanted, modules, missing = available(kinds or KINDS[protocol] + PRIVILEGED)
    plan = {
        "path": str(path),
        "protocol": protocol,
        "state": str(state),
        "seconds": seconds,
        "kinds": wanted,
        "modules": modules,
    }
    told = play(plan, seconds + 120)
    outcome = read_journal(state, set(told["killed"]), told=protocol not in STAYS, loose=LOOSE)
    result = Result(told, outcome, missing)
    print(result.line(protocol))
    judge(result)
    if seconds >= LONG:
        never = {told["by_kind"][letter] for letter in told["by_kind"] if letter not in outcome.by_letter}
        assert not never, f"never got in: {never}"
    # Leftovers of the last killed process are gone after the next one has been and left. Not before: behind
    # tickets of the killed, a holder has one of its own.
    command = [sys.executable, "-c", PASS_THROUGH, str(path), protocol]
    passed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert passed.returncode == 0, passed.stderr
    assert os.listdir(locks) == (["counter.lock"] if protocol in STAYS else [])
    return result


def judge(result: Result) -> None:
    told, seen = result.told, result.outcome
    wrong = {
        "overlaps": seen.overlaps,
        "entered while its holder was stopped": told["robbed"],
        "failed": told["failed"],
        "left": told["left"],
        "mistakes": seen.mistakes,
    }
    assert not any(wrong.values()), {what: found[:10] for what, found in wrong.items() if found}
    assert seen.done + seen.unfinished >= seen.counter >= seen.done > 0


def play(plan: dict[str, Any], limit: float) -> dict[str, Any]:
    process = subprocess.Popen(
        [sys.executable, str(CROWD), json.dumps(plan)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=limit)
    finally:
        end_session(process.pid)
        process.wait()
        process.stdout.close()
    assert process.returncode == 0
    told: dict[str, Any] = json.loads(out)
    return told


def end_session(leader: int) -> None:
    """Kill all processes of a session, in all its groups."""
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and os.getsid(int(name)) == leader:
                os.kill(int(name), signal.SIGKILL)
        except ProcessLookupError:
            pass


def available(kinds: tuple[str, ...]) -> tuple[list[str], dict[str, tuple[str, str]], dict[str, str]]:
    """The kinds that are possible here, the modules for Node, and why the others are not."""
    found: list[str] = []
    modules: dict[str, tuple[str, str]] = {}
    missing: dict[str, str] = {}
    for kind in kinds:
        try:
            if kind in PRIVILEGED and os.geteuid() != 0:
                raise node.Missing("needs root")
            if kind in PRIVILEGED and shutil.which("unshare") is None:
                raise node.Missing("unshare(1) is not installed")
            if kind == "container" and abilities.lacking("unnamed"):
                raise node.Missing("the temporary name that a killed one leaves is for another of its own to remove")
            if kind.startswith("flock(1)") and shutil.which("flock") is None:
                raise node.Missing("flock(1) is not installed")
            if kind.endswith("--fcntl") and "--fcntl" not in subprocess.getoutput("flock --help"):
                raise node.Missing("this flock(1) has no --fcntl: that of util-linux 2.41 has")
            if kind == "run" and not hasattr(os, "posix_spawnp"):
                raise node.Missing("holdfast run needs posix_spawnp, which PyPy lacks")
            if kind == "uvloop" and find_spec("uvloop") is None:
                raise node.Missing("uvloop is not installed")
            if kind.startswith("fs-safe"):
                modules[kind] = (node.node(), node.fs_safe(kind.split()[1]))
            if kind == "proper-lockfile":
                modules[kind] = (node.node(), node.proper_lockfile())
            found.append(kind)
        except node.Missing as why:
            missing[kind] = str(why)
    return found, modules, missing
