"""Findings of `doctor` about a directory (probes.py, doctor.py)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast._admin.doctor import (
    GOOD,
    LEVELS,
    NOTE,
    UNUSABLE,
    WEAKER,
    of_abilities,
    of_leftovers,
    of_limits,
    of_process,
    worst,
)
from holdfast._admin.found import Unreadable
from holdfast._core.attempt import Refusal
from holdfast._platform import probes, procfs
from holdfast._platform.interface import Abilities, Limits
from holdfast._platform.storage import storage_of
from holdfast._platform.values import Storage, temporary_name
from holdfast.engines.file.paths import queue_of
from holdfast.model import marker_text
from unit.elsewhere import elsewhere, mount, needs_root
from unit.stepping import Contend, Stepped, sema_record
from unit.test_waiters import queued

Environments = Callable[..., Stepped]

BEST = Abilities(
    storage=Storage("ext4"), mode=0o755, uid=0, exclusive=True, unnamed=True, link_proc=True,
    link_empty=True, link=True, guard=True, guard_by_names=True, guard_by_mounts=(), events=True, sync=True, bits=True,
    ordered=True,
)  # fmt: skip
PLENTY = Limits(
    instances=1, most_instances=128, watches=1, most_watches=1000, descriptors=1024, most_descriptors=None,
    free_bytes=1 << 40, free_files=None,
)  # fmt: skip


def test_a_local_filesystem_is_called_good(place: Path, environments: Environments) -> None:
    can = probes.abilities(environments().real, str(place))
    if can.guard_by_mounts:
        pytest.skip(f"a guard here is not seen in {can.guard_by_mounts[0]}, which doctor notes")
    assert {finding.level for finding in of_abilities(can, os.geteuid())} == {GOOD}
    assert can.guard_by_mounts == ()
    assert (can.link_proc, can.link_empty is not None) == (True, True)


@pytest.mark.parametrize("without", [(), ("unnamed", "link", "flock", "events")])
def test_a_probe_leaves_nothing_and_touches_no_other_file(
    place: Path, environments: Environments, without: tuple[str, ...]
) -> None:
    """PB1, PB2: even when some of it fails."""
    (place / "mine").write_text("precious")

    def seen() -> dict[str, tuple[object, ...]]:
        found = {path.name: (path.stat(), path.read_bytes()) for path in place.iterdir()}
        # Without the access time: the look itself reads the file.
        return {name: (at.st_ino, at.st_mode, at.st_nlink, at.st_ctime_ns, data) for name, (at, data) in found.items()}

    before = seen()
    probes.abilities(environments(*without).real, str(place))
    probes.limits(str(place))
    assert seen() == before


@pytest.mark.parametrize("step", ["link", "guard", "guarded", "watch", "open_unnamed", "sync_directory"])
def test_a_probe_that_breaks_in_the_middle_leaves_nothing(
    disk: Path, environments: Environments, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """PB1: at any step."""
    env = environments().real

    def broken(*_args: Any, **_kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(env, step, broken)
    with pytest.raises(KeyboardInterrupt):
        probes.abilities(env, str(disk))
    assert [*disk.iterdir()] == []


@pytest.mark.parametrize(
    ("without", "lacking"),
    [("unnamed", "unnamed"), ("proc", "link_proc"), ("link", "link"), ("flock", "guard"), ("events", "events")],
)
def test_an_ability_that_is_missing_is_said_to_be_missing(
    disk: Path, environments: Environments, without: str, lacking: str
) -> None:
    assert not getattr(probes.abilities(environments(without).real, str(disk)), lacking)


@needs_root
def test_a_guard_that_another_mount_does_not_show_is_reported(disk: Path, environments: Environments) -> None:
    """An overlay's upper directory: a guard taken through one of the two looks free through the other."""
    for name in ("lower", "upper", "work", "merged"):
        (disk / name).mkdir()

    options = f"lowerdir={disk}/lower,upperdir={disk}/upper,workdir={disk}/work"

    def look() -> list[object]:
        can = probes.abilities(environments().real, str(disk / "merged"))
        return [can.storage.kind, list(can.guard_by_mounts), os.listdir(disk / "merged")]

    def overlay() -> None:
        mount("overlay", str(disk / "merged"), "overlay", 0, options)

    assert elsewhere(look, mounts=overlay) == ["overlay", [f"{disk}/upper"], []]


@pytest.mark.parametrize(
    ("change", "level", "word"),
    [
        ({}, GOOD, ""),
        ({"exclusive": False}, UNUSABLE, "two processes can hold"),
        ({"storage": storage_of("nfs4", {"local_lock": "none"}), "events": False}, WEAKER, "nfs4"),
        ({"storage": storage_of("lustre", {"localflock": ""})}, WEAKER, "-o flock"),
        ({"storage": storage_of("virtiofs", {})}, WEAKER, "--listen"),
        ({"storage": storage_of("cifs", {}, release="6.1.0")}, WEAKER, "use -p flock"),
        ({"storage": storage_of("fuse.s3fs", {})}, WEAKER, "no lock of any implementation"),
        ({"storage": storage_of("fuse", {})}, NOTE, "served"),
        ({"storage": Storage("", text="of a type that cannot be known")}, GOOD, "cannot be known"),
        ({"guard": None}, WEAKER, "dead holder"),
        ({"guard": False}, WEAKER, "exclude nobody"),
        ({"guard_by_mounts": ("/mnt",)}, NOTE, "/mnt"),
        ({"guard_by_names": False}, NOTE, "another name"),
        ({"events": False}, WEAKER, "poll"),
        ({"sync": False}, WEAKER, "durable"),
        ({"unnamed": False}, NOTE, "temporary name"),
        ({"link_proc": False, "link_empty": False}, NOTE, "cannot be given a name"),
        ({"link_proc": False}, GOOD, "AT_EMPTY_PATH"),
        ({"unnamed": False, "link": False}, NOTE, "exclusive creation"),
        ({"unnamed": False, "link": False, "bits": False}, WEAKER, "counts as held"),
        ({"mode": 0o777}, WEAKER, "sticky"),
        ({"mode": 0o1777}, NOTE, "everybody"),
        ({"mode": 0o775}, NOTE, "group"),
    ],
)
def test_a_weakness_is_reported_in_words(change: dict[str, Any], level: str, word: str) -> None:
    findings = [*of_abilities(BEST.replaced(**change), 0)]
    assert worst(findings) == level
    assert word in " ".join(finding.text + " " + finding.means for finding in findings)
    assert all(finding.means for finding in findings if LEVELS.index(finding.level) >= LEVELS.index(WEAKER))


@pytest.mark.parametrize(
    ("change", "level", "word"),
    [
        ({}, GOOD, "1 of 128"),
        ({"instances": 120}, NOTE, "120 of 128"),
        ({"instances": 128}, WEAKER, "max_user_instances"),
        ({"watches": 1000}, WEAKER, "max_user_watches"),
        ({"free_bytes": 1000}, WEAKER, "make room"),
        ({"free_files": 3}, WEAKER, "3 files"),
        ({"descriptors": 64}, NOTE, "ulimit -n"),
        ({"descriptors": None, "most_instances": None, "most_watches": None}, GOOD, "1 TiB"),
    ],
)
def test_a_resource_that_runs_out_is_reported_in_words(change: dict[str, Any], level: str, word: str) -> None:
    findings = [*of_limits(PLENTY.replaced(**change))]
    assert worst(findings) == level
    assert word in " ".join(finding.text + " " + finding.means for finding in findings)


def test_only_files_of_dead_processes_are_reported_as_leftovers(
    disk: Path, contend: Contend, environments: Environments, dead_pid: int, live_pid: int
) -> None:
    """J9: and the look changes nothing."""
    env = environments()
    contend(disk / "l").get()
    alive = queued(contend(disk / "l", timeout=None, fair=True))
    dead = queued(contend(disk / "l", timeout=None, fair=True))
    dead.crash()
    who = env.identity()
    for pid in (dead_pid, live_pid):
        (disk / temporary_name(who.replaced(pid=pid), "x")).touch()
        (disk / f"l.{pid}.0123456789abcdef.tmp").touch()
    (disk / "fresh.lock.reclaim").mkdir()
    (disk / "old.lock.reclaim").mkdir()
    (disk / "ours.lock.reclaim").mkdir(mode=0o700)
    (disk / "ours.lock.reclaim").chmod(0o1755)
    past = time.time() - 3600
    for aged in (disk / "old.lock.reclaim", disk / f"l.{dead_pid}.0123456789abcdef.tmp"):
        os.utime(aged, (past, past))
    before = sorted(path.as_posix() for path in disk.rglob("*"))
    findings = [*of_leftovers(env, str(disk), [])]
    told = "\n".join(finding.text for finding in findings)
    assert worst(findings) == WEAKER
    assert f"-{dead_pid}-x.tmp" in told
    assert f"l.{dead_pid}.0123456789abcdef.tmp" in told
    assert "old.lock.reclaim, ours.lock.reclaim" in told
    assert "fresh" not in told
    assert not re.search(rf"\b{live_pid}\b", told)
    assert told.count("-x-") == 1, "the ticket of one who waits, or none"
    assert sorted(path.as_posix() for path in disk.rglob("*")) == before
    assert alive.step() is not None
    for path in disk.glob(".holdfast-*.tmp"):
        path.unlink()
    place = Path(queue_of(str(disk), "l"))
    for path in [*place.iterdir()]:
        path.unlink()
    place.rmdir()


def test_a_directory_without_leftovers_is_reported_as_good(disk: Path, environments: Environments) -> None:
    assert [finding.level for finding in of_leftovers(environments(), str(disk), [])] == [GOOD]


def test_leftovers_in_a_directory_that_may_not_be_listed_are_unknown(
    disk: Path, environments: Callable[..., Stepped]
) -> None:
    denied = Unreadable(str(disk), PermissionError(13, "Permission denied"))
    (finding,) = of_leftovers(environments(), str(disk), [denied])
    assert finding.level == WEAKER
    assert "may not list" in finding.text


def refused(*_args: object, **_options: object) -> Any:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    ("name", "call"), [("bits", "fchmod"), ("sync", "fsync"), ("link_proc", "link"), ("guard_by_mounts", "lstat")]
)
def test_a_probe_that_is_refused_counts_as_failed(
    name: str, call: str, disk: Path, environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_elsewhere", lambda _directory: ["/somewhere/else"])
    env = environments().real
    probe = probes._Probe(env, str(disk))
    try:
        with monkeypatch.context() as changed:
            changed.setattr(*((env, "chmod") if name == "bits" else (probes.os, call)), refused)
            assert not (probe.link_unnamed("proc") if name == "link_proc" else getattr(probe, name)())
    finally:
        probe.end()
    assert list(disk.iterdir()) == []


def test_creation_that_is_not_exclusive_is_noticed(
    disk: Path, environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may or may not heed O_EXCL (NFS 2)."""
    probe = probes._Probe(environments().real, str(disk))
    opened = os.open
    monkeypatch.setattr(probes.os, "open", lambda path, flags, mode: opened(path, flags & ~os.O_EXCL, mode))
    try:
        assert not probe.exclusive()
    finally:
        probe.end()


def test_another_file_of_the_same_name_is_not_taken_for_the_probe(
    disk: Path, environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount table may be outdated, or name a mount that another one covers."""
    other = disk / "other"
    other.mkdir()
    monkeypatch.setattr(probes, "_elsewhere", lambda _directory: [str(other)])
    probe = probes._Probe(environments().real, str(disk))
    same_name = other / os.path.basename(probe.path)
    same_name.write_text("it is not the probe")
    try:
        assert probe.guard_by_mounts() == ()
    finally:
        probe.end()
    assert same_name.read_text() == "it is not the probe"
    same_name.unlink()


def test_without_a_mount_table_no_other_directory_is_sought(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "read", lambda _path: "")
    assert probes._elsewhere(str(disk)) == []


@pytest.mark.needs("flock")
def test_what_is_said_of_a_holder_without_a_boot_id_is_true(
    disk: Path, contend: Contend, environments: Environments, dead_pid: int
) -> None:
    """Its lock is not taken over, however old it is."""
    env = environments()
    who = env.identity().replaced(boot="-")
    found = [*of_process(who, probes.abilities(env.real, str(disk)))]
    assert [one.level for one in found] == [WEAKER]
    assert "stays held until somebody breaks it" in found[0].means
    assert not [*of_process(env.identity(), probes.abilities(env.real, str(disk)))]
    text = marker_text(True, os.stat(disk).st_dev, who, 5.0)
    (disk / "l").write_bytes(sema_record(dead_pid, 5, marker=text))
    assert isinstance(contend(disk / "l").run(), Refusal)
