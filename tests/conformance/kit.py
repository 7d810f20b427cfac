"""The conformance kit, as its tests run it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.conformance.__main__ import main

SAMPLES = Path(__file__).with_name("samples")
KIT = [sys.executable, "-m", "holdfast.testing.conformance"]
DEPENDS_ON_THE_MACHINE = {
    "an-unreadable-lock-is-respected",
    "an-old-lock-of-a-living-process-is-respected",
    "a-lock-of-a-living-process-is-respected-however-old",
}
"""Scenarios that are skipped if root may read everything, or if no process is older than an hour."""

Results = tuple[int, dict[str, dict[str, Any]]]


class Kit:
    """The kit, in a directory for temporary files of its own, which is empty afterwards."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.env = {**os.environ, "TMPDIR": str(temporary)}

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start the command."""
        return subprocess.Popen(
            [*KIT, *map(str, arguments)],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        try:
            said, complaint = process.communicate(timeout=120)
        finally:
            process.kill()
            process.wait()
        assert not list(self.temporary.iterdir()), "left behind"
        return process.returncode, said, complaint

    def run(self, *arguments: object) -> tuple[int, str, str]:
        """Run the command in this process: it takes longer to start than most answers take."""
        said, complaint = io.StringIO(), io.StringIO()
        with self._in_here(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(complaint):
            try:
                status = main([*map(str, arguments)])
            except SystemExit as ended:
                status = int(str(ended.code))
        assert not list(self.temporary.iterdir()), "left behind"
        return status, said.getvalue(), complaint.getvalue()

    @contextlib.contextmanager
    def _in_here(self) -> Iterator[None]:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", str(self.temporary))
            patch.setattr(tempfile, "tempdir", str(self.temporary))
            try:
                yield
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)

    def results(self, protocol: str, *arguments: object) -> Results:
        return results(protocol, *self.run("--protocol", protocol, "--json", *arguments))


def results(protocol: str, status: int, said: str, complaint: str) -> Results:
    """The exit status, and the result of each scenario."""
    assert not complaint
    found = json.loads(said)
    assert found["protocol"] == protocol
    results = {result["name"]: result for result in found["results"]}
    for kind in ("passed", "failed", "skipped"):
        assert found[kind] == sum(result["outcome"] == kind for result in results.values())
    return status, results


def failures(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {
        name: f"expected {result['expected']}; {result['happened']}; {result['found']}"
        for name, result in results.items()
        if result["outcome"] == "failed"
    }


def skipped(results: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, result in results.items() if result["outcome"] == "skipped"}


def processes_of(script: Path) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and str(script).encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                found.append(int(name))
        except OSError:
            pass
    return found
