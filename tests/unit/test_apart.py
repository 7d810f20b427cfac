"""A server that does not answer (_drivers/apart.py), played by a mutex in the step that makes a lock's file."""

from __future__ import annotations

import _thread
import asyncio
import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    AcquireCancelled,
    AcquireTimeout,
    AsyncLock,
    EngineUnavailable,
    Lock,
    LockLost,
    Semaphore,
    aio,
    beads,
    cli,
    events,
    sema,
    semats,
    sidecar,
)
from holdfast._core.attempt import Refusal
from holdfast._core.messages import waiting
from holdfast._drivers import apart
from holdfast._drivers.apart import Apart, Step
from holdfast._platform import environment, fork, procfs
from holdfast.cli.locks import _WaitingNotice
from holdfast.engines.file import paths, uncontended
from holdfast.engines.file.request import FileRequest
from holdfast.lock import file_request, state_of
from holdfast.several import Plan
from unit.stepping import Stepped, failing

PATIENCE = 60.0
SHORT = 0.05
ROOM = 5.0
"""Seconds beyond the deadline and the grace, on a busy machine."""


class Server:
    """The server behind one directory: steps there are answered at once, when told, or fail meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        env = environment()
        self.directory = str(directory)
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()
        self.fails = False
        for name in ("open_unnamed", "open_existing", "stat", "unlink"):
            self._patch(monkeypatch, env, name)
        kind, may_block = type(env), type(env).may_block
        monkeypatch.setattr(
            kind, "may_block", lambda env, path: path.startswith(self.directory) or may_block(env, path)
        )
        monkeypatch.setattr(kind, "server_at", lambda _env, _path: "the server of a test")
        monkeypatch.setattr(
            kind,
            "is_away",
            lambda _env, path, error: self.fails and path.startswith(self.directory) and error is not None,
        )

    def _patch(self, monkeypatch: pytest.MonkeyPatch, env: Any, name: str) -> None:
        real = getattr(env, name)

        def step(path: str, *arguments: Any, **more: Any) -> Any:
            if os.fspath(path).startswith(self.directory) and not self.answers.is_set():
                self.asked.set()
                if self.fails:
                    raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), path)
                assert self.answers.wait(PATIENCE)
            return real(path, *arguments, **more)

        monkeypatch.setattr(env, name, step)

    def dies(self) -> None:
        self.asked.clear()
        self.answers.clear()

    def goes_away(self) -> None:
        """Steps fail instead of waiting for it."""
        self.dies()
        self.fails = True

    def comes_back(self) -> None:
        self.answers.set()


@pytest.fixture
def server(shm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    (shm / "share").mkdir()
    made = Server(monkeypatch, shm / "share")
    monkeypatch.setattr(apart, "GRACE", 0.15)
    monkeypatch.setattr(apart, "ANSWER", PATIENCE)  # of a server that does answer, on a busy machine
    yield made
    made.comes_back()
    assert_nothing_left(shm / "share")


def assert_nothing_left(directory: Path) -> None:
    env = environment()
    until(lambda: not apart._left and not apart._going)
    env.operations.finish_broken_off()
    assert not env.operations.running
    assert not fork.in_flight
    assert not [held for held in env.holds.values() if held.path.startswith(str(directory))]
    assert not [name for name in os.listdir(directory) if not name.endswith(".token")]


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def seconds(call: Callable[[], object], error: type[BaseException]) -> tuple[float, str]:
    began = time.monotonic()
    with pytest.raises(error) as raised:
        call()
    return time.monotonic() - began, str(raised.value)


# -- mounts ------------------------------------------------------------------------------------------------------------


def test_a_mount_is_recognised_without_asking_its_server(
    tmp_path: Path, environments: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP1: also behind `..` and symbolic links on other filesystems."""
    share = tmp_path / "share"
    (tmp_path / "mountinfo").write_text(
        f"27 1 254:0 / / rw - ext4 /dev/vda rw\n41 27 0:41 / {share} rw - nfs4 server:/a rw\n"
    )
    (tmp_path / "way").mkdir()
    (tmp_path / "way" / "link").symlink_to("../way/next")
    (tmp_path / "way" / "next").symlink_to(share / "deep")
    (tmp_path / "way" / "round").symlink_to("round")
    monkeypatch.setattr(procfs, "MOUNTS", str(tmp_path / "mountinfo"))
    env = environments(kind="linux").real
    asked: list[str] = []
    for name in ("stat", "lstat", "readlink", "open", "listdir"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda path, *a, real=real, **k: asked.append(f"{path}") or real(path, *a, **k))
    found = {
        name: env.may_block(f"{tmp_path}/{name}")
        for name in ("l", "share/l", "share/d/l", "way/link/l", "way/link/../l", "way/round/l", "share/../l", "none/l")
    }
    monkeypatch.undo()
    assert [name for name, known in found.items() if not known] == ["l", "way/round/l", "none/l"]
    assert not [path for path in asked if path.startswith(str(share))]
    assert env.server_at(f"{tmp_path}/way/link/l") == f"the server of {share} (nfs4, server:/a)"
    assert env.server_at(f"{tmp_path}/l") == ""


def test_the_type_of_the_mount_decides_which_errors_mean_that_its_server_is_away(
    tmp_path: Path, environments: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ST1, FP1: by observed behaviour, and without asking that server."""
    kinds = {"gluster": "fuse.glusterfs", "nfs": "nfs4", "nine": "9p"}
    rows = [
        f"{41 + at} 27 0:{41 + at} / {tmp_path}/{name} rw - {kind} h:/v rw\n"
        for at, (name, kind) in enumerate(kinds.items())
    ]
    (tmp_path / "mountinfo").write_text("27 1 254:0 / / rw - ext4 /dev/vda rw\n" + "".join(rows))
    monkeypatch.setattr(procfs, "MOUNTS", str(tmp_path / "mountinfo"))
    env = environments(kind="linux").real
    for number in (errno.ENOTCONN, errno.EBADFD, errno.ESTALE, errno.EIO):
        error = OSError(number, os.strerror(number))
        away = [name for name in ("gluster", "nfs", "nine", ".") if env.is_away(f"{tmp_path}/{name}/l", error)]
        assert away == ([] if number == errno.EIO else ["gluster"])
    assert [name for name in (*kinds, ".") if not env.reconnects(f"{tmp_path}/{name}/l")] == ["nine"]


def test_a_descriptor_that_its_server_has_forgotten_is_closed_all_the_same(
    shm: Path, environments: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FH7, FP1: GlusterFS refuses every call on it (EBADFD); its guard is gone."""

    def forgotten(*_: object) -> None:
        raise OSError(errno.EBADFD, os.strerror(errno.EBADFD))

    env = environments(kind="linux").real
    fd = env.open_new(f"{shm}/l", 0o600)
    assert env.guard(fd)
    with monkeypatch.context() as patched:
        patched.setattr("fcntl.flock", forgotten)
        env.unguard(fd)
    os.close(fd)
    fd.end = forgotten
    env.close(fd)
    assert not env.is_open(fd)


def test_a_new_mount_is_seen_within_a_moment(
    tmp_path: Path, environments: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP1: the answer for a directory expires, as something may be mounted there."""
    table, now = tmp_path / "mountinfo", [1000.0]
    table.write_text("27 1 254:0 / / rw - ext4 /dev/vda rw\n")
    monkeypatch.setattr(procfs, "MOUNTS", str(table))
    env = environments(kind="linux").real
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert not env.may_block(f"{tmp_path}/l")
    table.write_text(f"27 1 254:0 / / rw - ext4 /dev/vda rw\n28 27 0:41 / {tmp_path} rw - nfs4 server:/a rw\n")
    assert not env.may_block(f"{tmp_path}/l")
    now[0] += 1.1
    assert env.may_block(f"{tmp_path}/l")


# -- the claims --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before it has begun", "while it lasts", "when it has ended"])
def test_either_the_thread_or_the_caller_cleans_up(when: str, server: Server) -> None:
    """AP2."""
    reached, go_on = threading.Event(), threading.Event()
    undone: list[str] = []

    def call() -> str:
        reached.set()
        assert go_on.wait(PATIENCE)
        return "result"

    step = Step(Apart(environment(), Lock(f"{server.directory}/l")._request, 1.0), call)
    if when == "before it has begun":
        assert not step.leave(lambda: undone.append("thread"))
        step.begin()
        assert not reached.is_set(), "it never begins"
    else:
        step.begin()
        assert reached.wait(PATIENCE)
        if when == "while it lasts":
            assert step.leave(lambda: undone.append("thread"))
            assert step.leave(lambda: undone.append("thread")), "as often as it is asked"
            assert not step.wait(time.monotonic())
        go_on.set()
        assert step.wait(time.monotonic() + PATIENCE)
        if when == "when it has ended":
            assert not step.leave(lambda: undone.append("thread"))
            assert step.outcome() == "result"
    go_on.set()
    assert undone == (["thread"] if when == "while it lasts" else [])


# -- callers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["event", "descriptor"])
@pytest.mark.parametrize("when", ["the server is silent", "the lock is held"])
@pytest.mark.parametrize("how", ["alone", "with others"])
def test_a_cancelled_caller_waits_neither_for_a_server_nor_for_a_lock(
    how: str, kind: str, when: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP3; CX1 and CX2 of sync.py."""
    lock = Lock(f"{server.directory}/l")
    acquire: Callable[..., object] = lock.acquire
    if how == "with others":
        acquire = partial(holdfast.acquire_all, [lock])
        # The plan asks the server as well.
        monkeypatch.setattr("holdfast.several._directory", lambda request: (0, environment().stat(request.directory)))
    event, (reader, writer) = threading.Event(), os.pipe()
    holder = lock.acquire() if when == "the lock is held" else None
    if holder is None:
        server.dies()

    def cancel() -> None:
        if holder is None:
            assert server.asked.wait(PATIENCE)
        else:
            until(lambda: Lock(lock.path).status().waiters)
        event.set()
        os.write(writer, b"x")

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        took, text = seconds(
            lambda: acquire(PATIENCE, cancel=event if kind == "event" else reader), holdfast.AcquireCancelled
        )
        assert took < PATIENCE
        assert "was cancelled" in text
    finally:
        canceller.join()
        server.comes_back()
        os.close(reader)
        os.close(writer)
    if holder is not None:
        holder.release()
    assert_nothing_left(Path(server.directory))


def test_an_acquisition_ends_in_time_and_gives_back_what_it_gets_later(server: Server) -> None:
    """AP2, AP3."""
    lock = Lock(f"{server.directory}/l")
    server.dies()
    took, text = seconds(lambda: lock.acquire(SHORT), AcquireTimeout)
    assert SHORT < took < SHORT + apart.GRACE + ROOM
    assert "the server of a test has not answered" in text
    assert environment().operations.running, "it goes on"
    server.comes_back()
    assert_nothing_left(Path(server.directory))
    with lock.acquire(PATIENCE) as hold:
        assert not hold.lost


@pytest.mark.parametrize("call", ["try_acquire", "status", "wait", "break_lock", "acquire_0", "semaphore"])
def test_a_call_that_waits_for_no_lock_gives_up_on_a_silent_server(
    call: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP3."""
    monkeypatch.setattr(apart, "ANSWER", SHORT)
    lock = Lock(f"{server.directory}/l")
    calls: dict[str, Callable[[], object]] = {
        "wait": lambda: lock.wait(SHORT),
        "acquire_0": lambda: lock.acquire(0),
        "semaphore": lambda: holdfast.Semaphore(f"{server.directory}/l", 2).status(),
    }
    server.dies()
    took, text = seconds(calls.get(call) or getattr(lock, call), EngineUnavailable)
    assert took < SHORT + apart.GRACE + ROOM
    assert "has not answered" in text


@pytest.mark.parametrize("call", ["lock_info", "is_locked", "status", "clean_stale", "release", "beads"])
def test_a_look_of_the_faces_gives_up_on_a_silent_server(
    call: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP3."""
    path = f"{server.directory}/l"
    of_semats = semats.Semaphore(path)  # asks the server
    calls: dict[str, Callable[[], object]] = {
        "lock_info": sema.Semaphore(path).lock_info,
        "is_locked": sema.Semaphore(path).is_locked,
        "beads": lambda: beads.release(server.directory),
    }
    monkeypatch.setattr(apart, "ANSWER", SHORT)
    server.dies()
    took, text = seconds(calls.get(call) or getattr(of_semats, call), EngineUnavailable)
    assert took < SHORT + apart.GRACE + ROOM
    assert "has not answered" in text


def test_a_database_on_a_silent_server_is_skipped(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """AP3."""
    monkeypatch.setattr(apart, "ANSWER", SHORT)
    lock_file = Path(server.directory, ".exclusive-lock")
    lock_file.touch()
    server.dies()
    skip, holder, text = beads.should_skip_database(server.directory)
    assert (skip, holder) == (True, None)
    assert text is not None
    assert text.startswith("failed to read lock file: ")
    assert "has not answered" in text
    lock_file.unlink()


@pytest.mark.parametrize("form", ["thread", "task"])
def test_a_file_lock_times_out_in_its_own_words_on_a_silent_server(form: str, server: Server) -> None:
    target = f"{server.directory}/state.json"
    options: sidecar.FileLockOptions = {"payload": {}, "timeout": SHORT}
    calls: dict[str, Callable[[], object]] = {
        "thread": lambda: sidecar.acquire_file_lock_sync(target, **options),
        "task": lambda: asyncio.run(sidecar.with_file_lock(target, bool, **options)),
    }
    server.dies()
    with pytest.raises(sidecar.FileLockTimeout, match="has not answered") as raised:
        calls[form]()
    assert raised.value.code == "file_lock_timeout"
    assert (raised.value.lock_path, raised.value.normalized_target_path) == (f"{target}.lock", target)


def test_a_callback_is_not_called_once_its_acquisition_has_ended(server: Server) -> None:
    """SC4: the step that would ask it ends when the server answers at last."""
    target, asked = f"{server.directory}/state.json", []
    lock_file = Path(f"{target}.lock")
    lock_file.write_text(json.dumps({"createdAt": "2020-01-01T00:00:00.000Z"}))

    async def judge(params: sidecar.ReclaimParams) -> bool:
        asked.append(params)
        return False

    async def main() -> None:
        server.dies()
        with pytest.raises(sidecar.FileLockTimeout):
            await sidecar.acquire_file_lock(target, payload={}, timeout=SHORT, should_reclaim=judge)
        server.comes_back()
        while environment().operations.running:
            await asyncio.sleep(0.001)

    asyncio.run(main())
    assert not asked
    lock_file.unlink()


@pytest.mark.parametrize("call", ["acquire", "status", "wait", "timeout", "cancel"])
def test_a_task_ends_in_time_although_its_server_is_silent(
    call: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5, AP3: by its own deadline, by asyncio's, and by a cancellation."""
    monkeypatch.setattr(apart, "ANSWER", SHORT)
    lock = AsyncLock(f"{server.directory}/l")

    async def cancelled() -> None:
        task = asyncio.ensure_future(lock.acquire())
        while not server.asked.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            raise EngineUnavailable("cancelled") from None

    async def main() -> None:
        if call == "timeout":
            async with asyncio.timeout(SHORT):
                await lock.acquire()
        elif call == "cancel":
            await cancelled()
        else:
            await getattr(lock, call)(*((SHORT,) if call != "status" else ()))

    server.dies()
    error = {"acquire": AcquireTimeout, "timeout": TimeoutError}.get(call, EngineUnavailable)
    took, _ = seconds(lambda: asyncio.run(main()), error)
    assert took < SHORT + 2 * apart.GRACE + ROOM
    server.comes_back()
    assert_nothing_left(Path(server.directory))


def test_ctrl_c_ends_a_wait_for_a_server_and_leaves_nothing(server: Server) -> None:
    """AP3: no signal reaches a thread in the kernel; its caller hears of it, also without a timeout."""
    lock = Lock(f"{server.directory}/l")
    server.dies()

    def interrupt() -> None:
        assert server.asked.wait(PATIENCE)
        signal.pthread_kill(main, signal.SIGINT)

    main = _thread.get_ident()
    thread = threading.Thread(target=interrupt)
    thread.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    assert time.monotonic() - began < apart.GRACE + ROOM
    thread.join()
    server.comes_back()
    assert_nothing_left(Path(server.directory))
    with lock.acquire(PATIENCE):
        pass


def test_ctrl_c_while_a_server_answers_leaves_nothing_when_it_is_raised(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP3: the operation is undone by then."""
    monkeypatch.setattr(apart, "GRACE", PATIENCE)
    lock = Lock(f"{server.directory}/l")
    held = lock.acquire()
    other = threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGINT))
    main = _thread.get_ident()
    other.start()
    with pytest.raises(KeyboardInterrupt):
        Lock(f"{server.directory}/l").acquire(PATIENCE)
    assert not environment().operations.running
    held.release()


@pytest.mark.needs("unnamed")
@pytest.mark.parametrize("call", ["open", "listdir", "close"])
def test_locks_elsewhere_do_not_wait_for_a_silent_server(
    call: str, server: Server, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP4: a fork waits only for a moment. No fork may come between opening, listing and closing."""
    env, at = environment(), server.directory
    real = getattr(os, call)

    def hangs(*arguments: Any, **more: Any) -> Any:
        if threading.current_thread().name == "holdfast-apart":
            server.asked.set()
            assert server.answers.wait(PATIENCE)
        return real(*arguments, **more)

    asks: dict[str, Callable[..., object]] = {
        "open": lambda: env._descriptors.open(os.open, at, os.O_PATH),
        "listdir": lambda: env.list_directory(at),
        "close": lambda: env.close(env.open_directory(at)),
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, call, hangs)
        patched.setattr(env, "open_unnamed", lambda _directory, _mode: asks[call]())
        server.dies()
        server.asked.clear()
        seconds(lambda: Lock(f"{at}/l").acquire(4 * SHORT), AcquireTimeout)
        assert fork.in_flight, "inside the call"
    began = time.monotonic()
    with Lock(shm / "local").acquire(PATIENCE):
        child = os.fork()
        if child == 0:
            os._exit(bool(fork.in_flight or apart._left))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert time.monotonic() - began < ROOM
    server.comes_back()
    until(lambda: not fork.in_flight)


def test_a_long_look_is_not_cut_short_while_it_makes_progress(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """AP6: a look that computes, or gets answers, is not waiting for a server."""
    monkeypatch.setattr(apart, "ANSWER", 0.4)
    monkeypatch.setattr(apart, "_PULSE", 0.05)
    env, pulses = environment(), [0]
    look = apart.at_place(env, server.directory)
    assert look is not None

    def busy() -> str:
        end = time.monotonic() + 1.2
        while time.monotonic() < end or (len(pulses) <= 4 and time.monotonic() < end + PATIENCE):
            sum(range(1000))
        return "done"

    assert look.call(busy, meanwhile=lambda: pulses.append(1)) == "done"
    assert len(pulses) > 3

    def items() -> Iterator[int]:
        for number in range(300):
            if number == 200:
                server.dies()
            env.exists(server.directory)
            env.stat(f"{server.directory}/.")
            yield number

    found: list[int] = []
    took, said = seconds(lambda: found.extend(look.each(items())), EngineUnavailable)
    assert took < ROOM
    assert found == [*range(200)]
    assert said.startswith(
        f"the state of {server.directory} cannot be known: the server of a test has not answered for 0."
    )
    server.comes_back()


def test_following_links_on_a_silent_server_ends_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """AP3: a `Lock` of these protocols follows links when it is made."""
    monkeypatch.setattr(apart, "ANSWER", SHORT)
    answers, real = threading.Event(), paths._look
    monkeypatch.setattr(paths, "_look", lambda at: real(at) if answers.wait(PATIENCE) else None)
    for protocol in ("semats", "sidecar"):
        make = partial(Lock, f"{server.directory}/l", protocol=protocol)
        took, said = seconds(make, EngineUnavailable)
        assert SHORT <= took < SHORT + ROOM
        assert "the server of a test has not answered" in said
    answers.set()
    assert Lock(f"{server.directory}/l", protocol="semats").path == f"{server.directory}/l"


def test_a_file_lock_on_a_slow_server_does_not_block_its_event_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While links are followed, and while a handle is looked at."""
    answers, asked, real = threading.Event(), threading.Event(), paths._look

    def look(at: str) -> Any:
        asked.set()
        return real(at) if answers.wait(PATIENCE) else None

    async def while_it_waits(call: Any, is_asked: threading.Event, answer: threading.Event) -> Any:
        task = asyncio.ensure_future(call)
        while not is_asked.is_set():
            await asyncio.sleep(0.001)
        answer.set()
        return await task

    async def main() -> None:
        monkeypatch.setattr(paths, "_look", look)
        acquired = sidecar.acquire_file_lock(f"{server.directory}/state.json", payload={})
        handle = await while_it_waits(acquired, asked, answers)
        server.dies()
        assert await while_it_waits(handle.verify_still_held(), server.asked, server.answers)
        await handle.release()

    asyncio.run(main())


def test_a_look_at_a_hold_on_a_silent_server_ends_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """AP3, AP5: `ensure_held`, which may be called again and again."""
    monkeypatch.setattr(apart, "ANSWER", SHORT)
    hold = Lock(f"{server.directory}/l", lease=0).acquire()
    server.dies()
    for _ in range(apart.MOST_LEFT + 2):
        took, said = seconds(hold.ensure_held, EngineUnavailable)
        assert took < SHORT + ROOM
        assert "has not answered" in said
    assert len([one for one in threading.enumerate() if one.name == "holdfast-apart"]) <= apart.MOST_LEFT
    server.comes_back()
    monkeypatch.setattr(apart, "ANSWER", PATIENCE)
    hold.ensure_held()
    assert not hold.lost
    hold.release()


@pytest.mark.parametrize("how", ["release", "with a hold", "with a lock", "with several"])
@pytest.mark.parametrize("away", [False, True], ids=["silent", "away"])
def test_a_task_that_is_cancelled_in_a_release_leaves_its_loop_alone(
    away: bool, how: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP3, B5: a look has the mutex of the hold and waits for the server, or the release is repeated until the server
    is back (AP7). The loop waits for neither."""
    monkeypatch.setattr(apart, "ANSWER", SHORT)
    lock = AsyncLock(f"{server.directory}/l", lease=PATIENCE if away else 0)
    acquired: list[Any] = []

    def go_on(holds: Any) -> None:
        acquired.append(holds)
        if away:
            server.goes_away()
            return
        server.dies()
        with pytest.raises(EngineUnavailable):
            holds.ensure_held()

    def is_under_way() -> bool:
        if not acquired:
            return False
        return server.asked.is_set() if away else bool(state_of(each_of(acquired[0])[0]).refs[0].releasing)

    async def steps() -> None:
        if how == "release":
            hold = await lock.acquire(PATIENCE)
            go_on(hold)
            await hold.release()
            return
        entered: Any = lock
        if how != "with a lock":
            entered = aio.acquire_all([lock]) if how == "with several" else await lock.acquire(PATIENCE)
        async with entered as holds:
            go_on(holds)

    async def main() -> float:
        task = asyncio.ensure_future(steps())
        while not is_under_way():
            await asyncio.sleep(0.001)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert asyncio.run(main()) < 2 * apart.GRACE + ROOM
    assert not server.answers.is_set()


def each_of(holds: Any) -> list[Any]:
    return [*holds] if isinstance(holds, tuple) else [holds]


def test_one_ctrl_c_ends_a_release_that_waits_behind_a_look(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """AP3: a thread completes the release, and no second one begins."""
    monkeypatch.setattr(apart, "ANSWER", SHORT)
    lock = Lock(f"{server.directory}/l", lease=0)

    def interrupt(hold: Any) -> None:
        until(lambda: state_of(hold).refs[0].releasing)
        signal.pthread_kill(main, signal.SIGINT)

    def hold_and_release() -> None:
        with lock as hold:
            server.dies()
            with pytest.raises(EngineUnavailable):
                hold.ensure_held()
            thread = threading.Thread(target=interrupt, args=(hold,))
            thread.start()
            threads.append(thread)

    main = _thread.get_ident()
    threads: list[threading.Thread] = []
    took, _ = seconds(hold_and_release, KeyboardInterrupt)
    assert took < SHORT + 2 * apart.GRACE + ROOM
    assert len(apart._going) == 2, "the look and the release"
    threads.pop().join()


def test_one_ctrl_c_ends_a_release_that_is_repeated_while_the_server_is_away(server: Server) -> None:
    """AP3, AP7: a thread completes the release, and no second one begins."""

    def interrupt() -> None:
        assert server.asked.wait(PATIENCE)
        signal.pthread_kill(main, signal.SIGINT)

    def hold_and_release() -> None:
        with Lock(f"{server.directory}/l", lease=PATIENCE):
            server.goes_away()
            thread.start()

    main, thread = _thread.get_ident(), threading.Thread(target=interrupt)
    took, _ = seconds(hold_and_release, KeyboardInterrupt)
    assert took < 2 * apart.GRACE + ROOM
    assert len(apart._going) == 1
    thread.join()


def test_no_more_than_a_few_threads_are_left_behind_at_one_server(server: Server) -> None:
    """AP5."""
    lock = Lock(f"{server.directory}/l")
    server.dies()
    while sum(map(len, apart._left.values())) < apart.MOST_LEFT:  # one whose time is up before it has asked leaves none
        seconds(lambda: lock.acquire(0.01), AcquireTimeout)
    before = threading.active_count()
    took, text = seconds(lambda: lock.acquire(SHORT), AcquireTimeout)
    assert threading.active_count() <= before
    assert SHORT < took < SHORT + apart.GRACE + ROOM
    assert "has not answered" in text
    with pytest.raises(AcquireTimeout):
        asyncio.run(_acquire(AsyncLock(f"{server.directory}/l"), SHORT))
    server.comes_back()
    with lock.acquire(PATIENCE):
        pass


async def _acquire(lock: AsyncLock, timeout: float) -> None:
    await lock.acquire(timeout)


def test_a_release_is_not_waited_for_longer_than_the_lease(server: Server) -> None:
    """The lock is lost by then: the next holder may be inside."""
    hold = Lock(f"{server.directory}/l", lease=1.0).acquire()
    server.dies()
    took, text = seconds(hold.release, LockLost)
    assert took < 1.0 + apart.GRACE + ROOM
    assert "nine tenths of its lease" in text
    server.comes_back()


def test_each_release_of_a_shared_hold_takes_one_thread(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """AP4: and no thread that is not known to wait for a server."""
    lock = Lock(f"{server.directory}/l", lease=0, owner="all")
    holds = [lock.acquire() for _ in range(3)]
    begun: list[threading.Thread] = []
    monkeypatch.setattr(
        threading.Thread, "start", lambda one, real=threading.Thread.start: (begun.append(one), real(one))
    )
    for hold in holds:
        hold.release()
    assert [one.name for one in begun] == ["holdfast-apart"] * 3


# -- a server whose steps fail while it is away ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param("sema", marks=pytest.mark.needs("unnamed")),  # else a temporary name may be left at the server
        pytest.param("flock", marks=pytest.mark.needs("flock")),
    ],
)
@pytest.mark.parametrize("timeout", [None, PATIENCE])
def test_an_acquisition_waits_for_a_server_whose_steps_fail_while_it_is_away(
    protocol: str, timeout: float | None, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP1: whichever step of a waiter fails; for tasks as well."""
    monkeypatch.setattr(uncontended, "_AWAY_POLL", 0.01)
    lock = Lock(f"{server.directory}/l", protocol=protocol, lease=None if protocol == "flock" else 30.0)
    for others in (False, True):
        held = lock.acquire() if others else None
        acquired: list[holdfast.Hold] = []
        waiter = threading.Thread(target=lambda acquired=acquired: acquired.append(lock.acquire(timeout)))
        server.goes_away()
        waiter.start()
        assert server.asked.wait(PATIENCE)
        assert not acquired
        server.comes_back()
        if held is not None:
            held.release()
        waiter.join(PATIENCE)
        acquired[0].release()
    server.goes_away()
    threading.Timer(SHORT, server.comes_back).start()

    async def task() -> None:
        async with AsyncLock(f"{server.directory}/l", protocol=protocol, timeout=PATIENCE):
            pass

    asyncio.run(task())
    if protocol == "flock":
        os.unlink(lock.path)


def test_an_acquisition_ends_in_time_though_the_server_stays_away(server: Server) -> None:
    """FP1."""
    lock = Lock(f"{server.directory}/l")
    server.goes_away()
    took, text = seconds(lambda: lock.acquire(SHORT), AcquireTimeout)
    assert SHORT <= took < SHORT + ROOM
    assert f"within {SHORT:g} s: the server of a test cannot be reached ({os.strerror(errno.ENOTCONN)})" in text
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        lock.try_acquire()
    server.comes_back()


@pytest.mark.parametrize("protocol", ["sema", pytest.param("flock", marks=pytest.mark.needs("flock"))])
def test_a_wait_for_a_server_that_is_away_is_one_acquisition_to_listeners(
    protocol: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP1: however often it starts over."""
    monkeypatch.setattr(uncontended, "_AWAY_POLL", 0.01)
    heard: list[events.Event] = []
    lock = Lock(f"{server.directory}/l", protocol=protocol, lease=0, on_event=heard.append)
    server.goes_away()
    cancel = threading.Event()
    canceller = threading.Thread(target=lambda: (until(lambda: heard), cancel.set()))
    canceller.start()
    with pytest.raises(AcquireCancelled):
        lock.acquire(cancel=cancel)
    canceller.join()
    until(lambda: len(heard) == 2)  # on a busy machine, what gives up may have been left behind
    assert [one.kind for one in heard] == ["waiting", "gave-up"]
    heard.clear()
    threading.Timer(SHORT, server.comes_back).start()
    with lock:
        assert [one.kind for one in heard] == ["waiting", "acquired"]
        assert heard[1].waited is not None
        assert heard[1].waited > 0
    assert [one.kind for one in heard] == ["waiting", "acquired", "released"]
    assert len({one.number for one in heard}) == 1
    if protocol == "flock":
        os.unlink(lock.path)


def announce_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Announce a wait for an absent server at once, and never a step that is slow because the machine is busy."""
    waits, real = holdfast._core.wait, uncontended.Deadline

    def at_once(*arguments: Any) -> Any:
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(waits, "_NOTICE_AFTER", 0.0)
            return real(*arguments)

    monkeypatch.setattr(uncontended, "_AWAY_POLL", 0.01)
    monkeypatch.setattr(uncontended, "Deadline", at_once)
    monkeypatch.setattr(waits, "_NOTICE_AFTER", PATIENCE)


@pytest.mark.parametrize("what", ["a lock", "a semaphore"])
def test_a_wait_for_a_server_that_is_away_is_announced(
    what: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP1: once, through the caller's notice, which may look at the lock in vain."""
    announce_at_once(monkeypatch)
    path = f"{server.directory}/l"
    lock = Lock(path) if what == "a lock" else Semaphore(path, 2)
    told: list[str] = []

    def tell(refusal: Refusal) -> None:
        told.append(waiting(refusal))
        assert refusal.event().kind == "waiting"
        server.comes_back()

    holdfast.lock.announce(lock, tell)
    server.goes_away()
    with lock:
        pass
    assert told == [f"waiting for {path}: the server of a test cannot be reached ({os.strerror(errno.ENOTCONN)})"]


def test_a_command_tells_of_a_server_that_is_away(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """FP1: its look for the place in the queue fails as well."""
    announce_at_once(monkeypatch)
    lock = Lock(f"{server.directory}/l")
    notice = _WaitingNotice(lock, Namespace(command="run", json=False))

    def tell(refusal: Refusal) -> float | None:
        try:
            return notice(refusal)
        finally:
            server.comes_back()

    holdfast.lock.announce(lock, tell)
    server.goes_away()
    with lock:
        pass
    assert capsys.readouterr().err.startswith(
        f"holdfast: waiting for {lock.path}: the server of a test cannot be reached"
    )


@pytest.mark.needs("link")
def test_a_lock_file_that_was_left_at_a_server_that_went_away_is_no_hold(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP1: where the guard comes last (publish.py, P3) and open files fail as well."""
    monkeypatch.setattr(uncontended, "_AWAY_POLL", 0.01)
    env, lock = environment(), Lock(f"{server.directory}/l", lease=1.0)
    file_request(lock).method = "named"
    real = {name: getattr(env, name) for name in ("guard", "fstat", "read")}

    def step(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "guard" and not server.fails:
            server.goes_away()
            threading.Timer(SHORT, server.comes_back).start()
        if not server.answers.is_set():
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return real[name](*arguments, **more)

    for name in real:
        monkeypatch.setattr(env, name, partial(step, name))
    hold = lock.acquire(PATIENCE)  # when the lease of what it has left is over
    assert [*env.holds.values()] == [state_of(hold)]
    hold.release()
    monkeypatch.undo()
    for name in os.listdir(server.directory):
        if name.endswith(".tmp"):
            os.unlink(f"{server.directory}/{name}")  # by a step that the server did not answer


def test_a_release_is_repeated_until_the_server_is_back(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """AP7, FH7."""
    monkeypatch.setattr(apart, "_AWAY_POLL", 0.01)

    async def task() -> None:
        hold = await AsyncLock(f"{server.directory}/l", lease=30.0).acquire()
        server.goes_away()
        threading.Timer(SHORT, server.comes_back).start()
        await hold.release()

    asyncio.run(task())
    hold = Lock(f"{server.directory}/l", lease=30.0).acquire()
    server.goes_away()
    threading.Timer(SHORT, server.comes_back).start()
    hold.release()
    assert not os.path.exists(f"{server.directory}/l")


@pytest.mark.parametrize("successor", [False, True])
def test_a_removal_that_was_done_though_it_failed_is_not_repeated(
    successor: bool, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FH7: the server went away before it answered, and the next holder may be inside."""
    monkeypatch.setattr(apart, "_AWAY_POLL", SHORT)
    env, path = environment(), Path(server.directory, "l")
    hold = Lock(path, lease=30.0, on_lost=lambda lost: pytest.fail(str(lost))).acquire()
    unlink, sleep = env.unlink, time.sleep

    def beats_before_the_next_try(seconds: float) -> None:
        server.comes_back()
        state_of(hold).beat()
        sleep(seconds)

    monkeypatch.setattr(apart.time, "sleep", beats_before_the_next_try)

    def done_without_an_answer(name: str) -> None:
        if server.fails:
            unlink(name)
            return
        os.unlink(name)
        if successor:
            path.write_text("theirs")
        server.goes_away()
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), name)

    monkeypatch.setattr(env, "unlink", done_without_an_answer)
    hold.release()
    assert path.exists() is successor
    path.unlink(missing_ok=True)


def test_a_release_is_repeated_no_longer_than_the_lease(server: Server) -> None:
    """AP7, FH7: the next holder may be inside."""
    hold = Lock(f"{server.directory}/l", lease=1.0).acquire()
    server.goes_away()
    took, text = seconds(hold.release, LockLost)
    assert took < 1.0 + apart.GRACE + ROOM
    assert "nine tenths of its lease" in text
    server.comes_back()
    os.unlink(f"{server.directory}/l")


@pytest.mark.needs("unnamed")
def test_locks_elsewhere_are_given_back_at_once_when_a_server_falls_silent(server: Server, shm: Path) -> None:
    """AP2: the thread that was left behind gives back those at the silent server."""
    local, far, last = (Lock(path) for path in (shm / "local", f"{server.directory}/a", f"{server.directory}/b"))
    link = environment().link_unnamed

    def dies_after_the_first(fd: int, path: str) -> None:
        link(fd, path)
        if path == far.path:
            server.dies()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(environment(), "link_unnamed", dies_after_the_first)
        patched.setattr(Plan, "left", lambda _plan: SHORT)  # for the silent one, however long the others have taken
        took, _ = seconds(lambda: holdfast.acquire_all([local, far, last], SHORT), AcquireTimeout)
    assert took < SHORT + apart.GRACE + ROOM
    assert not local.status().locked
    server.comes_back()
    until(lambda: not far.status().locked)


@pytest.mark.needs("unnamed")
def test_several_locks_of_a_task_are_given_back_when_a_server_falls_silent(server: Server, shm: Path) -> None:
    local, far, last = (AsyncLock(path) for path in (shm / "local", f"{server.directory}/a", f"{server.directory}/b"))
    link = environment().link_unnamed

    def dies_after_the_first(fd: int, path: str) -> None:
        link(fd, path)
        if path == far.path:
            server.dies()

    async def main() -> None:
        await aio.acquire_all([local, far, last], SHORT)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(environment(), "link_unnamed", dies_after_the_first)
        patched.setattr(Plan, "left", lambda _plan: SHORT)  # for the silent one, however long the others have taken
        took, _ = seconds(lambda: asyncio.run(main()), AcquireTimeout)
    assert took < SHORT + 2 * apart.GRACE + ROOM
    assert not Lock(shm / "local").status().locked
    server.comes_back()
    until(lambda: not Lock(far.path).status().locked)


COMMAND = """
import os, sys, time
from holdfast import cli
from holdfast._drivers import apart
from holdfast._platform import environment

env, (share, answers, *words) = environment(), sys.argv[1:]
if answers == "no":
    apart.ANSWER = 0.2
type(env).may_block = lambda _env, path: path.startswith(share)
type(env).server_at = lambda _env, _path: "the server of a test"
type(env).reconnects = lambda _env, _path: False
parent, real = os.getpid(), os.stat

def stat(path, *arguments, **more):
    if os.getpid() != parent and path.startswith(share) and answers == "no":
        while os.access(share, os.F_OK):
            time.sleep(0.01)
    return real(path, *arguments, **more)

os.stat = stat
try:
    cli.main(words)
finally:
    assert not env.asks_first
"""


def command(*words: object, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    """A finished command with its output. `ignored`: its caller ignores SIGCHLD."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN) if ignored else None
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *map(str, words)], stdout=-1, stderr=-1, text=True, restore_signals=False
        )
    finally:
        if ignored:
            signal.signal(signal.SIGCHLD, before)
    output, errors = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("answers", ["yes", "no"])
def test_a_command_ends_although_the_child_that_asks_the_server_hangs(answers: str, ignored: bool, shm: Path) -> None:
    """AP8: its output ends too, for which a shell may wait."""
    done = command(shm, answers, "status", shm / "l", ignored=ignored)
    if answers == "yes":
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 3, done.stderr
        assert "the server of a test has not answered for 0." in done.stderr


@pytest.mark.parametrize(
    "words", ["sema status P", "sema release P", "sema wait P --timeout 1", "break P --yes", "watch P", "reap P"]
)
def test_each_command_gives_up_on_a_silent_server(words: str, shm: Path) -> None:
    """AP3, AP8."""
    done = command(shm, "no", *words.replace("P", str(shm / "l")).split())
    assert done.returncode == 3, done.stderr
    assert "the server of a test has not answered" in done.stderr


def test_a_second_lock_on_a_silent_server_is_not_taken_for_the_command(shm: Path) -> None:
    """AP3."""
    program = shm / "program"
    program.touch(0o755)
    silent = command(shm, "no", "run", "-n", shm / "l", program, "--", "true")
    assert silent.returncode == 3, silent.stderr
    assert "the server of a test has not answered" in silent.stderr
    assert command(shm, "yes", "run", "-n", shm / "l", program, "--", "true").returncode == 2


@pytest.mark.parametrize("words", [["l"], ["l", "--json"], ["s"], ["s", "--slots", "2"]])
def test_no_thread_that_waits_for_a_server_prints(
    words: list[str], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP6: a reader that pauses would be taken for the server."""
    slot = Path(server.directory, "s.0.lock")
    slot.touch()
    printing: list[threading.Thread] = []
    monkeypatch.setattr("builtins.print", lambda *_words, **_more: printing.append(threading.current_thread()))
    with pytest.raises(SystemExit):
        cli.main(["status", f"{server.directory}/{words[0]}", *words[1:]])
    slot.unlink()
    assert printing == [threading.main_thread()]


def test_a_command_goes_on_with_paths_elsewhere(shm: Path) -> None:
    """AP8: it asks once more about the next path on that server."""
    for name in ("share", "here"):
        (shm / name).mkdir()
    with Lock(shm / "here" / "l"):
        done = command(shm / "share", "no", "ls", shm / "share" / "a", shm / "share" / "*.lock", shm / "here")
    assert done.returncode == 3
    assert done.stderr.count("the server of a test has not answered for 0.") == 2, done.stderr
    assert str(shm / "here" / "l") in done.stdout
    told = json.loads(command(shm / "share", "no", "doctor", "--json", shm / "share").stdout)
    assert [one["name"] for one in told["findings"]] == ["server"]


# -- processes ---------------------------------------------------------------------------------------------------------

PROCESS = """
import os, signal, sys, threading, time
import holdfast
from holdfast._drivers import apart
from holdfast._platform import environment

apart.GRACE = 0.15
env = environment()
share, what = sys.argv[1:]
silent = threading.Event()
real = env.open_unnamed

def open_unnamed(directory, mode):
    if silent.is_set():
        print("asked", flush=True)
        while True:
            time.sleep(1000)
    return real(directory, mode)

env.open_unnamed = open_unnamed
type(env).may_block = lambda _env, path: path.startswith(share)
type(env).server_at = lambda _env, _path: "the server of a test"
lock = holdfast.Lock(f"{share}/l")
with lock:
    pass
if what == "holds":
    hold = lock.acquire()
    env.unlink = lambda _path: time.sleep(1000)
    sys.exit()
silent.set()
if what == "exits":
    try:
        lock.acquire(0.1)
    except holdfast.AcquireTimeout:
        sys.exit()
if what == "forks":
    def fork(*_):
        if os.fork() == 0:
            signal.alarm(20)
        else:
            os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    signal.signal(signal.SIGALRM, fork)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        lock.acquire()
    except RuntimeError as error:
        assert "forked while it waited" in str(error), error
        os._exit(7)
"""


@pytest.mark.needs("unnamed")
@pytest.mark.parametrize(("what", "status"), [("exits", 0), ("holds", 0), ("forks", 7)])
def test_a_process_ends_though_a_server_is_silent(what: str, status: int, shm: Path) -> None:
    """AP4, AP5, K9: with a step left behind, with an unanswered release, and as a forked child."""
    if what == "holds" and sys.version_info >= (3, 12):
        pytest.skip("starts no thread at exit, so it waits for the server (K9)")
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(shm), what], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == status, done.stderr
    assert time.monotonic() - began < 10
    if what == "holds":
        assert "at exit" in done.stderr
        assert "the server of a test does not answer" in done.stderr
        assert [name for name in os.listdir(shm) if not name.endswith(".token")] == ["l"]


# -- events at one moment only -----------------------------------------------------------------------------------------


@pytest.fixture
def share(server: Server) -> Apart:
    """The `Apart` of a look at a file of that server."""
    found = apart.at_place(environment(), server.directory)
    assert found is not None
    return found


def test_the_caller_waits_itself_where_no_thread_can_start(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "start", failing(RuntimeError("can't start new thread")))
    with Lock(f"{server.directory}/l").acquire(PATIENCE) as hold:
        hold.ensure_held()


def test_a_look_is_waited_for_where_the_cpu_time_of_a_thread_is_unknown(
    share: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP6."""
    monkeypatch.setattr(apart, "ANSWER", SHORT)
    monkeypatch.setattr(apart, "_PULSE", SHORT / 4)
    monkeypatch.delattr(time, "pthread_getcpuclockid")
    ended = threading.Event()
    pulses = iter(range(40))
    assert share.call(lambda: ended.wait(PATIENCE), meanwhile=lambda: next(pulses) < 30 or ended.set())


def test_the_cpu_time_of_a_thread_that_has_just_ended_seems_to_go_on(share: Apart) -> None:
    """AP6: so its caller looks again, and sees the end."""
    step = Step(share, bool)
    step.begin()
    assert step.wait(time.monotonic() + PATIENCE)
    step._clock = -1  # of nobody
    assert 0 < step._spent() <= step._spent()


def test_a_failure_to_give_back_late_is_logged(share: Apart, caplog: pytest.LogCaptureFixture) -> None:
    """AP2: its caller has gone."""
    answers = threading.Event()
    step = Step(share, lambda: answers.wait(PATIENCE))
    step.begin()
    until(lambda: step in apart._going)
    assert step.leave(failing(OSError(errno.EIO, "no more")))
    share.leave_behind(step)
    answers.set()
    until(step.done)
    assert "no more" in caplog.text
    assert not apart._left


def test_a_step_that_ends_while_it_is_left_behind_does_not_count_as_left(share: Apart) -> None:
    """AP5."""
    step = Step(share, bool)
    step.begin()
    assert step.wait(time.monotonic() + PATIENCE)
    share.leave_behind(step)
    assert not share.is_silent()


def test_an_interruption_while_an_acquisition_is_undone_leaves_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP2, AP3: the second interruption, at any point."""
    real = Step.begin
    begun: list[Step] = []

    def interrupted(step: Step) -> None:
        begun.append(step)
        if len(begun) in (2, 3):
            raise KeyboardInterrupt
        real(step)

    held = Lock(f"{server.directory}/l").acquire(PATIENCE)
    monkeypatch.setattr(Step, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Lock(f"{server.directory}/l").acquire(PATIENCE)
    assert len(begun) == 4
    until(lambda: not environment().operations.running)
    held.release()


def test_a_look_at_a_hold_with_a_lease_asks_no_server(server: Server) -> None:
    hold = Lock(f"{server.directory}/l", lease=30).acquire(PATIENCE)
    server.dies()
    asked: list[int] = []
    apart.look(state_of(hold), lambda: asked.append(_thread.get_ident()))
    assert asked == [_thread.get_ident()]
    server.comes_back()
    hold.release()


def test_a_release_elsewhere_waits_for_no_server(shm: Path) -> None:
    hold = Lock(shm / "l").acquire()
    where: list[int] = []
    apart.release(state_of(hold), lambda: where.append(_thread.get_ident()))
    assert where == [_thread.get_ident()]
    hold.release()


def test_a_release_that_fails_for_good_is_not_repeated(server: Server) -> None:
    """AP7: repeated only while the server is away."""
    hold = Lock(f"{server.directory}/l").acquire(PATIENCE)
    with pytest.raises(OSError, match="broken"):
        apart.until_it_is_back(state_of(hold), failing(OSError(errno.EIO, "broken"), times=1))
    hold.release()


def test_a_release_that_is_interrupted_before_it_begins_is_done(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP2: a thread does it, whatever the caller does."""
    hold = Lock(f"{server.directory}/l").acquire(PATIENCE)
    with monkeypatch.context() as patched:
        patched.setattr(Apart, "call", failing(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            hold.release()
    until(lambda: not os.path.exists(f"{server.directory}/l"))
    assert state_of(hold).released


@pytest.mark.parametrize("what", ["a lock", "a semaphore"])
def test_a_wait_for_a_server_that_does_not_answer_is_announced(
    what: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP9: also to a caller without a time limit, and at each unanswered step."""
    monkeypatch.setattr(holdfast._core.wait, "_NOTICE_AFTER", 0.02)
    path = f"{server.directory}/l"
    lock = Lock(path) if what == "a lock" else Semaphore(path, 2)
    told: list[str] = []

    def tell(refusal: Refusal) -> None:
        told.append(waiting(refusal))
        assert (refusal.status.locked, refusal.event().kind) == (False, "waiting")
        server.comes_back()

    holdfast.lock.announce(lock, tell)
    for _ in range(2):
        server.dies()
        with lock:
            pass
    assert len(told) >= 2
    text = re.escape(f"waiting for {path}: the server of a test has not answered for ")
    assert all(re.fullmatch(rf"{text}\d+\.\d s", one) for one in told)


def test_a_look_at_a_hold_is_not_announced_as_a_wait(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """AP9: its caller has the lock."""
    told: list[Refusal] = []
    lock = Lock(f"{server.directory}/l")
    hold = lock.acquire()
    holdfast.lock.announce(lock, told.append)
    monkeypatch.setattr(holdfast._core.wait, "_NOTICE_AFTER", 0.02)
    monkeypatch.setattr(apart, "ANSWER", 0.1)
    server.dies()
    with pytest.raises(EngineUnavailable):
        hold.ensure_held()
    assert not told
    server.comes_back()
    hold.release()


def test_a_notice_that_fails_ends_the_wait_for_a_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """AP9: as when no process reads a command's output any more; nothing of the wait is left."""
    monkeypatch.setattr(holdfast._core.wait, "_NOTICE_AFTER", 0.02)
    lock = Lock(f"{server.directory}/l")
    holdfast.lock.announce(lock, failing(BrokenPipeError()))
    server.dies()
    with pytest.raises(BrokenPipeError):
        lock.acquire()
    server.comes_back()


def test_a_command_tells_once_that_a_server_does_not_answer(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """AP9: its look for the place in the queue would have to wait as well."""
    lock = Lock(f"{server.directory}/l")
    notice = _WaitingNotice(lock, Namespace(command="run", json=False))
    silent = Apart(environment(), file_request(lock), None)._unanswered(time.monotonic() - 2)
    held = lock.acquire(PATIENCE)
    server.dies()
    assert [notice(silent), notice(silent)] == [None, None]
    server.comes_back()
    text = re.escape(f"holdfast: waiting for {lock.path}: the server of a test has not answered for ")
    assert re.fullmatch(rf"{text}\d+\.\d s\n", capsys.readouterr().err)
    held.release()


def test_a_wait_for_the_child_that_asks_first_is_announced_once(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AP8, AP9."""
    monkeypatch.setattr(holdfast._core.wait, "_NOTICE_AFTER", 0.0)
    monkeypatch.setattr(os, "fork", lambda: 1)
    answers = iter([(0, 0), (0, 0), (1, 0)])
    monkeypatch.setattr(os, "waitpid", lambda _child, _options: next(answers))
    env = environment()
    monkeypatch.setattr(env, "asks_first", True)
    monkeypatch.setattr(type(env), "reconnects", lambda _env, _path: False)
    monkeypatch.setattr(type(env), "server_at", lambda _env, _path: f"the server of {shm}")
    request, told = FileRequest(f"{shm}/l", {}), list[Refusal]()
    request.notice = told.append
    Apart(env, request, None)._ask_first()
    assert [one.status.evidence.source for one in told] == ["server"]


def test_no_server_is_asked_first_where_no_child_can_be_forked(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AP8."""
    monkeypatch.setattr(os, "fork", failing(BlockingIOError(errno.EAGAIN, "no more processes")))
    assert apart._answers(str(shm), time.monotonic())


def test_each_server_is_asked_first_and_once(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AP8: a process that hangs at the second one cannot end either."""
    env, asked = environment(), list[str]()
    monkeypatch.setattr(env, "asks_first", True)
    monkeypatch.setattr(type(env), "reconnects", lambda _env, _path: False)
    monkeypatch.setattr(type(env), "server_at", lambda _env, path: f"the server of {os.path.dirname(path)}")
    monkeypatch.setattr(apart, "_answers", lambda directory, _until, _meanwhile: asked.append(directory) or True)
    for name in ("one", "other", "one"):
        assert Apart(env, FileRequest(f"{shm}/{name}/l", {}), 0.0).call(lambda: 1) == 1
    assert asked == [f"{shm}/one", f"{shm}/other"]


def test_the_child_that_asks_first_does_nothing_else_after_ctrl_c(shm: Path) -> None:
    """AP8: otherwise it would run on as a second process of the command."""
    code = (
        "import os, sys, time\n"
        "from holdfast._drivers import apart\n"
        "fork, parent = os.fork, os.getpid()\n"
        "def interrupted():\n"
        "    child = fork()\n"
        "    if child: return child\n"
        "    raise KeyboardInterrupt\n"
        "os.fork = interrupted\n"
        "try: apart._answers(sys.argv[1], time.monotonic() + 60)\n"
        "finally: os.write(1, b'parent' if os.getpid() == parent else b'child')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, shm], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "parent", "")


def test_all_findings_of_a_look_are_handed_over(share: Apart) -> None:
    """AP6: at the latest when the look ends."""
    assert list(share.each(iter(range(300)))) == [*range(300)]
    assert list(share.each(iter(range(3)), batch=0)) == [0, 1, 2]
