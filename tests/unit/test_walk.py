"""Walks through trees with hardly any lock files (scan.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast._admin import kinds
from holdfast._admin.detect import is_called_otherwise
from holdfast._admin.found import Found, Unreadable
from holdfast._admin.scan import Survey, walk
from holdfast._platform.proc_locks import ProcLocks
from unit.stepping import Contend, Stepped, sema_record

Environments = Callable[..., Stepped]
RECORD = sema_record(4294967295, 9e9)


def found_in(env: Stepped, top: Path) -> list[str]:
    every = list(Survey(env).tree(str(top)))
    assert not [one for one in every if isinstance(one, Unreadable)]
    return [os.path.relpath(one.status.path, top) for one in every if isinstance(one, Found)]


def scanned(env: Stepped) -> list[str]:
    """The last names of directories listed from now on."""
    listed: list[str] = []
    env.before["scan"] = lambda path, _kept: listed.append(os.path.basename(path))
    return listed


def test_links_are_not_followed_and_inventions_of_the_kernel_not_entered(
    disk: Path, environments: Environments
) -> None:
    """E4: nor is a path that was a directory when its parent was listed, and is a link by now."""
    for name in ("here", "proc", "swapped"):
        (disk / name).mkdir()
        (disk / name / "l").write_bytes(RECORD)
    (disk / "link").symlink_to("here")
    (disk / "round").symlink_to(".")

    class Tables(ProcLocks):
        def is_artificial(self, device: int) -> bool:
            return device == 99

    def stat(path: str) -> Any:
        found = os.lstat(path)
        return SimpleNamespace(st_mode=found.st_mode, st_dev=99) if path.endswith("/proc") else found

    env = environments()
    env.instead["stat"] = stat
    listed = scanned(env)

    def swap(where: str) -> None:
        if where.endswith("/here"):
            (disk / "swapped").replace(disk / "z")
            (disk / "swapped").symlink_to("z")

    steps = list(walk(env, Tables(env.inspect), str(disk), swap))
    assert [step[:2] for step in steps if not isinstance(step, Unreadable)] == [(f"{disk}/here", "l")]
    assert listed == [disk.name, "here"]


def test_a_directory_that_vanishes_is_no_error_but_a_missing_one_is(disk: Path, environments: Environments) -> None:
    """E4: it vanished because the walk is slow, but a path given by name must exist."""
    (disk / "a").mkdir()
    (disk / "b").mkdir()
    (disk / "b" / "l").write_bytes(RECORD)
    env = environments()
    steps = walk(env, ProcLocks(env.inspect), str(disk), lambda where: where.endswith("/a") and os.rmdir(where))
    assert [step[1] for step in steps if not isinstance(step, Unreadable)] == ["l"]
    (missing,) = walk(env, ProcLocks(env.inspect), f"{disk}/c")
    assert isinstance(missing, Unreadable)
    assert isinstance(missing.error, FileNotFoundError)


def test_locks_are_found_in_the_order_of_their_paths(disk: Path, environments: Environments) -> None:
    """E5: also under names with characters that sort before the `/`."""
    for path in ("a", "a-", "a!b", "a.d", "a0", "b"):
        (disk / path).mkdir()
        for name in ("z", "-", "y.lock", ".h"):
            (disk / path / name).write_bytes(RECORD)
    for name in ("a b", "a.lock", "a-.lock", "aa", "\udcff"):
        (disk / name).write_bytes(RECORD)
    env = environments()
    every = [one.status.path for one in Survey(env).tree(str(disk)) if isinstance(one, Found)]
    assert len(every) == 6 * 4 + 5
    assert every == sorted(every)
    flat = [one.status.path for one in Survey(env).directory(str(disk)) if isinstance(one, Found)]
    assert flat == sorted(flat)


def test_locks_are_reported_before_the_whole_tree_is_listed(disk: Path, environments: Environments) -> None:
    """E5: nothing further down is listed before its turn."""
    for name in ("a", "b", "c"):
        (disk / name).mkdir()
        (disk / name / "l").write_bytes(RECORD)
    env = environments()
    listed = scanned(env)
    found = Survey(env).tree(str(disk))
    for name in ("a", "b", "c"):
        one = next(found)
        assert isinstance(one, Found)
        assert one.status.path == f"{disk}/{name}/l"
        assert listed[-1] == name
        assert env.open_descriptors() == set()


def test_the_files_of_a_source_tree_are_not_asked_about(disk: Path, environments: Environments) -> None:
    """E6: files with names of texts or programs are neither opened nor asked about, however many there are."""
    for number in range(50):
        (disk / f"f{number}.py").write_bytes(b"x = 1\n")
    (disk / "record.txt").write_bytes(RECORD)
    env = environments()
    assert found_in(env, disk) == []
    assert (env.steps.count("stat"), env.steps.count("scan")) == (1, 1)
    assert "open_existing" not in env.steps
    every = [one for one in Survey(env).directory(str(disk)) if isinstance(one, Found)]
    assert [os.path.basename(one.status.path) for one in every] == ["record.txt"], "asked about alone, it is looked at"


@pytest.mark.parametrize("numbers", [True, False])
def test_a_held_lock_is_found_whatever_its_name(
    numbers: bool, disk: Path, contend: Contend, environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E6: the kernel's table shows it; where inode numbers are no use, each file is looked at."""
    (disk / "deep").mkdir()
    contend(disk / "deep" / "data.json").get()
    (disk / "deep" / "db.sqlite").write_bytes(b"data")
    contend(disk / "deep" / "db.sqlite", protocol="flock").get()
    (disk / "deep" / "other.json").write_bytes(b"{}")
    if not numbers:

        def none(_self: ProcLocks, _device: int) -> Container[int] | None:
            return None

        monkeypatch.setattr(ProcLocks, "locked_numbers", none)
    assert found_in(environments(), disk) == ["deep/data.json", "deep/db.sqlite"]


def test_each_file_is_looked_at_where_services_keep_their_locks(
    disk: Path, environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E8: under any name. Elsewhere, such names are passed over (E6)."""
    monkeypatch.setattr(kinds, "_RUN_LOCK", (str(disk / "locks"),))
    for where in ("locks", "locks/deep", "locks-too"):
        (disk / where).mkdir()
        (disk / where / "modem.conf").write_text(f"{os.getpid():10d}\n")
    assert found_in(environments(), disk) == ["locks/deep/modem.conf", "locks/modem.conf"]


def test_a_large_or_read_only_file_is_not_read(disk: Path, contend: Contend, environments: Environments) -> None:
    """E6: unless its name is a lock file's, or the kernel shows that it is locked."""
    for name in ("large", "large.lock", "large.held"):
        (disk / name).write_bytes(RECORD + b"#" * 70_000 + b"\n")
    for name in ("object", "object.lock"):
        (disk / name).write_bytes(RECORD)
        (disk / name).chmod(0o444)
    (disk / "large.held").write_bytes(b"x" * 70_000)
    contend(disk / "large.held", protocol="flock").get()
    env = environments()
    assert found_in(env, disk) == ["large.held", "large.lock", "object.lock"]
    assert env.steps.count("open_existing") == 3


def test_no_name_of_a_lock_is_passed_over() -> None:
    """E6: names that lock files have, and names without an ending."""
    names = (
        "l",
        "l.lock",
        ".exclusive-lock",
        "deploy",
        "app.pid",
        "x.lck",
        "c",
        "py",
        "v1.2",
        ".lock",
        "job.json.lock",
    )
    assert [name for name in names if is_called_otherwise(name)] == []
