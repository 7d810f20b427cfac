"""The machine of a run, for its report: processor, kernel, filesystems, versions; and its load meanwhile.

The report names neither the machine nor a path on it.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Reading:
    """Use of the processors so far, in seconds; `own` is that of this process and of those it has reaped."""

    at: float
    busy: float
    stolen: float
    own: float
    load: float

    @classmethod
    def now(cls) -> Reading:
        """A reading of this machine. Children that still run, and grandchildren that are not reaped, do not count."""
        tick = os.sysconf("SC_CLK_TCK")
        # user, nice, system, idle, iowait, irq, softirq, steal: proc(5)
        ticks = [int(word) / tick for word in _text(Path("/proc/stat")).partition("\n")[0].split()[1:9]]
        both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(
            time.monotonic(),
            sum(ticks[:3]) + sum(ticks[5:7]),
            ticks[7],
            sum(used.ru_utime + used.ru_stime for used in both),
            os.getloadavg()[0],
        )

    def since(self, before: Reading, cpus: int) -> dict[str, Any]:
        """The load at both ends, and the shares of all processors that this run, others, and the host of a virtual
        machine (stolen) had.

        Work of the kernel for no process in particular is among the others.
        """
        whole = max(1e-9, (self.at - before.at) * cpus)
        own = self.own - before.own
        return {
            "seconds": round(self.at - before.at, 1),
            "load": [before.load, self.load],
            "own": own / whole,
            # Two clocks with different ticks: a difference below nothing is their noise.
            "others": max(0.0, self.busy - before.busy - own) / whole,
            "stolen": (self.stolen - before.stolen) / whole,
        }


def meanwhile_line(found: dict[str, Any]) -> str:
    """The result of `Reading.since`, on one line."""
    begin, end = found["load"]
    shares = ", ".join(f"{name} {100 * found[name]:.0f} %" for name in ("own", "others", "stolen"))
    return f"meanwhile: load {begin:.2f} to {end:.2f}; processors: {shares}"


def machine_line() -> str:
    """Processor, kernel and load, on one line."""
    cpus, load = os.cpu_count() or 1, os.getloadavg()[0]
    busy = " (busy: expect long tails)" if load > cpus / 2 else ""
    return f"{processor()}, {cpus} CPUs, Linux {platform.release()}, load before the run {load:.2f}{busy}"


def processor() -> str:
    """The processor's model, as the kernel names it."""
    found = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def versions_of(packages: Iterable[str]) -> str:
    """The installed versions, in the order given, each once."""
    named = []
    for package in dict.fromkeys(packages):
        try:
            named.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            named.append(f"{package} (not installed)")
    return ", ".join(named)


def command_version(command: str) -> str:
    """The first line of `command --version`, or that it is not installed."""
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return f"{command} (not installed)"
    return done.stdout.partition("\n")[0].strip() or f"{command} (unknown version)"


def revision(directory: Path) -> str:
    """The commit of a working tree, with a mark if files in src/ differ from it; empty outside of one."""
    try:
        commit = _git(directory, "rev-parse", "--short=12", "HEAD")
        return f"{commit}, changed" if _git(directory, "status", "--porcelain", "--", "src") else commit
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(directory: Path, *words: str) -> str:
    command = ["git", "-C", str(directory), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def filesystem_of(path: Path) -> str:
    """The type of the filesystem that holds `path`, from the mount table; 'unknown' if it is not there."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    real, best, kind = os.path.realpath(path), "", "unknown"
    for line in _text(Path("/proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        number, mount_point = left.split()[2], left.split()[4].replace("\\040", " ")
        if number == wanted and os.path.commonpath([real, mount_point]) == mount_point and mount_point > best:
            best, kind = mount_point, right.split()[0]
    return kind


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
