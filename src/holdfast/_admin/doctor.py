"""Consequences of a directory's abilities and leftovers for the promises of docs/guarantees.md, in words."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence

from .._platform.interface import Abilities, Environment, Limits
from ..model import Identity, Value
from .clean import ANNOUNCEMENT, LOCK, TEMPORARY, TICKET, Leftover, beside, of_lock
from .found import LEFTOVER, Found, Unreadable

GOOD, NOTE, WEAKER, UNUSABLE = "good", "note", "weaker", "unusable"
LEVELS = (GOOD, NOTE, WEAKER, UNUSABLE)
_FEW_BYTES, _FEW_FILES = 1 << 20, 100
_NEARLY = 0.9


class Finding(Value):
    """The result of one check. `level`: good; note, which weakens no promise; weaker; unusable. `means`: what it means
    for the promises, and what can be done; empty where all is good."""

    name: str
    level: str
    text: str
    means: str = ""


def worst(findings: list[Finding]) -> str:
    """The worst level of all findings."""
    return max((finding.level for finding in findings), key=LEVELS.index, default=GOOD)


def of_abilities(can: Abilities, uid: int | None) -> Iterator[Finding]:
    """Findings about the filesystem and its permissions."""
    yield _filesystem(can)
    yield _permissions(can, uid)
    if can.exclusive:
        yield Finding("exclusive creation", GOOD, "two processes cannot create the same lock file (O_EXCL)")
    else:
        yield Finding(
            "exclusive creation", UNUSABLE, "a file that exists can be created again (O_EXCL does not hold)",
            "two processes can hold the lock at once: no lock file of any implementation is safe here",
        )  # fmt: skip
    yield _publishing(can)
    yield _guard(can)
    if can.guard:
        yield _visibility(can)
    yield _events(can)
    if not can.ordered:
        yield Finding(
            "order", WEAKER, "waiters of several processes have no queue",
            "a released lock goes to the first process that notices; threads and tasks of one process "
            "take their turns",
        )  # fmt: skip
    if can.sync:
        yield Finding("fsync", GOOD, "files and directories can be synchronised (durable=True, --durable)")
    else:
        yield Finding(
            "fsync", WEAKER, "fsync fails here", "locks with durable=True (--durable, and holdfast.sema) do not work"
        )


def of_process(who: Identity, can: Abilities) -> Iterator[Finding]:
    """A finding if deaths cannot be proven here, whatever the filesystem can do."""
    if can.guard and who.boot == "-":
        yield Finding(
            "processes", WEAKER, "the boot is not known: proc is not mounted, or only in part (subset=pid)",
            "a holder that dies here is never proven dead, so its lock stays held until somebody breaks it; without "
            "proc, run cannot see what its command leaves running, so --until jobs and all act as --until command. "
            "Mount all of proc",
        )  # fmt: skip


def _filesystem(can: Abilities) -> Finding:
    storage = can.storage
    text = f"{storage.kind or 'unknown'}: {storage.text}"
    if not storage.shared:
        return Finding("filesystem", GOOD if storage.events or not storage.kind else NOTE, text)
    between = {
        True: "between machines exclusion rests on its server",
        None: "between machines, -p flock may exclude nobody, and a dead holder is not proven dead",
        False: "-p flock is refused here, and a dead holder is not proven dead to another machine",
    }[storage.guards]
    if not storage.exclusive:
        between = "between machines no lock of any implementation is safe here"
    means = (
        f"{between}. If a holder on another machine may be dead, its lock counts as held until its protocol's stale "
        "age. Waiters poll"
    )
    return Finding("filesystem", WEAKER, text, f"{means}. Remedy: {storage.remedy}" if storage.remedy else means)


def _permissions(can: Abilities, uid: int | None) -> Finding:
    if uid is None:
        return Finding("permissions", NOTE, "its access control list says who may make and remove files here")
    mode = f"mode {can.mode:04o}, owner {can.uid}"
    others = "everybody" if can.mode & stat.S_IWOTH else "the group"
    if can.mode & stat.S_IWOTH and not can.mode & stat.S_ISVTX:
        return Finding(
            "permissions", WEAKER, f"{mode}: everybody may remove or replace any file here",
            "any user can break any lock; the holder is told. Use another directory, or set the sticky bit "
            "(chmod +t)",
        )  # fmt: skip
    if can.mode & (stat.S_IWOTH | stat.S_IWGRP) and can.mode & stat.S_ISVTX:
        return Finding(
            "permissions", NOTE, f"{mode}: {others} may make files, only their owners may remove them",
            "another user's dead lock can be taken over only if its mode lets you write to it; else it stays held",
        )  # fmt: skip
    if can.mode & stat.S_IWGRP:
        return Finding("permissions", NOTE, f"{mode}: the group may remove or replace any file here")
    if uid is not None and uid not in (can.uid, 0):
        return Finding("permissions", NOTE, f"{mode}: you may write here by other rights (an access control list)")
    return Finding("permissions", GOOD, f"{mode}: nobody else may make or remove files here")


def _publishing(can: Abilities) -> Finding:
    if not can.storage.lock_files:
        return Finding(
            "publishing", WEAKER, "a file cannot be opened by its second name, so there can be no lock files here",
            "use -p flock, or another filesystem; all other protocols are refused",
        )  # fmt: skip
    links = [way for way, works in (("procfs", can.link_proc), ("AT_EMPTY_PATH", can.link_empty)) if works]
    if can.unnamed and links:
        return Finding("publishing", GOOD, f"a lock file appears whole (unnamed file, linked by {' or '.join(links)})")
    why = "unnamed files cannot be given a name" if can.unnamed else "there are no unnamed files"
    if can.link:
        return Finding(
            "publishing", NOTE, f"{why}; a temporary name and a link are used instead",
            "a crash within microseconds may leave a file .holdfast-*, which the next process to publish removes",
        )  # fmt: skip
    if can.bits:
        return Finding(
            "publishing", NOTE, f"{why}, nor hard links; exclusive creation is used instead",
            "a crash within microseconds may leave an empty file, which the next contender takes over",
        )  # fmt: skip
    return Finding(
        "publishing", WEAKER, f"{why}, nor hard links, nor mode bits; exclusive creation is used instead",
        "a creator that dies within microseconds leaves an empty lock file that counts as held (holdfast break)",
    )  # fmt: skip


def _guard(can: Abilities) -> Finding:
    if can.guard:
        return Finding("guard", GOOD, "a kernel lock (flock) on a lock file is proof of life")
    text = "there are no kernel locks (flock) here" if can.guard is None else "kernel locks exclude nobody here"
    return Finding(
        "guard", WEAKER, text,
        "a dead holder is known by its process: where the system tells no start times, another process that got its "
        "pid counts as the holder for as long as it lives. -p flock cannot be used",
    )  # fmt: skip


def _visibility(can: Abilities) -> Finding:
    if can.guard_by_mounts:
        return Finding(
            "visibility", NOTE, f"a guard taken here looks free through {', '.join(can.guard_by_mounts)}",
            "a holder there cannot be proven dead from here, because the device differs, so its lock counts as held "
            "until its protocol's stale age; -p flock does not exclude between the two. Use one path for all",
        )  # fmt: skip
    if can.guard_by_names is False:
        return Finding(
            "visibility", NOTE, "a guard is not seen through another name of the same file",
            "holdfast uses the lock path only; do not make links to lock files",
        )  # fmt: skip
    seen = "" if can.guard_by_names is None else ", and through another name of it"
    return Finding("visibility", GOOD, f"every process that opens the file sees its guard{seen}")


def _events(can: Abilities) -> Finding:
    if can.events:
        return Finding("events", GOOD, "waiters are woken by an event")
    pause = "50 ms" if can.storage.shared else "25 ms"
    return Finding(
        "events", WEAKER, "not every change of a file here makes an event, or there are no events",
        f"waiters poll: the first one notices a release after up to {pause}, those behind it later",
    )  # fmt: skip


def of_limits(limits: Limits) -> Iterator[Finding]:
    """Findings about resources that may run out."""
    means = "each waiting process needs one, and polls without it. Raise fs.inotify.max_user_instances"
    yield from _near("inotify instances", limits.instances, limits.most_instances, means)
    means = (
        "each hold and each lock that is waited for needs one; without it, the process polls. Raise max_user_watches"
    )
    yield from _near("inotify watches", limits.watches, limits.most_watches, means)
    if limits.descriptors is not None:
        more = "" if limits.most_descriptors in (None, limits.descriptors) else f" (up to {limits.most_descriptors})"
        text = f"a process may have {limits.descriptors} descriptors open{more}"
        means = "each hold needs one: raise the limit (ulimit -n)" if limits.descriptors < 256 else ""
        yield Finding("descriptors", NOTE if means else GOOD, text, means)
    free, files = limits.free_bytes, limits.free_files
    text = f"{_size(free)} free" + ("" if files is None else f", and {files} files")
    scarce = free < _FEW_BYTES or (files is not None and files < _FEW_FILES)
    means = "a lock file that cannot be written cannot be acquired; make room" if scarce else ""
    yield Finding("space", WEAKER if scarce else GOOD, text, means)


def _near(name: str, used: int, most: int | None, means: str) -> Iterator[Finding]:
    if most is not None:
        level = WEAKER if used >= most else NOTE if used >= most * _NEARLY else GOOD
        yield Finding(name, level, f"{used} of {most} {name} of this user are in use", "" if level == GOOD else means)


def _size(count: float) -> str:
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.0f} {units[0]}"


_SHOWN = 3
_KINDS = {
    (TEMPORARY, ""): ("our temporary files", NOTE,
        "they do no harm; the next takeover removes them, or holdfast clean"),
    (TEMPORARY, "semats"): ("temporary files of semats", NOTE,
        "they do no harm; semats clean or holdfast clean removes them"),
    (ANNOUNCEMENT, "sidecar"): ("announced removals", WEAKER,
        "fs-safe waits for them forever, even if the lock is free; run holdfast clean, or remove them"),
    (TICKET, ""): ("tickets", NOTE, "the next waiter for that lock removes them"),
}  # fmt: skip
"""Name, level and future of each kind of leftover, by kind and protocol."""


def of_leftovers(env: Environment, directory: str, surveyed: Sequence[Found | Unreadable]) -> Iterator[Finding]:
    """A finding for each kind of leftover. `surveyed`: the lock files in the directory."""
    if any(isinstance(one, Unreadable) and one.path == directory for one in surveyed):
        yield Finding(
            "leftovers", WEAKER, "what was left here is not known, as this user may not list the directory",
            "nor can this user acquire sema or semats locks here, which need that: use another protocol (-p flock)",
        )  # fmt: skip
        return
    findings = [*_of_locks(env, directory, surveyed), *_beside_locks(env, directory)]
    yield from findings or [Finding("leftovers", GOOD, "nothing was left here by dead processes")]


def _of_locks(env: Environment, directory: str, surveyed: Sequence[Found | Unreadable]) -> Iterator[Finding]:
    """Findings about locks that `clean` would remove, or would leave alone although their holders may be dead."""
    judged = [of_lock(env, one, approved=False) for one in surveyed if isinstance(one, Found)]
    gone = [one.path for one in judged if one is not None and not one.way]
    if gone:
        means = "they do no harm: the next contender takes such a lock over, or holdfast clean removes it"
        yield Finding("leftovers", NOTE, f"{_counted(gone)}, dead or stale: {_some(gone, directory)}", means)
    kept = [one.path for one in judged if one is not None and one.way]
    if kept:
        means = "holdfast clean leaves such a lock alone; it says why, and what removes it"
        yield Finding("leftovers", NOTE, f"{_counted(kept)} whose holder may be dead: {_some(kept, directory)}", means)


def _beside_locks(env: Environment, directory: str) -> Iterator[Finding]:
    left: dict[tuple[str, str], list[str]] = {}
    for one in beside(env, directory):
        if isinstance(one, Leftover):
            left.setdefault((one.kind, one.protocol), []).append(one.path)
    for kind, (name, level, means) in _KINDS.items():
        paths = left.get(kind, [])
        if paths:
            yield Finding("leftovers", level, f"{name} of dead processes: {_some(paths, directory)}", means)


def _counted(paths: list[str]) -> str:
    return f"{len(paths)} {LOCK}" + ("s" if len(paths) > 1 else "")


def _some(paths: list[str], directory: str) -> str:
    """The first paths, as seen from the directory."""
    shown = ", ".join(path.removeprefix(directory).lstrip("/") for path in paths[:_SHOWN])
    return shown + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")


def of_other_programs(surveyed: Sequence[Found | Unreadable]) -> Iterator[Finding]:
    """Findings about locks that other programs have left, with the advice for their users."""
    left = [one for one in surveyed if isinstance(one, Found) and one.condition == LEFTOVER]
    for one in left[:_SHOWN]:
        name = one.status.path.rpartition("/")[2]
        text = f"a lock of {one.status.protocol}, whose holder seems to have ended: {name}"
        yield Finding("other programs", NOTE, text, f"{one.status.reason}. {one.advice}")
    if len(left) > _SHOWN:
        yield Finding("other programs", NOTE, f"and {len(left) - _SHOWN} more such locks", "holdfast ls --stale")
