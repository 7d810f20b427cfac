"""The protocol of a lock file, where nobody has named it: by its content, its name and its mode. For display.

A caller that acquires chooses the protocol; this never does. Two implementations write the same records: a file that
only its owner may read is taken for one of `semats`, which makes its files so, any other for one of `sema`.
"""

from __future__ import annotations

import re
import stat

from .._platform.interface import Environment
from ..engines.file.inspect import NO_RECORD
from ..errors import MalformedRecord
from ..model import Record
from ..protocols import get
from ..protocols.base import MAX_RECORD_BYTES
from ..protocols.sema import FLOCK_SIGNATURE

BEADS_NAME = ".exclusive-lock"
QUEUE = ".queue"
_HIDDEN = ".holdfast-"
RECLAIM = ".reclaim"
_RIVAL = re.compile(r"\.[0-9]{1,10}\.[0-9a-f]{16}\.tmp\Z")
_SLOT = re.compile(r"(.+)\.([0-9]{1,3})\.lock", re.DOTALL)
# Every writer begins with one of these; a text file that has such lines further down is something else.
_SEMA = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:pid|timestamp|tag|holdfast)\s*=")
_MARKED = re.compile(rb"^holdfast=[12] [gn] ", re.MULTILINE)
_SIDECAR = (b'"holdfast"', b'"createdAt"', b'"pid"')
_OTHERWISE = frozenset(
    """
    .txt .md .rst .html .htm .css .scss .xml .svg .tex .pdf .po .mo .csv .tsv .diff .patch .py .pyc .pyi .pyx
    .pxd .c .cc .cpp .h .hh .hpp .inc .rs .go .java .class .js .mjs .cjs .ts .tsx .jsx .map .rb .pl .pm .pod
    .php .lua .sh .bash .zsh .fish .el .elc .vim .sql .s .S .m .swift .kt .scala .hs .ml .mli .cmake .mk .am .m4
    .ac .tcl .json .yaml .yml .toml .ini .cfg .conf .cnf .socket .desktop .rules .md5sums .sha256 .so .o .a .ko
    .lo .la .pc .exe .dll .bin .rlib .rmeta .wasm .db .sqlite .gz .bz2 .xz .zst .zip .tar .tgz .deb .rpm .whl
    .jar .png .jpg .jpeg .gif .ico .webp .mp3 .mp4 .ttf .otf .woff .woff2 .pack .idx .gem .crt .pem .key
    .service .list .log
    """.split()  # noqa: SIM905 - a list that takes a page to read
)
"""Endings of text, data and programs. Not `.pid`, `.lck`, `.tmp`, `.data`, `.state` …, nor unknown ones."""
_TOKEN = b"\n" + 8 * b"\t"
"""Blanks at the end of a record, by which fs-safe 0.21 knows its own."""


def head_of(env: Environment, path: str, most: int) -> bytes:
    """The first bytes of a file; empty if it is no regular file. OSError as the system raises it."""
    fd = env.open_existing(path, write=False)
    try:
        return env.read(fd, most) if stat.S_ISREG(env.fstat(fd).st_mode) else b""
    finally:
        env.close(fd)


def is_beside(name: str) -> bool:
    """Whether a name is of a file or directory beside lock files that is no lock file itself."""
    return name.startswith(_HIDDEN) or name.endswith(RECLAIM) or bool(_RIVAL.search(name))


def is_queue(name: str) -> bool:
    """Whether a name is that of a queue's directory."""
    return name.startswith(_HIDDEN) and name.endswith(QUEUE)


def is_rival(name: str) -> bool:
    """Whether a name is that of a temporary file of semats."""
    return bool(_RIVAL.search(name))


def is_named_so(name: str) -> bool:
    """Whether a name alone says that the file is a lock."""
    return name.endswith(".lock") or name == BEADS_NAME


def is_called_otherwise(name: str) -> bool:
    """Whether a name is usual for text, data or programs, and hardly ever a lock file's."""
    at = name.rfind(".")
    return at > 0 and name[at:] in _OTHERWISE


def slot_of(name: str) -> tuple[str, int] | None:
    """The base and the number in the name of a semaphore's lock file; None for other names."""
    found = _SLOT.fullmatch(name)
    return (found[1], int(found[2])) if found else None


def may_be_record(size: int) -> bool:
    """Whether a file of this size is worth reading."""
    return 0 < size <= MAX_RECORD_BYTES


def may_begin(name: str, data: bytes) -> bool:
    """Whether a file that begins so, under this name, is worth a closer look."""
    return is_named_so(name) or data.startswith(FLOCK_SIGNATURE) or _SEMA.match(data) is not None


def record_in(name: str, mode: int, data: bytes) -> Record | None:
    """The record of a lock file; None if it is no lock file, or is damaged."""
    try:
        if name == BEADS_NAME:
            return get("beads").decode(data)
        if data.startswith(FLOCK_SIGNATURE):
            return get("flock").decode(data)
        if _SEMA.match(data):
            record = get("semats" if stat.S_IMODE(mode) == 0o600 else "sema").decode(data)
            return None if record.mixed and not is_named_so(name) else record
        if _is_sidecar(name, data):
            record = get("sidecar").decode(data)
            return record if record.legible and _has_own_member(record, data) else None
    except MalformedRecord:
        pass
    return None


def damaged(name: str, data: bytes) -> str | None:
    """The protocol of a damaged record; empty if it may be of any protocol. None: it is no lock file."""
    if name == BEADS_NAME:
        return "beads"
    if not data:
        return "" if is_named_so(name) else None
    if _SEMA.match(data) and (is_named_so(name) or _MARKED.search(data)):
        return "sema"
    return "sidecar" if _is_sidecar(name, data) and not _is_object(data) else None


def problem(protocol: str, data: bytes) -> str:
    """The fault of a damaged record, in words."""
    if not data:
        return NO_RECORD
    try:
        get(protocol).decode(data)
    except MalformedRecord as error:
        return str(error)
    return "its content does not say whose it is"


def _is_sidecar(name: str, data: bytes) -> bool:
    return name.endswith(".lock") and data.lstrip(b" \t\r\n")[:1] == b"{" and any(member in data for member in _SIDECAR)


def _has_own_member(record: Record, data: bytes) -> bool:
    """Whether a sidecar's record has something that no other JSON file has. Any object may be a sidecar's payload; but
    so are the lock files of package managers, which lock nothing."""
    payload = record.fields["payload"]
    return record.pid is not None or record.marked or isinstance(payload.get("createdAt"), str) or _TOKEN in data[-256:]


def _is_object(data: bytes) -> bool:
    try:
        return get("sidecar").decode(data).legible
    except MalformedRecord:
        return False
