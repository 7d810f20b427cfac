"""Formats on disk, and their changes that the reference permits: a record of a newer version counts as held."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast import Liveness, Lock
from holdfast.model import Marker

PROTOCOLS = ("sema", "semats", "sidecar", "beads")
HOLDER = """
import os, sys
from holdfast import Lock
for protocol in sys.argv[2:]:
    print(Lock(f"{sys.argv[1]}/{protocol}", protocol=protocol).acquire().path)
os._exit(0)
"""


def dead(place: Path) -> dict[str, Path]:
    """The lock files of a dead holder, by protocol."""
    (place / "beads").mkdir()
    command = [sys.executable, "-u", "-c", HOLDER, place, *PROTOCOLS]
    paths = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return dict(zip(PROTOCOLS, map(Path, paths), strict=True))


def of_next_version(data: bytes, age: int) -> bytes:
    newer = re.sub(rb'(holdfast(?:=|": "))2 ', rb"\g<1>3 ", data)
    assert newer != data
    newer = re.sub(rb"timestamp=(\d+)", lambda found: b"timestamp=%d" % (int(found[1]) - age), newer)
    return re.sub(rb'("(?:createdAt|started_at)": ")\d{4}', rb"\g<1>2020", newer) if age else newer


def of_version_1(data: bytes) -> bytes:
    """The record as it was before the marker had the time of acquisition."""
    older = re.sub(rb'(holdfast(?:=|": "))2 (.*) [0-9]+[.][0-9]{3} ', rb"\g<1>1 \g<2> ", data)
    assert older != data
    return older


def test_a_marker_of_version_1_proves_a_death_and_no_time_of_acquisition(
    disk: Path,
) -> None:
    for protocol, path in dead(disk).items():
        path.write_bytes(of_version_1(path.read_bytes()))
        lock = Lock(disk / protocol, protocol=protocol)
        status = lock.status()
        assert (status.stale, status.liveness, status.evidence.source) == (True, Liveness.DEAD, "guard"), protocol
        assert status.holder is not None
        assert status.record_age is not None
        known = protocol == "beads"  # no heartbeat changes its time
        assert (status.holder.since is not None, status.age is not None) == (known, known), protocol
        with lock.acquire(timeout=0) as hold:
            assert hold.recovered_from is not None


@pytest.mark.parametrize("moment", ["1", "x.000", "1.0001", "-1.000", "", "1.000.", "1e9.000", "9" * 13 + ".000"])
def test_a_marker_with_a_damaged_time_of_acquisition_is_not_decoded(moment: str) -> None:
    assert Marker.decode("2 g boot 1 space t1 1.000 host", 5) is not None
    assert Marker.decode(f"2 g boot 1 space t1 {moment} host", 5) is None


@pytest.mark.parametrize("age", [0, 100_000])
def test_a_marker_of_a_newer_version_is_no_proof_of_death(disk: Path, age: int) -> None:
    for protocol, path in dead(disk).items():
        path.write_bytes(of_next_version(path.read_bytes(), age))
        os.utime(path, (time.time() - age, time.time() - age))
        lock = Lock(disk / protocol, protocol=protocol)
        status = lock.status()
        assert (status.locked, status.stale, status.liveness) == (True, False, Liveness.UNKNOWN), protocol
        assert "newer version" in status.evidence.text
        if protocol != "sidecar" or not age:  # sidecar leaves a stale lock to its caller: LockStale
            assert lock.try_acquire() is None
