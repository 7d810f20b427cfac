"""Run a function in another process: as another user, with its own mounts, or short of descriptors."""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest

NOBODY = 65534
_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE, MS_RDONLY, MS_REMOUNT = 0x4000, 1 << 18, 1, 32

IS_ROOT = os.name == "posix" and os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="needs root: acts as another user or mounts filesystems")


def elsewhere(
    function: Callable[[], Any],
    *,
    user: int | None = None,
    mounts: Callable[[], None] | None = None,
    files: int | None = None,
    limit: int = 60,
) -> Any:
    """Run the function in a forked child; its result, or what it raises.

    `mounts` runs first, in a mount namespace of the child's own; `user` is switched to last but one; `files` is the
    number of descriptors that may be open. A child that needs more than `limit` seconds is killed by its alarm.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _be_child(function, writing, user, mounts, files, limit)
    os.close(writing)
    with open(reading, "rb") as file:
        answer = file.read()
    _, status = os.waitpid(child, 0)
    assert answer, f"the child ended without an answer, status {status:#x}"
    kind, value = pickle.loads(answer)
    if kind == "unable":
        pytest.skip(f"not permitted here: {value}")
    if kind == "raised":
        raise value
    return value


def _be_child(
    function: Callable[[], Any],
    writing: int,
    user: int | None,
    mounts: Callable[[], None] | None,
    files: int | None,
    limit: int,
) -> None:
    answer: tuple[str, Any]
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(limit)
    try:
        try:
            if mounts is not None:
                unshare(_CLONE_NEWNS)
                mount("none", "/", None, _MS_REC | _MS_PRIVATE)
                mounts()
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            if files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        except OSError as error:
            answer = ("unable", str(error))
        else:
            answer = ("returned", function())
    except BaseException as error:
        answer = ("raised", error)
    try:
        data = pickle.dumps(answer)
        pickle.loads(data)
    except Exception:
        data = pickle.dumps(("raised", AssertionError("".join(traceback.format_exception(*sys.exc_info())))))
    with open(writing, "wb") as file:
        file.write(data)
    os._exit(0)


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    _check(
        _libc().mount(
            source.encode(),
            os.fsencode(target),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            options.encode(),
        ),
        f"mount {target}",
    )


def unshare(flags: int) -> None:
    _check(_libc().unshare(flags), "unshare")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)


def results(*ways: Callable[[], object]) -> list[str]:
    """The results, or the names of the errors raised, as text."""
    found = []
    for way in ways:
        try:
            found.append(repr(way()))
        except Exception as error:
            found.append(type(error).__name__)
    return found
