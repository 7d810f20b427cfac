"""Claims, in place of the guard, so that exactly one contender replaces a dead holder's record:

C1  A claim file is created exclusively, beside the lock file, and its name is a digest of the inode and the record that
    it is about, or of the claim before it. So there is one winner for each record, however its path is spelled, and one
    for each dead claimant.
C2  A claimant replaces the record only if every claim before its own belongs to a process that is gone.
C3  Claim files go away only after the record has changed; whoever claims later reads the record again and finds that.
    Who has replaced the record also removes what dead claimants of this lock left.
C4  Whoever wins a later link looks whether the earlier ones are still of the dead: a living claimant that gives up
    takes its own claim away, and the chain before it then means nothing.
"""

from __future__ import annotations

import os

from .._core.environment import Presence
from .._core.publish import NOT_HERE, sweep, temporary_name
from . import forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .generic import GenericEnvironment


class Claims:
    """The claims of one process, by descriptor."""

    def __init__(self, env: GenericEnvironment) -> None:
        self._env = env
        self._chains: dict[int, list[str]] = {}

    def make(self, fd: int, path: str, data: bytes) -> bool:
        """Whether this process may now replace or remove the record `data` at `path`."""
        who = self._env.identity()
        mine = f"{who.pid} {who.boot} {who.pid_namespace} {self._env.token()}".encode()
        chain: list[str] = []
        directory, name = os.path.split(path)
        subject = b"%d\0" % os.fstat(fd).st_ino + data
        with forking:
            lock = _digest(os.fsencode(name))  # it imports
        try:
            return self._climb(fd, os.path.join(directory, f".holdfast-{lock}"), subject, mine, chain)
        except BaseException:
            # Interrupted, perhaps after it was made: while this process lives, it would count.
            self._chains.pop(fd, None)
            if chain and _read_claim(chain[-1]) == mine:
                _remove(chain[-1])
            raise

    def _climb(self, fd: int, prefix: str, subject: bytes, mine: bytes, chain: list[str]) -> bool:
        while True:
            claim = f"{prefix}-{_digest(subject)}.claim"
            chain.append(claim)
            try:
                self._create_whole(claim, mine)
            except FileExistsError:
                subject = _read_claim(claim)
                if not self._is_gone(subject):
                    return False
                continue  # C2: dead; the next link of the chain is named after it
            if all(self._is_gone(_read_claim(earlier)) for earlier in chain[:-1]):
                self._chains[fd] = chain
                return True
            _remove(claim)  # C4
            return False

    def end(self, fd: int, *, replaced: bool) -> None:
        """Take the claim of `fd` away, if it has one; after a replacement, those of the dead as well."""
        chain = self._chains.pop(fd, [])
        try:
            for claim in self._outdated(chain) if chain and replaced else chain[-1:]:
                _remove(claim)
        except BaseException:
            for claim in chain[-1:]:
                _remove(claim)  # interrupted: our own at least, which would count while this process lives
            raise

    def _outdated(self, chain: list[str]) -> list[str]:
        """C3: the claims that mean nothing any more, now that the record has been replaced."""
        directory, mine = os.path.split(chain[0])
        try:
            sweep(self._env, directory)
            names = self._env.list_directory(directory)
        except OSError:
            return chain  # a directory that may be written but not read
        same_lock = [os.path.join(directory, n) for n in names if n.startswith(mine[: mine.rindex("-") + 1])]
        return [claim for claim in same_lock if claim in chain or self._is_gone(_read_claim(claim))]

    def _is_gone(self, claimant: bytes) -> bool:
        who = self._env.identity()
        pid, _, place = claimant.decode("utf-8", "replace").partition(" ")
        ours = "-" not in (who.boot, who.pid_namespace) and place.startswith(f"{who.boot} {who.pid_namespace} ")
        return ours and pid.isdecimal() and self._env.inspect(int(pid)).presence in (Presence.GONE, Presence.ZOMBIE)

    def _create_whole(self, path: str, data: bytes) -> None:
        """Create a file that is never seen without its content, where links allow it."""
        temporary = os.path.join(os.path.dirname(path), temporary_name(self._env.identity(), self._env.token()))
        fd = self._env.open_new(temporary, 0o600)
        try:
            self._env.write(fd, data, 0)
            self._env.link(temporary, path)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno not in NOT_HERE:
                raise
            try:
                with open(path, "xb") as file:
                    file.write(data)
            except FileExistsError:
                raise
            except OSError:
                _remove(path)  # half a claim would count as somebody's for ever
                raise
        finally:
            try:
                self._env.close(fd)
            finally:
                _remove(temporary)


def _remove(path: str) -> None:
    """Twice, if need be: what stays counts as this process's for as long as it lives."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError:
        os.unlink(path)


def _read_claim(claim: str) -> bytes:
    try:
        with open(claim, "rb") as file:
            return file.read(100)
    except FileNotFoundError:
        return b""


def _digest(data: bytes) -> str:
    import hashlib

    return hashlib.blake2b(data, digest_size=8).hexdigest()
