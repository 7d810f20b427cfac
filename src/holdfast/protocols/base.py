"""The interface of a protocol: a record codec, and the rules about when a lock is stale. Does no I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..model import INFINITY, Identity, Record, next_beat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar, Literal

    from ..liveness import Liveness

MAX_RECORD_BYTES = 1 << 20
MAX_TAG_CHARACTERS = 10_000

_CONTROL = dict.fromkeys((*range(32), 127), " ")


class Protocol(ABC):
    """A published set of rules. Instances have no state; all locks of a protocol share one."""

    name: ClassVar[str]
    mode: ClassVar[int]
    """Permission bits of a new lock file, before the umask."""
    stale_after: ClassVar[float]
    """The age in seconds from which the protocol's own rule lets others reclaim the lock."""
    has_age: ClassVar[bool] = True
    """Whether that rule asks for the age at all."""
    shareable: ClassVar[bool] = False
    """Whether several holders that all asked for it `shared` may hold a lock together."""
    persistent: ClassVar[bool] = False
    """Whether the lock file stays, and its guard alone is the lock: no record decides anything."""
    locks_records: ClassVar[bool] = False
    """Whether that guard is a record lock, on a range of the file; then nothing is written into the file."""
    is_directory: ClassVar[bool] = False
    """Whether the lock is a directory without content: a holder makes it, and only its time says anything."""
    all_beat: ClassVar[bool] = False
    """Whether every holder keeps the timestamp fresh, so that the rule alone is enough: an old lock has no holder."""
    recheck: ClassVar[float] = INFINITY
    """Seconds after which a waiter looks again, because a release may make no event. Infinity: the engine decides."""
    padding: ClassVar[bytes] = b"\n"
    """One byte that readers ignore at the end of a record: a takeover overwrites the rest of the old record with it."""
    marker_key: ClassVar[bytes] = b"holdfast="
    """The text before the marker in a record, and nowhere earlier: the marker's kind is flipped in place."""
    options: ClassVar[frozenset[str]] = frozenset()
    """The options of `Lock` that only this protocol has; `compose` gets those that were given."""

    # The path of the lock file.
    resolves: ClassVar[Literal["nothing", "directory", "path"]] = "nothing"
    """The symbolic links that are followed first: those of the path's directory, or of the whole path."""
    refuses_parent_components: ClassVar[bool] = False
    """Whether a path with `..` in it is refused."""
    suffix: ClassVar[str] = ""
    """The suffix that the lock file's name adds to the caller's path."""
    makes_parents: ClassVar[bool] = False
    """Whether missing directories are made by default."""

    # The behaviour of other implementations.
    ages_by_mtime: ClassVar[bool] = False
    """Whether a record without a timestamp is as old as its file."""
    fails_closed: ClassVar[bool] = False
    """Whether the rule only says that a lock is stale, and leaves the decision to remove it to the caller."""
    reclaim_suffix: ClassVar[str] = ""
    """The suffix, added to the lock file's name, of the directory that exists while a stale lock is removed."""
    has_rivals: ClassVar[bool] = False
    """Whether others replace the lock file by renaming a temporary file to it; `rival` recognises such files."""

    def rival(self, name: str, lock_name: str) -> int | None:  # noqa: ARG002
        """The pid of the process whose attempt on the lock file `lock_name` is announced by the file `name` beside it,
        or None.

        Only called for names that begin with the lock file's name.
        """
        return None

    def check_options(self, more: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Raise ValueError or TypeError for options of this protocol that make no sense."""
        return

    @abstractmethod
    def decode(self, data: bytes) -> Record:
        """The record in `data`, or MalformedRecord. Never hangs; never loses a byte of a well-formed record."""

    @abstractmethod
    def encode(self, record: Record) -> bytes:
        """The strict inverse of `decode`; ValueError for a record that this protocol cannot express."""

    @abstractmethod
    def compose(self, who: Identity, now: float, tag: str | None, marker: str | None, more: Mapping[str, Any]) -> bytes:
        """The bytes that a new holder writes; `now` is in seconds since the epoch, `tag` has been cleaned.

        `more` has those of `options` that were given. A `marker` of None: no process vouches for the holder.
        """

    @abstractmethod
    def is_stale(self, record: Record, liveness: Liveness, now: float, stale_after: float) -> bool:
        """Whether the lock is stale, by the letter of the protocol's own rule."""

    @abstractmethod
    def stale_at(self, record: Record, stale_after: float) -> float | None:
        """The time when that rule will first hold, in seconds since the epoch; None if time alone is not enough."""

    @abstractmethod
    def refreshed(self, data: bytes, now: float) -> tuple[int, bytes] | None:
        """Offset and new bytes of the timestamp in `data`, of unchanged length; None if there is none to refresh."""

    def beaten(self, data: bytes, now: float) -> list[tuple[int, bytes]]:
        """The changes of a heartbeat to our own record `data`: offsets and new bytes, of unchanged length."""
        found = [self.refreshed(data, now), next_beat(data, self.marker_key)]
        return [change for change in found if change is not None]


def check_size(data: bytes) -> None:
    if len(data) > MAX_RECORD_BYTES:
        raise ValueError(f"the record is larger than {MAX_RECORD_BYTES} bytes")


def clean_tag(tag: str) -> str:
    """The tag as it is written: control characters become spaces, ends are trimmed, the length is bounded."""
    # A shell can pass bytes that are not UTF-8; Python carries them as surrogates, which cannot be written.
    try:
        raw = tag.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = tag.encode("utf-8", "replace")  # a surrogate that does not stand for a byte
    writable = raw.decode("utf-8", "replace")
    return writable.translate(_CONTROL).strip()[:MAX_TAG_CHARACTERS].rstrip()
