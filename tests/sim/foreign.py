"""Actors that are not of holdfast: models of other implementations, a system call a step.

Their steps and their races were observed in the real ones. A guarantee towards them holds as long as none is stopped,
between a look and the action that follows from it, for longer than the engine settles; so they are `prompt`.
"""

from __future__ import annotations

from holdfast._platform.values import Presence
from sim.world import Actor, Program

_PROMPT = 0.010
POLL = 0.1


def _contents(me: Actor, path: str) -> bytes | None:
    try:
        fd = me.process.open_existing(path, write=False)
    except FileNotFoundError:
        return None
    data = me.process.read(fd, 1 << 20)
    me.process.close(fd)
    return data


def _fields(data: bytes | None) -> tuple[int, int] | None:
    found = dict(line.split(b"=", 1) for line in (data or b"").split(b"\n") if b"=" in line)
    try:
        return int(found[b"pid"]), int(found[b"timestamp"])
    except (KeyError, ValueError):
        return None


def _remove(me: Actor, path: str) -> bool:
    try:
        me.process.unlink(path)
    except FileNotFoundError:
        return False
    return True


def _record(me: Actor) -> bytes:
    return b"pid=%d\ntimestamp=%d\n" % (me.process.pid, int(me.process.time()))


def _use(me: Actor, path: str, inode: int, inside_for: float) -> None:
    me.prompt()
    me.enter(path, inode)
    if inside_for:
        me.sleep(inside_for)
    me.leave()
    me.inode, me.robbed = -1, False


def sema(
    path: str, *, stale: float = 3600, attempts: int = 3, rounds: int = 1, inside_for: float = 0.0, poll: float = POLL
) -> Program:
    """sema: the file is created exclusively, and written afterwards; a stale one is unlinked, whatever lies there by
    then, and so is any file at the release."""

    def program(me: Actor) -> None:
        env, done = me.process, 0
        for _ in range(attempts):
            me.prompt(_PROMPT)
            fields = _fields(_contents(me, path))
            if fields is not None and int(env.time()) - fields[1] > stale:
                _remove(me, path)
            try:
                fd = env.open_new(path, 0o666)
            except FileExistsError:
                me.prompt()
                me.sleep(poll)
                continue
            inode = env.files[fd].inode.number
            me.crashable, could = False, me.crashable  # the file that it leaves here is held until somebody breaks it
            env.write(fd, _record(me), 0)
            me.crashable = could
            env.close(fd)
            _use(me, path, inode, inside_for)
            _remove(me, path)
            done += 1
            if done == rounds:
                return

    return program


def semats(
    path: str, *, stale: float = 3600, attempts: int = 3, inside_for: float = 0.0, poll: float = POLL
) -> Program:
    """semats: a temporary file, a look whether the lock is there, and a rename over any file by then."""

    def program(me: Actor) -> None:
        env = me.process
        for attempt in range(attempts):
            me.prompt(_PROMPT)
            if attempt:
                me.sleep(poll)
                me.prompt(_PROMPT)
            if env.exists(path):
                fields = _fields(_contents(me, path))
                old = fields is not None and int(env.time()) - fields[1] > stale
                if fields is None or not old or env.inspect(fields[0]).presence is Presence.RUNNING:
                    me.prompt()
                    continue
                _remove(me, path)
            temporary = f"{path}.{env.pid}.{env.token()}.tmp"
            fd = env.open_new(temporary, 0o600)
            inode = env.files[fd].inode.number
            env.write(fd, _record(me), 0)
            env.close(fd)
            if env.exists(path):
                _remove(me, temporary)
                me.prompt()
                continue
            env.rename(temporary, path)
            _use(me, path, inode, inside_for)
            fields = _fields(_contents(me, path))
            if fields is None or fields[0] == env.pid:
                _remove(me, path)
            return

    return program


def proper_lockfile(
    path: str, *, stale: float = 10.0, attempts: int = 3, inside_for: float = 0.0, poll: float = POLL
) -> Program:
    """proper-lockfile: a directory; one that is stale by its time is removed, whatever lies there by then, and so is
    any at the release."""

    def program(me: Actor) -> None:
        env = me.process
        for _ in range(attempts):
            me.prompt(_PROMPT)
            if _made(me, path, stale):
                _use(me, path, env.stat(path).st_ino, inside_for)
                _rmdir(me, path)
                return
            me.prompt()
            me.sleep(poll)

    return program


def _made(me: Actor, path: str, stale: float) -> bool:
    env = me.process
    for last in (False, True):
        try:
            env.make_directory(path, 0o755)
            return True
        except FileExistsError:
            if last:
                return False
        try:
            if not env.stat(path).st_mtime < env.time() - stale:
                return False
        except FileNotFoundError:
            continue
        _rmdir(me, path)
    return False


def _rmdir(me: Actor, path: str) -> None:
    try:
        me.process.remove_directory(path)
    except FileNotFoundError:
        pass


def fs_safe(path: str, *, stale: float = 30, attempts: int = 3, inside_for: float = 0.0, poll: float = 0.05) -> Program:
    """fs-safe 0.3 with remove-if-unchanged: the file is created exclusively, and written afterwards; a stale one is
    looked at once more and then unlinked; the same at the release."""

    def program(me: Actor) -> None:
        env = me.process
        for _ in range(attempts):
            me.prompt(_PROMPT)
            try:
                fd = env.open_new(path, 0o666)
            except FileExistsError:
                _remove_if_stale(me, path, stale)
                me.prompt()
                me.sleep(poll)
                continue
            inode = env.files[fd].inode.number
            record = b'{\n  "pid": %d,\n  "createdAt": %d\n}\n' % (env.pid, inode)
            env.write(fd, record, 0)
            env.close(fd)
            _use(me, path, inode, inside_for)
            me.prompt(_PROMPT)
            if _contents(me, path) == record:
                _remove(me, path)
            me.prompt()
            return

    return program


def _remove_if_stale(me: Actor, path: str, stale: float) -> None:
    try:
        modified = me.process.stat(path).st_mtime
    except FileNotFoundError:
        return
    data = _contents(me, path)
    if me.process.time() - modified > stale and _contents(me, path) == data:
        _remove(me, path)


def beads(path: str, *, inside_for: float = 0.0) -> Program:
    """The beads writer: it writes over any file there, and removes it at the end."""

    def program(me: Actor) -> None:
        env = me.process
        fd = env.open_over(path)
        inode = env.files[fd].inode.number
        env.write(
            fd,
            b'{"holder": "tool", "pid": %d, "hostname": "host", "started_at": "2026-01-01T00:00:00Z", '
            b'"version": ""}' % env.pid,
            0,
        )
        env.close(fd)
        _use(me, path, inode, inside_for)
        _remove(me, path)

    return program


def daemon(path: str, *, cycles: int = 2, pause: float = 0.01) -> Program:
    """The beads daemon: it works on the database unless it finds a lock file."""

    def program(me: Actor) -> None:
        for _ in range(cycles):
            if _contents(me, path) is None:
                me.note("works on the database")
                for checker in me.world.checkers:
                    checker.found_free(me.world, me, path)
            me.sleep(pause)

    return program
