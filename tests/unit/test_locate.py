"""The path of the lock file, by the rules of each protocol: programs that use different paths do not exclude each
other."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from holdfast import InvalidPath, Lock, Semaphore
from holdfast.engines.file.paths import locate
from holdfast.protocols import get


@pytest.fixture
def tree(disk: Path) -> Path:
    """`real/` with a file named like a lock, and links to both."""
    (disk / "real" / "deep").mkdir(parents=True)
    (disk / "link").symlink_to("real")
    (disk / "deep").symlink_to("real/deep")
    (disk / "to-file").symlink_to("real/file")
    (disk / "dangling").symlink_to("real/nothing")
    (disk / "real" / "file").write_text("")
    return Path(os.path.realpath(disk))


PLACES = [
    ("sema", "link/l", "link/l"),
    ("sema", "deep/../l", "deep/../l"),
    ("sema", "./real//./l", "real/l"),
    ("flock", "link/./l", "link/l"),
    ("semats", "link/l", "real/l"),
    ("semats", "to-file", "real/file"),
    ("semats", "dangling", "real/nothing"),
    ("sidecar", "link/state.json", "real/state.json.lock"),
    ("sidecar", "to-file", "to-file.lock"),
    ("sidecar", "deep/../state.json", "state.json.lock"),
    ("sidecar", "missing/state.json", "missing/state.json.lock"),
    ("beads", "link", "link/.exclusive-lock"),
    ("beads", "link/", "link/.exclusive-lock"),
    ("beads", "./link//", "link/.exclusive-lock"),
    ("beads", "link/.", "link/.exclusive-lock"),
    ("flock", "link/l", "link/l"),
]


@pytest.mark.parametrize(("protocol", "named", "there"), PLACES)
def test_the_lock_file_is_looked_for_where_each_protocol_says(
    protocol: str, named: str, there: str, tree: Path
) -> None:
    assert locate(f"{tree}/{named}", get(protocol))[1] == f"{tree}/{there}"


@pytest.mark.parametrize("named", ["a/../l", "../l", "a/.."])
def test_a_path_that_semats_refuses_is_refused(named: str, tree: Path) -> None:
    with pytest.raises(InvalidPath):
        Lock(tree / "real" / named, protocol="semats")
    Lock(tree / "real" / "l..lock", protocol="semats")


@pytest.mark.parametrize("protocol", ["semats", "sidecar", "beads"])
def test_a_lock_sent_elsewhere_is_the_same(protocol: str, tree: Path) -> None:
    lock = Lock(tree / "link", protocol=protocol)
    assert pickle.loads(pickle.dumps(lock)).path == lock.path


def test_the_slots_of_a_semaphore_are_where_every_protocol_looks(tree: Path) -> None:
    semaphore = Semaphore(tree / "gpu", 2, protocol="sidecar")
    with semaphore as hold:
        assert hold.path == f"{tree}/gpu.0.lock"
    with Semaphore(f"{tree}/./gpu", 2) as hold:
        assert hold.path == f"{tree}/gpu.0.lock"
    with pytest.raises(ValueError, match="one lock for each directory"):
        Semaphore(tree / "gpu", 2, protocol="beads")


@pytest.mark.parametrize(
    ("protocol", "option"), [("sema", "payload"), ("sidecar", "holder"), ("beads", "payload"), ("flock", "version")]
)
def test_an_option_of_another_protocol_is_refused(protocol: str, option: str, tree: Path) -> None:
    with pytest.raises(ValueError, match=f"{option} is not an option of the {protocol} protocol"):
        Lock(tree / "l", protocol=protocol, **{option: "x"})  # type: ignore[arg-type]
