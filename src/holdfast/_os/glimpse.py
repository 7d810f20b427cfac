"""A census about a few files: of the kernel's table of locks, which may be long, only their lines are parsed."""

from __future__ import annotations

from .census import LinuxCensus
from .tables import _read, parse_locks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._core.environment import LockOwner
    from .linux import LinuxEnvironment


class Glimpse(LinuxCensus):
    """See `survey.Census`. Of one moment, as that is."""

    def __init__(self, env: LinuxEnvironment) -> None:
        tables = env._proc_is_ours()
        super().__init__(env.inspect, tables=tables)
        # Twice, because entries may be missing from one reading (tables.py, W5).
        self._texts = [_read("/proc/locks") for _ in range(2 if tables else 0)]
        self._known: set[int] = set()
        self._locks = {}

    def is_locked(self, identity: tuple[int, int]) -> bool:
        self._learn(identity[1])
        return super().is_locked(identity)

    def owners(self, identity: tuple[int, int]) -> list[LockOwner]:
        self._learn(identity[1])
        return super().owners(identity)

    def _learn(self, inode: int) -> None:
        if inode in self._known:
            return
        self._known.add(inode)
        found = dict.fromkeys(line for text in self._texts for line in _lines(text, f":{inode} "))
        for entry in dict.fromkeys(parse_locks("\n".join(found))):
            assert self._locks is not None
            self._locks.setdefault(entry.file, []).append(entry)
            self._inodes.add(entry.file[1])


def _lines(text: str, word: str) -> list[str]:
    found, at = [], text.find(word)
    while at >= 0:
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        end = len(text) if end < 0 else end
        found.append(text[start:end])
        at = text.find(word, end)
    return found
