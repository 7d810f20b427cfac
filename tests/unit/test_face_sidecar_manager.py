"""Managers and re-entrant holds of fs-safe's file lock (sidecar/__init__.py)."""

from __future__ import annotations

import asyncio
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from abilities import has
from holdfast import WouldDeadlock, sidecar
from holdfast._platform import environment
from holdfast.sidecar import FileLockTimeout, create_file_lock_manager, create_file_lock_manager_sync
from holdfast.sidecar.options import _Owner
from unit.elsewhere import elsewhere


@pytest.fixture
def target(disk: Path) -> Path:
    return disk / "state.json"


@pytest.fixture
def lock(disk: Path) -> Path:
    """The lock file."""
    return disk / "state.json.lock"


def acquire(target: Path, **options: Any) -> sidecar.FileLockSyncHandle:
    options.setdefault("payload", {"pid": os.getpid()})
    options.setdefault("timeout", 0)
    return sidecar.acquire_file_lock_sync(target, **options)


# -- re-entrant holds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", [False, True], ids=["outer plain", "outer re-entrant"])
def test_the_last_release_drops_the_lock_whichever_handle_it_is(target: Path, lock: Path, outer: bool) -> None:
    """As it does in fs-safe 0.3."""
    first = acquire(target, allow_reentrant=outer)
    second = acquire(target, allow_reentrant=True)
    third = acquire(target, allow_reentrant=True)
    second.release()
    second.release()
    second.release()
    assert lock.exists()
    assert [handle.verify_still_held() for handle in (first, second, third)] == [True, False, True]
    first.release()
    assert lock.exists(), "the last one releases, whichever it is"
    third.release()
    assert not lock.exists()


def test_a_plain_acquisition_does_not_enter_a_held_lock(target: Path) -> None:
    with acquire(target, allow_reentrant=True):
        with pytest.raises(FileLockTimeout):
            acquire(target)
        with pytest.raises(WouldDeadlock):
            acquire(target, timeout=None)


def test_another_key_does_not_enter_a_held_lock(target: Path) -> None:
    with acquire(target, manager_key="one"):
        for key in ("two", None):
            with pytest.raises(FileLockTimeout):
                acquire(target, manager_key=key, allow_reentrant=True)
        acquire(target, manager_key="one", allow_reentrant=True).release()


def test_another_spelling_of_the_target_has_the_same_key(target: Path) -> None:
    with acquire(target):
        acquire(target.parent / "x" / ".." / "state.json", allow_reentrant=True).release()


def test_another_thread_can_enter(target: Path, lock: Path) -> None:
    inside: list[bool] = []

    def enter() -> None:
        with acquire(target, allow_reentrant=True):
            inside.append(lock.exists())

    with acquire(target):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(20)
        assert inside == [True]
        assert lock.exists()


def test_a_task_can_enter_a_lock_that_a_thread_holds(target: Path, lock: Path) -> None:
    async def main() -> None:
        inner = await sidecar.acquire_file_lock(target, payload={}, timeout=0, allow_reentrant=True)
        assert await inner.verify_still_held()
        await inner.release()

    with acquire(target):
        asyncio.run(main())
        assert lock.exists()


def test_a_lost_lock_is_not_entered(target: Path, lock: Path) -> None:
    with acquire(target):
        lock.write_bytes(b'{"pid": 1}\n')
        with pytest.raises(FileLockTimeout):
            acquire(target, allow_reentrant=True)


# -- managers ----------------------------------------------------------------------------------------------------------


def test_managers_of_one_key_know_of_the_same_locks(target: Path, lock: Path) -> None:
    one, two, other = (create_file_lock_manager_sync(key) for key in ("snapshot", "snapshot", "build"))
    before = time.time()
    handle = one.acquire(target, payload={}, metadata={"why": "nightly"})
    for manager in (one, two, create_file_lock_manager("snapshot")):
        (entry,) = manager.held_entries()
        assert (entry.lock_path, entry.normalized_target_path) == (str(lock), str(target))
        assert before <= entry.acquired_at <= time.time()
        assert entry.metadata == {"why": "nightly"}
    assert other.held_entries() == []
    handle.release()
    assert two.held_entries() == []


def test_a_reentrant_hold_is_listed_once(target: Path) -> None:
    manager = create_file_lock_manager_sync("twice")
    first = manager.acquire(target, payload={}, metadata={"number": 1})
    second = manager.acquire(target, payload={}, metadata={"number": 2}, allow_reentrant=True)
    first.release()
    assert [entry.metadata for entry in manager.held_entries()] == [{"number": 1}]
    second.release()
    assert manager.held_entries() == []


def test_a_lock_acquired_by_key_belongs_to_its_manager(target: Path) -> None:
    with acquire(target, manager_key="named"):
        assert len(create_file_lock_manager_sync("named").held_entries()) == 1
        with pytest.raises(TypeError, match="manager_key"):
            create_file_lock_manager_sync("named").acquire(target, payload={}, manager_key="other")


def test_with_lock_of_a_manager_lists_and_releases(target: Path, lock: Path) -> None:
    manager = create_file_lock_manager_sync("with")
    assert len(manager.with_lock(target, manager.held_entries, payload={})) == 1
    assert not lock.exists()

    async def main() -> None:
        awaited = create_file_lock_manager("with")

        async def body() -> int:
            return len(awaited.held_entries())

        assert await awaited.with_lock(target, body, payload={}) == 1
        assert len(await awaited.with_lock(target, awaited.held_entries, payload={})) == 1

    asyncio.run(main())
    assert not lock.exists()


def test_drain_releases_everything_of_its_manager(disk: Path) -> None:
    manager = create_file_lock_manager_sync("draining")
    handles = [manager.acquire(disk / name, payload={}) for name in "abc"]
    handles.append(manager.acquire(disk / "a", payload={}, allow_reentrant=True))
    with acquire(disk / "other"):
        (disk / "b.lock").unlink()  # one was lost: no reason to stop
        manager.drain()
        assert [path.name for path in disk.iterdir()] == ["other.lock"]
    assert manager.held_entries() == []
    assert not any(handle.verify_still_held() for handle in handles)
    for handle in handles:
        handle.release()
    manager.drain()


@pytest.mark.parametrize("in_threads", [False, True])
def test_an_awaited_drain_releases_the_locks_of_threads(
    disk: Path, in_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_threads:
        monkeypatch.setattr(type(environment()), "may_block", lambda _self, _path: True)

    async def main() -> None:
        manager = create_file_lock_manager("mixed")
        await manager.acquire(disk / "a", payload={})
        create_file_lock_manager_sync("mixed").acquire(disk / "b", payload={})
        assert len(manager.held_entries()) == 2
        await manager.drain()
        assert manager.held_entries() == []

    asyncio.run(main())
    assert list(disk.iterdir()) == []


def test_a_reset_leaves_nothing_held_or_listed(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = create_file_lock_manager_sync("reset")
    handles = [manager.acquire(disk / name, payload={}) for name in "ab"]
    (disk / "a.lock").unlink()
    create_file_lock_manager("reset").reset()
    assert manager.held_entries() == []
    assert list(disk.iterdir()) == []
    assert not any(handle.verify_still_held() for handle in handles)
    failing = manager.acquire(disk / "c", payload={})

    def unlink(path: str) -> None:
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr(environment(), "unlink", unlink, raising=False)
    manager.reset()
    assert manager.held_entries() == []
    monkeypatch.undo()
    failing.release()
    if not has("flock"):
        assert list(disk.iterdir()) == []


@pytest.mark.parametrize("in_threads", [False, True])
def test_a_release_by_force_ends_the_hold(
    target: Path, lock: Path, in_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_threads:
        monkeypatch.setattr(type(environment()), "may_block", lambda _self, _path: True)
    manager = create_file_lock_manager_sync("force")
    first = manager.acquire(target, payload={}, reentrant_owner="one")
    second = manager.acquire(target, payload={}, reentrant_owner="one")
    (entry,) = manager.held_entries()
    assert entry.force_release()
    assert not lock.exists()
    assert not first.verify_still_held()
    assert not second.verify_still_held()
    assert not entry.force_release()

    async def main() -> None:
        await create_file_lock_manager("force").acquire(target, payload={})
        (entry,) = create_file_lock_manager("force").held_entries()
        assert await entry.force_release()
        assert not await entry.force_release()

    asyncio.run(main())
    assert not lock.exists()


def test_an_owner_does_not_enter_the_lock_of_another(target: Path) -> None:
    with acquire(target, manager_key="owned", reentrant_owner="one"):
        acquire(target, manager_key="owned", reentrant_owner="one").release()
        for more in ({"reentrant_owner": "two"}, {}, {"reentrant_owner": ""}):
            with pytest.raises(FileLockTimeout):
                acquire(target, manager_key="owned", **more)
        acquire(target, manager_key="owned", allow_reentrant=True).release()
    with acquire(target, manager_key="owned"), pytest.raises(FileLockTimeout):
        acquire(target, manager_key="owned", reentrant_owner="one")


def test_the_first_acquisition_alone_hears_of_a_loss(target: Path, lock: Path) -> None:
    """As in fs-safe, even after its handle was released."""
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    first = acquire(target, allow_reentrant=True, on_compromised=lambda _: told.put("first"))
    second = acquire(target, allow_reentrant=True, on_compromised=lambda _: told.put("second"))
    first.release()
    lock.unlink()
    assert told.get(timeout=10) == "first"
    assert not second.verify_still_held()
    second.release()
    assert told.empty()


def test_equal_owners_are_found() -> None:
    """The engine accepts any hashable owner."""
    one, two, anyone = _Owner("key", "one"), _Owner("key", "two"), _Owner("key", None, anyone=True)
    assert one == _Owner("key", "one") != two
    assert {hash(owner) for owner in (one, two, anyone)} == {hash(one)}
    assert one == anyone == two
    assert _Owner("key", None) != _Owner("key", None), "no owner is nobody's equal"
    assert one != _Owner("other", "one")
    assert one != "one"


def test_a_lock_is_retained_if_any_handle_asks_for_it(target: Path, lock: Path) -> None:
    """One handle is enough; a release still removes the file."""
    code = """
import sys
from holdfast import sidecar
options = {"payload": {}, "reentrant_owner": "one"}
sidecar.acquire_file_lock_sync(sys.argv[1], **options)
sidecar.acquire_file_lock_sync(sys.argv[1], retain_on_exit=True, **options)
"""
    subprocess.run([sys.executable, "-c", code, target], timeout=20, check=True)
    assert lock.exists()
    lock.unlink()
    acquire(target, retain_on_exit=True).release()
    assert not lock.exists()


def test_a_lock_that_cannot_be_released_is_reported_and_does_not_stop_the_drain(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = create_file_lock_manager_sync("failing")
    first, second = (manager.acquire(disk / name, payload={}) for name in "ab")

    def unlink(path: str) -> None:
        if path == first.lock_path:
            raise OSError(5, "Input/output error", path)
        os.unlink(path)

    monkeypatch.setattr(environment(), "unlink", unlink, raising=False)
    with pytest.raises(OSError, match="Input/output"):
        manager.drain()
    assert not second.verify_still_held()
    assert not (disk / "b.lock").exists()
    # Without a guard, a lock that could not be removed stays ours, and is released once more (FH4).
    assert [entry.lock_path for entry in manager.held_entries()] == ([] if has("flock") else [first.lock_path])
    monkeypatch.undo()
    manager.drain()
    assert manager.held_entries() == []


def test_a_dropped_handle_keeps_the_lock_with_its_manager(target: Path, lock: Path) -> None:
    manager = create_file_lock_manager_sync("dropped")
    manager.acquire(target, payload={})
    assert lock.exists()
    assert len(manager.held_entries()) == 1
    manager.drain()
    assert not lock.exists()


def test_a_forked_child_has_no_locks_of_its_parent(target: Path, lock: Path) -> None:
    manager = create_file_lock_manager_sync("forked")
    handle = manager.acquire(target, payload={})

    def child() -> list[object]:
        found: list[object] = [len(manager.held_entries()), handle.verify_still_held()]
        handle.release()
        manager.drain()
        return [*found, lock.exists()]

    assert elsewhere(child) == [0, False, True]
    assert handle.verify_still_held()
    handle.release()


@pytest.mark.parametrize("key", [None, "", 3])
def test_a_manager_needs_a_key(key: Any) -> None:
    for create in (create_file_lock_manager, create_file_lock_manager_sync):
        with pytest.raises(TypeError, match="key"):
            create(key)
