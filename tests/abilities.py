"""Abilities that the tests may presume of the environment of this run (HOLDFAST_OS, HOLDFAST_WITHOUT).

    @pytest.mark.needs("events")     skips the test if there are none, and says who took them away
    abilities.need("flock")          the same, in the midst of a fixture or of a test
    abilities.has("flock")           for a test that can do with less
    abilities.need_own_device(path)  skips if the kernel's tables name files by another device (btrfs, overlays)

A test that gives its processes an environment of their own needs nothing of this.
"""

from __future__ import annotations

import os
import sys

import pytest

KNOWN = {
    "unnamed": "unnamed files",
    "proc": "links through /proc",
    "link": "hard links",
    "flock": "kernel locks, and with them proof of death, a queue and tickets",
    "events": "events of files",
    "linux": "what only the environment of Linux knows: boot id, start times, tables of the kernel",
}
_LACKS = {
    "generic": frozenset({"unnamed", "proc", "flock", "events", "linux"}),
    "posix": frozenset({"unnamed", "proc", "events", "linux"}),
    "windows": frozenset({"proc", "linux"}),
}
"""Abilities that an environment lacks, or that a test cannot see there, by the value of HOLDFAST_OS."""
_USUAL = {"linux": "linux", "win32": "windows"}

LINUX = {"HOLDFAST_OS": "", "HOLDFAST_WITHOUT": ""}
"""Variables for a process that is to have all that Linux can, whatever environment this run has."""


def lacking(ability: str) -> str:
    """Why this run lacks the ability; empty if it has it."""
    what = KNOWN[ability]
    chosen = os.environ.get("HOLDFAST_OS") or _USUAL.get(sys.platform, "posix")
    if ability in _LACKS.get(chosen, ()):
        return f"needs {ability} ({what}): HOLDFAST_OS={chosen} has none"
    if ability in os.environ.get("HOLDFAST_WITHOUT", "").split(","):
        return f"needs {ability} ({what}): HOLDFAST_WITHOUT takes it away"
    return ""


def has(ability: str) -> bool:
    return not lacking(ability)


def need(*abilities: str) -> None:
    """Skip the test if one of these is missing."""
    for ability in abilities:
        if why := lacking(ability):
            pytest.skip(why)


def need_own_device(path: object) -> None:
    """Skip the test if the kernel's tables name a file by another device than `st_dev`: an observer then has to find a
    process that has the file open and may be examined (proc_locks.py, W2)."""
    device = os.stat(str(path)).st_dev
    with open("/proc/self/mountinfo") as mounts:
        if not any(f" {os.major(device)}:{os.minor(device)} " in line for line in mounts):
            pytest.skip("needs files that have the device of their mount: on btrfs and some overlays they have not")


def skip_the_unable(items: list[pytest.Function]) -> None:
    """Skip each test that `needs` a missing ability, with a reason that names it."""
    for item in items:
        for marker in item.iter_markers("needs"):
            for ability in marker.args:
                if why := lacking(ability):
                    item.add_marker(pytest.mark.skip(reason=why))
