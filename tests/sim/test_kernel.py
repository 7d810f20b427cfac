"""The simulated kernel beside the real one: the same random steps have the same results.

Two environments stand for two processes, for the engine and for the locks of the real kernel alike."""

from __future__ import annotations

import errno
import math
import random
import select
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast._core.wait import Wait
from holdfast._platform.linux import LinuxEnvironment
from holdfast._platform.values import Presence
from sim.kernel import Kernel, Mount, Process
from sim.search import Replay
from sim.world import Actor, World

NAMES = ("a", "b", "q")
STEPS = 90


def _polled(fd: int) -> list[int]:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return [event for _, event in poll.poll(0)]


class Twin:
    """A process in each world; both take each step. Descriptors are known by the order of their opening."""

    def __init__(self, kernel: Kernel, place: Path, pid: int) -> None:
        self.real = LinuxEnvironment()
        self.made = Process(kernel, f"P{pid}", pid)
        self.made.step = lambda *_: None  # type: ignore[method-assign]
        self.place = place
        self.fds: list[tuple[int, int]] = []
        self.directory = (self.real.open_directory(str(place)), self.made.open_directory("/d"))
        self.ends: list[tuple[int, int]] = []
        """Of FIFOs."""
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

    def within(self, op: str, *args: Any, **named: Any) -> tuple[Any, Any]:
        """Take a step that names files in the open directory."""
        real, made = self.directory
        return (
            _result(getattr(self.real, op), args, {**named, "dir_fd": real}),
            _result(getattr(self.made, op), args, {**named, "dir_fd": made}),
        )

    def on_end(self, op: str, at: int) -> tuple[Any, Any]:
        real, made = self.ends[at]
        return self.both(op, (real,), (made,))

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


def fifo_step(twin: Twin, rng: random.Random) -> tuple[str, tuple[Any, Any]]:
    """A step that concerns FIFOs."""
    name, other = rng.choice(NAMES), rng.choice(NAMES)
    on_end = ["hung_up", "ready", "nudge", "is_unread", "drain", "close"] * 2 if twin.ends else []
    op = rng.choice(["make_fifo", "open_to_read", "open_to_write", "rename", *on_end])
    if op == "make_fifo":
        return op, twin.within(op, name, 0o600)
    if op == "rename":
        kinds = {twin.made.kernel.names[path].mode for path in (f"/d/{name}", f"/d/{other}") if path in _names(twin)}
        return op, (None, None) if any(map(stat.S_ISDIR, kinds)) else twin.within(op, name, other)
    if op.startswith("open"):
        inode = twin.made.kernel.names.get(f"/d/{name}")
        if inode is not None and not stat.S_ISFIFO(inode.mode):
            return op, (None, None)
        real, made = twin.within("open_fifo", name, write=op == "open_to_write")
        if isinstance(real, int) and isinstance(made, int):
            twin.ends.append((real, made))
            real = made = "opened"
        return op, (real, made)
    at = rng.randrange(len(twin.ends))
    real, made = twin.ends[at]
    if op == "ready":
        return op, (bool(_polled(real)), twin.made.files[made].is_ready)
    if op == "drain" and not twin.made.files[made].reads:
        return op, (None, None)
    found = twin.on_end(op, at)
    if op == "close":
        del twin.ends[at]
    return op, found


def _names(twin: Twin) -> Collection[str]:
    return twin.made.kernel.names


def step(twin: Twin, rng: random.Random) -> tuple[str, tuple[Any, Any]]:
    """Take the same step in both worlds; returns its description and the two results."""
    if rng.random() < 0.4:
        return fifo_step(twin, rng)
    name = rng.choice(NAMES)
    on_fd = ["guard", "share", "guarded", "unguard", "close", "fstat", "read", "write", "link_unnamed"]
    on_name = ["open_new", "open_read", "open_write", "unlink", "exists", "stat", "list", "mkdir", "rmdir", "unnamed"]
    op = rng.choice(on_name + ["watch"] + (on_fd * 2 if twin.fds else []) + ["take"] * 4 * bool(twin.watches))
    at = rng.randrange(len(twin.fds)) if twin.fds else 0
    if op == "take":
        real, made = rng.choice(twin.watches)
        return op, (real.take(), made.take())
    if op == "watch":
        inode = twin.made.kernel.names.get(f"/d/{name}")
        if inode is not None and inode.entries is not None:
            return op, (None, None)  # the engine watches no directory
        for real, made in twin.watches:  # on Linux, a new watch may hear of earlier events
            real.take(), made.take()
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
    """Link a file, if it has no name yet: nothing else is linked this way."""
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


@pytest.mark.parametrize("seed", range(100))
def test_a_step_has_the_same_result_as_on_linux(seed: int, twins: list[Twin]) -> None:
    rng = random.Random(seed)
    done = []
    for number in range(STEPS):
        which = rng.randrange(2)
        op, (real, made) = step(twins[which], rng)
        done.append(f"{which} {op}: {real}")
        if op == "write" and isinstance(real, str) != isinstance(made, str):
            return  # a read-only descriptor: the engine never writes to one
        assert real == made, f"step {number}: Linux says {real}, the simulation {made}, after\n" + "\n".join(done)


def _processes(*mounts: Mount, **machine: Any) -> list[Process]:
    """Processes that take each step at once, each with its directory opened."""
    kernel = Kernel(**machine)
    made = [Process(kernel, "ABCD"[at], 101 + at, mount=mount) for at, mount in enumerate(mounts)]
    for process in made:
        process.step = lambda *_: None  # type: ignore[method-assign]
        assert process.open_directory("/d") == DIRECTORY
    return made


DIRECTORY = 3


def _has_no_reader(process: Process, name: str) -> bool:
    try:
        process.close(process.open_fifo(name, write=True, dir_fd=DIRECTORY))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return True
    return False


def test_a_fifo_has_no_reader_on_another_device() -> None:
    owner, neighbour, elsewhere = _processes(Mount(1), Mount(1), Mount(2))
    owner.make_fifo("t", 0o600, dir_fd=DIRECTORY)
    end = owner.open_fifo("t", write=False, dir_fd=DIRECTORY)
    assert not _has_no_reader(neighbour, "t")
    assert _has_no_reader(elsewhere, "t")
    owner.close(end)
    assert _has_no_reader(neighbour, "t")


@pytest.mark.parametrize("slowly", [False, True])
def test_the_death_of_a_reader_hangs_up_and_a_copy_of_its_end_delays_that(*, slowly: bool) -> None:
    owner, child, neighbour = _processes(Mount(), Mount(), Mount(), slow_close=slowly)
    owner.make_fifo("t", 0o600, dir_fd=DIRECTORY)
    owner.open_fifo("t", write=False, dir_fd=DIRECTORY)
    end = neighbour.open_fifo("t", write=True, dir_fd=DIRECTORY)
    child.inherit(owner, fifos=True)
    owner.end()
    assert not neighbour.hung_up(end)
    child.end()
    for deferred in neighbour.kernel.deferred:
        assert not neighbour.hung_up(end)
        deferred.act()
    assert neighbour.hung_up(end)


def test_a_started_command_has_no_fifo_of_its_parent() -> None:
    owner, child, neighbour = _processes(Mount(), Mount(), Mount())
    owner.make_fifo("t", 0o600, dir_fd=DIRECTORY)
    owner.open_fifo("t", write=False, dir_fd=DIRECTORY)
    child.inherit(owner)
    owner.end()
    assert _has_no_reader(neighbour, "t")


@pytest.mark.parametrize("how", ["close", "death", "byte"])
def test_a_wait_for_a_fifo_ends_when_its_reader_goes_or_a_byte_comes(how: str) -> None:
    """Time passes only while no process can go on."""
    world = World(Kernel())
    ended: list[float] = []

    def owns(me: Actor) -> None:
        end = _end_of(me, "t", write=False)
        if how == "byte":
            me.pause(Wait((end,), math.inf))
            ended.append(me.world.kernel.now)
            assert me.process.drain(end)
            me.process.close(end)
            return
        me.sleep(1.0)
        if how == "close":
            me.process.close(end)

    def is_behind(me: Actor) -> None:
        end = _end_of(me, "t", write=True)
        if how == "byte":
            me.sleep(1.0)
            me.process.nudge(end)
        else:
            me.pause(Wait((end,), math.inf))
            ended.append(me.world.kernel.now)
            assert me.process.hung_up(end)
        me.process.close(end)

    world.kernel.add("/d/t", stat.S_IFIFO | 0o600)
    for number, program in enumerate((owns, is_behind)):
        world.actor(world.process("AB"[number], 101 + number), program)
    world.run(Replay([]))
    assert ended == [world.kernel.now]
    assert world.kernel.now == 1001.0


def _end_of(me: Actor, name: str, *, write: bool) -> int:
    directory = me.process.open_directory("/d")
    return me.process.open_fifo(name, write=write, dir_fd=directory)


def test_nothing_is_made_or_renamed_in_a_directory_that_was_removed() -> None:
    owner, neighbour = _processes(Mount(), Mount())
    owner.make_directory("/d/q", 0o700)
    there = owner.open_directory("/d/q")
    owner.make_fifo("t.new", 0o600, dir_fd=there)
    neighbour.unlink("/d/q/t.new")
    neighbour.remove_directory("/d/q")
    neighbour.make_directory("/d/q", 0o700)
    with pytest.raises(FileNotFoundError):
        owner.make_fifo("t.new", 0o600, dir_fd=there)
    with pytest.raises(FileNotFoundError):
        owner.rename("t.new", "t", dir_fd=there)


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
