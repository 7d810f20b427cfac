"""The simulated kernel beside the real one: the same steps, at random, have the same results.

Two environments are two processes here, for the engine and for the locks of the real kernel alike.
"""

from __future__ import annotations

import errno
import random
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast._platform.linux import LinuxEnvironment
from holdfast._platform.values import Presence
from sim.kernel import Kernel, Mount, Process

NAMES = ("a", "b", "q")
STEPS = 60


class Twin:
    """A process in each world, which takes each step in both. Descriptors are known by the order of their opening."""

    def __init__(self, kernel: Kernel, place: Path, pid: int) -> None:
        self.real = LinuxEnvironment()
        self.made = Process(kernel, f"P{pid}", pid)
        self.made.step = lambda *_: None  # type: ignore[method-assign]
        self.place = place
        self.fds: list[tuple[int, int]] = []
        self.watches: list[tuple[Any, Any]] = []

    def both(self, name: str, real: tuple[Any, ...], made: tuple[Any, ...], **named: Any) -> tuple[Any, Any]:
        return (
            _result(getattr(self.real, name), real, named),
            _result(getattr(self.made, name), made, named),
        )

    def on_name(self, op: str, name: str, *more: Any, **named: Any) -> tuple[Any, Any]:
        return self.both(op, (f"{self.place}/{name}", *more), (f"/d/{name}", *more), **named)

    def on_fd(self, op: str, at: int, *more: Any, **named: Any) -> tuple[Any, Any]:
        real, made = self.fds[at]
        return self.both(op, (real, *more), (made, *more), **named)

    def open(self, op: str, name: str, *more: Any, **named: Any) -> tuple[Any, Any]:
        real, made = self.on_name(op, name, *more, **named)
        if isinstance(real, int) and isinstance(made, int):
            self.fds.append((real, made))
            return "opened", "opened"
        return real, made


def _result(call: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    try:
        found = call(*args, **named)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    if hasattr(found, "st_size"):
        return "directory" if stat.S_ISDIR(found.st_mode) else found.st_size
    return sorted(found) if isinstance(found, list) else found


def step(twin: Twin, rng: random.Random) -> tuple[str, tuple[Any, Any]]:
    """One step, the same in both worlds; what it was, and the two results."""
    name = rng.choice(NAMES)
    on_fd = ["guard", "share", "guarded", "unguard", "close", "fstat", "read", "write", "link_unnamed"]
    on_name = ["open_new", "open_read", "open_write", "unlink", "exists", "stat", "list", "mkdir", "rmdir", "unnamed"]
    op = rng.choice(on_name + ["watch"] + (on_fd * 2 if twin.fds else []) + ["take"] * 4 * bool(twin.watches))
    at = rng.randrange(len(twin.fds)) if twin.fds else 0
    if op == "take":
        real, made = rng.choice(twin.watches)
        return op, (real.take(), made.take())
    if op == "watch":
        real, made = twin.on_name("watch", name, readers=True)
        if not isinstance(real, str) and not isinstance(made, str):
            twin.watches.append((real, made))
            real = made = "watching"
        return op, (real, made)
    if op == "close":
        found = twin.on_fd(op, at)
        del twin.fds[at]
        return op, found
    actions = {
        "open_new": lambda: twin.open("open_new", name, 0o644),
        "open_read": lambda: twin.open("open_existing", name, write=False),
        "open_write": lambda: twin.open("open_existing", name, write=True),
        "unnamed": lambda: _unnamed(twin),
        "list": lambda: twin.both("list_directory", (str(twin.place),), ("/d",)),
        "mkdir": lambda: twin.on_name("make_directory", name, 0o755),
        "rmdir": lambda: twin.on_name("remove_directory", name),
        "share": lambda: twin.on_fd("guard", at, shared=True),
        "read": lambda: twin.on_fd("read", at, 100),
        "write": lambda: twin.on_fd("write", at, b"x" * rng.randrange(1, 9), 0),
        "link_unnamed": lambda: _link(twin, at, name),
    }
    if op in actions:
        return op, actions[op]()
    return op, (twin.on_fd if op in on_fd else twin.on_name)(op, at if op in on_fd else name)


def _unnamed(twin: Twin) -> tuple[Any, Any]:
    real, made = twin.both("open_unnamed", (str(twin.place), 0o644), ("/d", 0o644))
    twin.fds.append((real, made))
    return "opened", "opened"


def _link(twin: Twin, at: int, name: str) -> tuple[Any, Any]:
    """Only of a file that has no name yet: nothing else is linked so."""
    inode = twin.made.files[twin.fds[at][1]].inode
    if not inode.private:
        return None, None
    return twin.both("link_unnamed", (twin.fds[at][0], f"{twin.place}/{name}"), (twin.fds[at][1], f"/d/{name}"))


@pytest.fixture
def twins(shm: Path) -> Iterator[list[Twin]]:
    kernel = Kernel()
    made = [Twin(kernel, shm, 101), Twin(kernel, shm, 102)]
    yield made
    for twin in made:
        for real, _ in twin.watches:
            real.close()
        for fd in list(twin.real._descriptors):
            twin.real.close(fd)


@pytest.mark.parametrize("seed", range(40))
def test_a_step_has_the_same_result_as_on_linux(seed: int, twins: list[Twin]) -> None:
    rng = random.Random(seed)
    done = []
    for number in range(STEPS):
        which = rng.randrange(2)
        op, (real, made) = step(twins[which], rng)
        done.append(f"{which} {op}: {real}")
        if op == "write" and isinstance(real, str) != isinstance(made, str):
            return  # a descriptor that can only read: the engine never writes to one
        assert real == made, f"step {number}: Linux says {real}, the simulation {made}, after\n" + "\n".join(done)


def test_a_number_given_out_again_is_not_taken_for_the_dead() -> None:
    kernel = Kernel()
    first, other = Process(kernel, "A", 101), Process(kernel, "B", 102)
    other.step = lambda *_: None  # type: ignore[method-assign]
    before = other.inspect(101)
    first.end()
    assert other.inspect(101).presence is Presence.GONE
    Process(kernel, "C", 101)
    after = other.inspect(101)
    assert after.presence is Presence.RUNNING
    assert after.started != before.started


def test_a_number_of_another_namespace_is_not_seen() -> None:
    kernel = Kernel()
    Process(kernel, "A", 101, namespace="1")
    other = Process(kernel, "B", 102, namespace="2")
    other.step = lambda *_: None  # type: ignore[method-assign]
    assert other.inspect(101).presence is Presence.GONE


def test_an_inherited_lock_goes_with_the_last_process_that_has_it() -> None:
    kernel = Kernel()
    parent, child, other = (Process(kernel, name, 101 + at) for at, name in enumerate("ABC"))
    for process in (parent, child, other):
        process.step = lambda *_: None  # type: ignore[method-assign]
    fd = parent.open_new("/d/l", 0o644)
    assert parent.guard(fd)
    child.inherit(parent)
    parent.end()
    probe = other.open_existing("/d/l", write=False)
    assert other.guarded(probe)
    child.end()
    assert not other.guarded(probe)


def test_views_that_share_no_locks_share_none() -> None:
    kernel = Kernel()
    mounts = [Mount(at, domain=at) for at in range(2)]
    lower, upper = (Process(kernel, "AB"[at], 101, namespace="AB"[at], mount=mounts[at]) for at in range(2))
    for process in (lower, upper):
        process.step = lambda *_: None  # type: ignore[method-assign]
    fd = lower.open_new("/d/l", 0o644)
    assert lower.guard(fd)
    seen = upper.open_existing("/d/l", write=False)
    assert upper.guarded(seen) is False
    assert upper.fstat(seen).st_dev != lower.fstat(fd).st_dev
