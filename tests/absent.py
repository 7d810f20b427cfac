"""Names used by tests that Python for Windows lacks: their use skips the test, and says what was missing.

A test is skipped if it, or a function of the tests that it calls, uses a missing name. The modules have stand-ins, as
they are imported all the same, by nothing that holdfast runs on Windows. To be imported before all of these.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

import pytest

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
NAMES = frozenset(
    {
        *MODULES,
        "fork",
        "geteuid",
        "getuid",
        "setuid",
        "chown",
        "mkfifo",
        "mkfifoat",
        "eventfd",
        "memfd_create",
        "inotify",
    }
    | {
        "inotify_instance",
        "O_NONBLOCK",
        "O_CLOEXEC",
        "O_PATH",
        "pidfd_open",
        "sched_yield",
        "killpg",
        "waitid",
        "statvfs",
    }
    | {"SIGKILL", "SIGSTOP", "SIGALRM", "SIGUSR1", "SIGCONT", "SIGHUP", "setitimer", "pthread_kill", "pthread_sigmask"}
    | {
        "CLOCK_MONOTONIC",
        "pread",
        "pwrite",
        "tzset",
        "CLOCK_BOOTTIME",
        "get_blocking",
        "set_blocking",
        "fchmod",
        "sigwait",
        "AF_UNIX",
        "kqueues",
    }
)
_TESTS = str(Path(__file__).parent) + os.sep
_OURS = {
    f"{_TESTS}{name}.py"
    for name in ("absent", "abilities", "ahead", "conftest", "instances", "leftovers", "places", "warm")
}


class Absent(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0 if name.isupper() else _skipping(f"{self.__name__}.{name}")


def _skipping(what: str) -> Callable[..., NoReturn]:
    def skip(*_args: object, **_kwargs: object) -> NoReturn:
        pytest.skip(f"needs {what}, which Windows does not have", allow_module_level=True)

    return skip


def _unlink(path: Any, *, real: Callable[..., None] = os.unlink) -> None:
    """Remove a name as Windows 10 does: it goes at once, whoever has the file open. Wine keeps it until that is
    closed."""
    if os.path.isfile(path):
        away = os.path.join(tempfile.gettempdir(), f"removed-{os.getpid()}-{next(_numbers)}")
        os.rename(path, away)
        path = away
    real(path)


def _replace(path: Any, goal: Any, *, real: Callable[..., None] = os.replace) -> None:
    """Replace a file in two steps, as only POSIX replaces a file that somebody has open."""
    if os.path.isfile(goal):
        _unlink(goal)
    real(path, goal)


def _symlink(*where: Any, real: Callable[..., None] = os.symlink, **how: Any) -> None:
    real(*where, **how)
    if not os.path.islink(where[1]):
        pytest.skip("needs symbolic links, which Wine only pretends to make")


_numbers = itertools.count()
if sys.platform == "win32":
    for name in MODULES:
        sys.modules[name] = Absent(name)
    os.mkfifo = _skipping("os.mkfifo")  # type: ignore[attr-defined]  # which tests have in tables
    if hasattr(ctypes.WinDLL("ntdll"), "wine_get_version"):
        os.unlink = os.remove = _unlink
        os.replace = _replace
        os.symlink = _symlink


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Skip tests that name one of these, directly or by way of other functions and fixtures, before they open
    anything."""
    for item in items:
        fixtures = [found[-1].func for found in item._fixtureinfo.name2fixturedefs.values()]
        for function in (item.function, *fixtures):
            if missing := _missing(function, 4):
                item.add_marker(pytest.mark.skip(reason=f"needs {missing}, which Windows does not have"))
                break


@functools.cache
def _missing(function: Callable[..., object], depth: int) -> str:
    """The missing names that a function uses, itself or by its calls."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not code.co_filename.startswith(_TESTS) or code.co_filename in _OURS:
        return ""
    names = set(_names(code))
    if found := sorted(names & NAMES):
        return found[0]
    known = inspect.unwrap(function).__globals__
    others = [known.get(name) for name in sorted(names)] if depth else []
    found = [_missing(one, depth - 1) for one in others if isinstance(one, FunctionType)]
    return next(filter(None, found), "")


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
