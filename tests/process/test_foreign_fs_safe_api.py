"""Each newer option and method of fs-safe's file lock: what the package does, and that ours does the same."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import InvalidPath, sidecar
from process.foreign import node
from process.foreign.play import HERE
from process.support import eventually

Outcome = dict[str, Any]


class Ours:
    """The scenarios of fs_safe_api.mjs, with our awaitable functions."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.target = directory / "state.json"
        self.lock = directory / "state.json.lock"

    def put(self, text: str) -> None:
        self.lock.write_text(text)
        os.utime(self.lock, (time.time() - 3600,) * 2)

    async def acquire(self, target: Path | None = None, **options: Any) -> sidecar.FileLockHandle:
        given: Any = {"retry": {"retries": 0}, "payload": lambda: {"pid": os.getpid()}, **options}
        return await sidecar.acquire_file_lock(target or self.target, **given)

    async def outcome(self, target: Path | None = None, **options: Any) -> str:
        try:
            await self.acquire(target, **options)
        except (sidecar.FileLockTimeout, sidecar.FileLockStale) as error:
            return error.code
        except InvalidPath:
            return "invalid"
        except LookupError as error:
            return str(error.args[0])
        return "acquired"

    async def reentrant(self) -> list[Any]:
        options = {"manager_key": "m", "reentrant_owner": "one"}
        first, second = await self.acquire(**options), await self.acquire(**options)
        others: list[dict[str, Any]] = [{"reentrant_owner": "two"}, {"reentrant_owner": None}, {"manager_key": "n"}]
        told: list[Any] = [await self.outcome(**{**options, **more}) for more in others]
        await second.release()
        await second.release()
        told += [self.lock.exists(), await first.verify_still_held()]
        await first.release()
        return [*told, self.lock.exists()]

    async def parse(self) -> list[Any]:
        told: list[Any] = []

        def should_reclaim(params: sidecar.ReclaimParams) -> bool:
            told.extend((params.payload, params.held_by_this_process))
            return bool(params.payload["words"][1] == "dead")

        def should_remove(snapshot: sidecar.StaleSnapshot) -> bool:
            told.extend((snapshot.raw, snapshot.payload))
            return True

        options = {
            "parse_payload": lambda raw: {"words": raw.split(" ")},
            "should_reclaim": should_reclaim,
            "should_remove_stale_lock": should_remove,
            "stale_recovery": "remove-if-unchanged",
        }
        for text in ("builder alive", "builder dead"):
            self.put(text)
            told.append(await self.outcome(**options))
        return told

    async def parsedAge(self) -> list[Any]:
        told = []
        for age in (0, 3600):
            self.put("x")
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age))
            told.append(await self.outcome(parse_payload=lambda _, moment=moment: {"createdAt": moment}))
        for what in (3, None):
            self.put("x")
            told.append(await self.outcome(parse_payload=lambda _, what=what: {"createdAt": what}))
        return told

    async def parseFails(self) -> list[Any]:
        def fail(_: str) -> None:
            raise LookupError("mine")

        self.put("x")
        return [await self.outcome(parse_payload=fail), self.lock.read_text()]

    async def root(self) -> list[Any]:
        async def at(lock_path: str) -> str:
            return await self.outcome(
                self.directory / "absent" / "x",
                lock_root=self.directory / "locks",
                lock_path=self.directory / lock_path,
            )

        told: list[Any] = [await at("locks/sub/x.lock"), (self.directory / "locks" / "sub" / "x.lock").exists()]
        outside = [await at(path) for path in ("elsewhere/x.lock", "link/x.lock", "locks/out/x.lock")]
        told += [what == "acquired" for what in outside]
        return [*told, (self.directory / "absent").exists(), os.listdir(self.directory / "elsewhere")]

    async def compromised(self) -> list[Any]:
        told: list[sidecar.CompromisedInfo] = []
        handle = await self.acquire(on_compromised=told.append, compromise_check_interval=0.005)
        self.lock.unlink()
        while not told:
            await asyncio.sleep(0.001)
        await handle.release()
        return [{"lockPath": info.lock_path, "normalizedTargetPath": info.normalized_target_path} for info in told]

    async def reset(self) -> list[Any]:
        manager = sidecar.create_file_lock_manager("m")
        handle = await manager.acquire(self.target, payload={}, metadata={"why": "test"})
        told: list[Any] = [[[entry.lock_path, entry.metadata] for entry in manager.held_entries()]]
        manager.reset()
        told += [len(manager.held_entries()), self.lock.exists(), await handle.verify_still_held()]
        await handle.release()
        return told

    async def force(self) -> list[Any]:
        manager = sidecar.create_file_lock_manager("m")
        handles = [await manager.acquire(self.target, payload={}, reentrant_owner="one") for _ in range(2)]
        (entry,) = manager.held_entries()
        told: list[Any] = [await entry.force_release(), self.lock.exists(), len(manager.held_entries())]
        told.append(await entry.force_release())
        for handle in handles:
            told.append(await handle.verify_still_held())
            await handle.release()
        return told

    async def tries(self) -> list[Any]:
        asked: list[object] = []

        async def should_reclaim(params: object) -> bool:
            asked.append(params)
            await asyncio.sleep(0.02)
            return False

        self.put("{}")
        retry = {"retries": 3, "min_timeout": 0.001, "max_timeout": 0.001}
        return [await self.outcome(retry=retry, should_reclaim=should_reclaim), len(asked) >= 4]

    async def elsewhere(self) -> list[Any]:
        await self.acquire(manager_key="m", lock_path=f"{self.target}.other")
        self.put("{}")
        told: list[bool] = []
        for key in ("m", "n"):
            await self.outcome(
                manager_key=key,
                lock_path=self.lock,
                should_reclaim=lambda params: told.append(params.held_by_this_process),
            )
        return [told[0], told[-1]]

    async def retain(self) -> bool:
        await self.acquire(retain_on_exit=True)
        await self.acquire(Path(f"{self.target}2"))
        return self.lock.exists()


def theirs(version: str, scenario: str, directory: Path) -> Any:
    try:
        dist = Path(node.fs_safe(version)).parent
        command = [node.node(), HERE / "fs_safe_api.mjs", dist, scenario, directory]
    except node.Missing as why:
        pytest.skip(str(why))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ours(scenario: str, directory: Path) -> Any:
    """Run a scenario in a process of its own, so that its exit is a real one."""
    code = """
import asyncio, json, sys
from pathlib import Path
from process.test_foreign_fs_safe_api import Ours
print(json.dumps(asyncio.run(getattr(Ours(Path(sys.argv[2])), sys.argv[1])())))
"""
    command = [sys.executable, "-c", code, scenario, directory]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def places(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        directory = (tmp_path / name).resolve()
        for sub in ("locks", "elsewhere"):
            (directory / sub).mkdir(parents=True)
        (directory / "link").symlink_to("elsewhere")
        (directory / "locks" / "out").symlink_to("../elsewhere")
        return directory

    return make


T, S = "file_lock_timeout", "file_lock_stale"
WORDS = {"words": ["builder", "alive"]}, {"words": ["builder", "dead"]}
WANTED: dict[str, Callable[[Path], Any]] = {
    "reentrant": lambda _: [T, T, T, True, True, False],
    "parse": lambda _: [WORDS[0], False, T, WORDS[1], False, "builder dead", WORDS[1], "acquired"],
    "parsedAge": lambda _: [T, S, S, S],
    "parseFails": lambda _: ["mine", "x"],
    "root": lambda _: ["acquired", True, False, False, False, False, []],
    "compromised": lambda d: [{"lockPath": f"{d}/state.json.lock", "normalizedTargetPath": f"{d}/state.json"}],
    "reset": lambda d: [[[f"{d}/state.json.lock", {"why": "test"}]], 0, False, False],
    "force": lambda _: [True, False, 0, False, False, False],
    "tries": lambda _: [T, True],
    "retain": lambda _: True,
}


@pytest.mark.parametrize("scenario", WANTED)
def test_every_option_and_method_of_fs_safe_does_the_same_here(scenario: str, places: Callable[[str], Path]) -> None:
    for who, run in (("ours", ours), ("theirs", lambda *about: theirs(node.VERSIONS[-1], *about))):
        directory = places(who)
        told = run(scenario, directory)
        if scenario == "parse" and who == "ours":
            told = _without_repetitions(told)  # asked again once the watch is armed
        assert told == WANTED[scenario](directory), who
        if scenario == "retain":
            assert (directory / "state.json.lock").exists(), "kept"
            assert not (directory / "state.json2.lock").exists(), "not kept"


def _without_repetitions(told: list[Any]) -> list[Any]:
    pair = [WORDS[0], False]
    while told[:4] == [*pair, *pair]:
        told = told[2:]
    return told


@pytest.mark.parametrize("who", ["ours", "theirs"])
def test_a_manager_is_told_that_its_process_holds_the_target_elsewhere(who: str, places: Callable[[str], Path]) -> None:
    """`held_by_this_process`, as in 0.3.0; 0.21.0 asks nobody then, and lets the second caller wait."""
    directory = places(who)
    told = ours("elsewhere", directory) if who == "ours" else theirs("0.3.0", "elsewhere", directory)
    assert told == [True, False]


def test_a_retained_lock_is_held_for_holdfast_and_can_be_seized_by_fs_safe(
    fs_safe_new: Any, places: Callable[[str], Path]
) -> None:
    """We keep it, and fs-safe judges it: its callers are told the payload, find the process dead, and take it."""
    directory = places("both")
    assert ours("retain", directory) is True
    target = directory / "state.json"
    with pytest.raises(sidecar.FileLockTimeout):
        sidecar.acquire_file_lock_sync(target, payload={}, timeout=0)
    record = json.loads((directory / "state.json.lock").read_text())
    assert list(record) == ["pid"], "nothing in it that proves the death of its holder"
    player = fs_safe_new(target)
    assert player.ask("take") == "held"
    assert player.ask("seize") == "acquired"
    assert player.ask("release") == "released"
    eventually(lambda: not (directory / "state.json.lock").exists(), what="the release")
