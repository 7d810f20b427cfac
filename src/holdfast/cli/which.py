"""`protocols`: say which protocol a lock needs. That depends on what else uses the lock, and on nothing else.

The table is only here: a test compares docs/which-protocol.md with it.
"""

from __future__ import annotations

import json
import sys
from textwrap import wrap

from .. import protocols
from ..model import Value
from .options import PROTOCOLS, Namespace
from .outcome import DONE, screen, show
from .parser import folded


class Choice(Value):
    """A row of the table: what else uses a lock, and what to write then. `protocol` is empty if none will do."""

    others: str
    protocol: str
    write: str


CHOICES = (
    Choice("nothing but holdfast", "sema", "no option: sema is the default"),
    Choice("File-Based Semaphore (Rust), the sema command, or a script that follows its specification",
        "sema", "-p sema"),
    Choice("File-Based Semaphore (TS), or the semats command", "semats", "-p semats"),
    Choice("Node programs with @openclaw/fs-safe", "sidecar", "-p sidecar, with the file that they protect as LOCK"),
    Choice("Node programs with proper-lockfile",
        "proper-lockfile", "-p proper-lockfile, with the file that they protect as LOCK"),
    Choice("beads up to 0.49", "beads", "-p beads, with the directory of the database as LOCK"),
    Choice("flock(1) in scripts, filelock's FileLock, portalocker, gofrs/flock, or anything else that calls flock(2)",
        "flock", "-p flock"),
    Choice("dpkg, shadow, Java's FileLock, fasteners, or anything else that takes POSIX record locks (lockf)",
        "ofd", "-p ofd"),
    Choice("readers that share the lock", "flock", "-p flock --shared for each reader"),
    Choice("holdfast on other machines that share a directory",
        "sema", "no option; holdfast doctor DIR says whether that works there"),
    Choice("holdfast on other machines that share no directory",
        "", "a URL: postgresql://HOST/DB#NAME, etcd://HOST/NAME"),
    Choice("filelock's SoftFileLock, PID files, or any other lock file with rules of its own",
        "", "holdfast has no protocol for them: move all users to one that it has"),
)  # fmt: skip
_INTRODUCTION = """\
What else uses the lock, and what to write (-p, or protocol= in Python). All users
of one lock must use one protocol: two different ones do not exclude each other."""


def protocols_(options: Namespace) -> int:
    """Print the table, by what people know: what else uses the lock."""
    if options.json:
        for name in protocols.names():
            others = [one.others for one in CHOICES if one.protocol == name]
            show(json.dumps({"protocol": name, "lock": PROTOCOLS.get(name), "used_by": others}))
        return DONE
    width = screen(sys.stdout).width
    rows = [row for one in CHOICES for row in (*_indented(one.others, 2, width), *_indented(one.write, 6, width))]
    names = protocols.names()
    column = max(map(len, names))
    kinds = [f"  {name:<{column}}  {PROTOCOLS.get(name, 'of an installed package')}" for name in names]
    parts = [_INTRODUCTION, "\n".join(rows), "\n".join(["What LOCK is, by protocol:", *kinds])]
    show("\n\n".join(parts if width is None else [folded(part, width) for part in parts]))
    return DONE


def _indented(text: str, columns: int, width: int | None) -> list[str]:
    indent = " " * columns
    return wrap(text, width or sys.maxsize, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
