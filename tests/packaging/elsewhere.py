"""Python as it is on another system, as far as that can be had here: without the modules and names that it lacks there.

`python elsewhere.py SYSTEM DIRECTORY` takes them away, then imports every module of holdfast, and uses locks. This
cannot show the behaviour of another kernel: that an open file cannot be removed on Windows, say. On such a system
itself, SYSTEM is `here`, and nothing is taken away.
"""

from __future__ import annotations

import _socket
import asyncio
import contextlib
import functools
import importlib
import importlib.abc
import io
import json
import os
import pkgutil
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

# What of the standard library is imported at need, and looks by itself at the system that it is on.
NEEDED = (
    *("argparse", "asyncio", "ctypes", "decimal", "hashlib", "importlib.metadata", "importlib.resources", "json"),
    *("logging", "multiprocessing.util", "secrets", "select", "shutil", "signal", "socket", "ssl", "subprocess"),
    *("tempfile", "textwrap", "time", "unicodedata", "uuid"),
    *("h11", "opentelemetry.trace", "prometheus_client", "psycopg"),
)

MODULES = {
    "darwin": set[str](),
    "win32": {"crypt", "curses", "fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"},
}
NAMES = {
    "darwin": """
        os: O_TMPFILE O_PATH eventfd eventfd_read eventfd_write EFD_CLOEXEC EFD_NONBLOCK pidfd_open memfd_create setns
        os: unshare getrandom sched_getaffinity sched_setaffinity copy_file_range splice posix_fallocate fdatasync pipe2
        os: waitid P_ALL CLD_EXITED
        signal: pidfd_send_signal sigwaitinfo sigtimedwait SIGPWR SIGSTKFLT SIGRTMIN SIGRTMAX SIGPOLL
        select: epoll EPOLLIN
        time: CLOCK_BOOTTIME
    """,
    "win32": """
        os: O_TMPFILE O_PATH O_NONBLOCK O_NOFOLLOW O_DIRECTORY O_CLOEXEC O_NOCTTY O_SYNC O_DSYNC eventfd eventfd_read
        os: eventfd_write pidfd_open memfd_create copy_file_range splice posix_fallocate posix_fadvise fdatasync pipe2
        os: fork forkpty register_at_fork getuid geteuid getgid getegid getgroups setuid setgid setgroups getsid setsid
        os: getpgid getpgrp setpgid setpgrp killpg mkfifo mknod chown fchown lchown chroot fchdir statvfs fstatvfs nice
        os: sysconf confstr uname wait wait3 wait4 waitid WNOHANG WUNTRACED posix_spawn posix_spawnp pread pwrite preadv
        os: pwritev readv writev sendfile sched_getaffinity sched_yield sync tcgetpgrp tcsetpgrp ttyname openpty major
        os: minor makedev lockf getrandom getloadavg getxattr setxattr listxattr fchmod set_blocking get_blocking
        signal: SIGHUP SIGQUIT SIGKILL SIGPIPE SIGALRM SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGXFSZ SIGWINCH
        signal: pthread_sigmask pthread_kill sigwait sigwaitinfo sigtimedwait setitimer getitimer ITIMER_REAL alarm
        signal: pause pidfd_send_signal SIG_BLOCK SIG_UNBLOCK SIG_SETMASK siginterrupt sigpending
        select: epoll EPOLLIN poll POLLIN POLLOUT POLLERR POLLHUP
        socket: AF_UNIX
        time: CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_REALTIME clock_gettime tzset
    """,
}
"""Names that are missing there, by the documentation of Python."""


class Blocked(importlib.abc.MetaPathFinder):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, *_more: object) -> None:
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def become(system: str) -> None:
    for name in NEEDED:
        importlib.import_module(name)
    socket.socketpair = functools.partial(_socket.socketpair, socket.AF_UNIX)  # Windows has it, without that name
    free = shutil.disk_usage("/")
    shutil.disk_usage = lambda _path: free
    sys.meta_path.insert(0, Blocked(MODULES[system] | {"psutil"}))
    for name in MODULES[system]:
        sys.modules.pop(name, None)
    for line in NAMES[system].strip().splitlines():
        module, _, names = line.strip().partition(": ")
        for name in names.split():
            for holder in (module, f"_{module}"):  # the part in C of `signal` has the same names
                if holder in sys.modules:
                    with contextlib.suppress(AttributeError):
                        delattr(sys.modules[holder], name)
    sys.platform = system
    if system == "win32":
        os.environ["HOLDFAST_OS"] = "generic"  # the abilities of Windows itself are for tests/platforms


def every_module() -> list[str]:
    """All modules of holdfast, except those of one system by name, and those that need the package of an extra."""
    import holdfast

    names = [name for _, name, _ in pkgutil.walk_packages(holdfast.__path__, "holdfast.")]
    ours = {"linux", "inotify", "proc_locks", "probes", "tree", "windows", "windows_console"}
    if "fcntl" in MODULES.get(sys.platform, ()):
        ours |= {"posix", "kqueue"}
    return [
        name
        for name in names
        if not name.endswith(".__main__")
        and not (name.startswith("holdfast._platform.") and name.rsplit(".")[-1] in ours)
    ]


def use(place: Path) -> None:
    from holdfast import AcquireTimeout, AsyncLock, Lock, LockLost, Semaphore, _platform, acquire_all

    persistent = ("flock",) if _platform.environment().guards else ()
    for protocol in ("sema", "semats", "sidecar", "beads", *persistent):
        lock = Lock(place / protocol / "lock", protocol=protocol, parents=True, timeout=5, fencing=True)
        with lock as hold:
            hold.ensure_held()
            assert lock.status().locked
            assert lock.try_acquire() is None
            who = "a process" if protocol == "flock" else f"process {os.getpid()}"  # no table names the former
            with pytest.raises(AcquireTimeout, match=f"held by {who}"):
                Lock(place / protocol / "lock", protocol=protocol).acquire(timeout=0.05)
        assert not lock.status().locked
    with Semaphore(place / "pool", 2) as first, Semaphore(place / "pool", 2) as second:
        assert (first.slot, second.slot) == (0, 1)
    with acquire_all([Lock(place / "a"), Lock(place / "b")]):
        pass

    lost = threading.Event()
    with contextlib.suppress(LockLost), Lock(place / "d", on_lost=lambda _error: lost.set(), heartbeat=0.05):
        os.unlink(place / "d")
        assert lost.wait(20), "nobody looks after holds"

    async def tasks() -> None:
        async with AsyncLock(place / "c") as hold:
            assert await AsyncLock(place / "c").try_acquire() is None
            hold.ensure_held()

    asyncio.run(tasks())


def command(*words: object) -> tuple[int, str]:
    """Status and output of one command of the command line."""
    from holdfast.cli import main

    out = io.StringIO()
    out.reconfigure = lambda **_: None  # type: ignore[attr-defined]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main([*map(str, words)])
        except SystemExit as end:
            return int(end.code or 0), out.getvalue()
    raise AssertionError("a command returned")


def commands(place: Path) -> None:
    lock, me = place / "cli.lock", os.getpid()
    assert command("--version")[0] == 0
    assert command("try", "--no-keeper", "--owner-pid", me, lock)[0] == 0
    status, out = command("status", "--json", lock)
    assert (status, json.loads(out)["holder"]["pid"]) == (1, me)
    assert command("ls", place)[0] == 0
    assert command("wait", "-w", "0", lock)[0] == 1
    assert command("release", "--owner-pid", me, lock)[0] == 0
    assert command("wait", "-w", "0", lock)[0] == 0
    status, out = command("doctor", place)
    assert (status, "some promises are weaker" in out) == (1, True), out
    assert command("clean", place)[0] == 0
    waiting = (("run", lock, "--", "true"), ("beads", "daemon", place, "--", "true"))
    for words in () if hasattr(signal, "sigwait") else waiting:
        status, out = command(*words)
        assert (status, "needs a call that this system does not have" in out) == (3, True), out
        assert not lock.exists()
    status, out = command("watch", "--seconds", "0.1", place)
    assert status == 0, out
    assert "Traceback" not in out
    assert command("sema", "try", lock)[0] == 0
    assert command("sema", "release", lock)[0] == 0


def run(place: Path) -> None:
    """Test `holdfast run` in processes of its own: it ends the process in which it is called."""
    from holdfast.cli import main

    lock = place / "run.lock"
    for line, expected in (("exit 7", 7), ("kill -KILL $$", -signal.SIGKILL)):
        child = os.fork()
        if child == 0:
            main(["run", str(lock), "--", "sh", "-c", f'test -s "$HOLDFAST_LOCK" && {line}'])
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == expected, (line, status)
        assert not lock.exists()
    child = os.fork()
    if child == 0:
        main(["run", str(lock), "--", "sh", "-c", f"echo > {lock}.begun; exec sleep 60"])
    while not (place / "run.lock.begun").exists():
        time.sleep(0.01)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM, "TERM is passed on"
    assert not lock.exists()


if __name__ == "__main__":
    if sys.argv[1] != "here":
        become(sys.argv[1])
    for module in every_module():
        importlib.import_module(module)
    import holdfast._platform.tree

    expected = {"win32": "GenericEnvironment"}.get(sys.platform, "PosixEnvironment")
    assert type(holdfast._platform.environment()).__name__ == expected
    use(Path(sys.argv[2]))
    commands(Path(sys.argv[2]))
    if hasattr(signal, "sigwait"):
        if sys.argv[1] != "here":
            holdfast._platform.tree.SIGINFO = (8, 16, 24)  # that of the kernel that it is run on
        run(Path(sys.argv[2]))
    print("all of it")
