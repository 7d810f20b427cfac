"""Harmlessness, whatever others do in the directory (docs/security.md): each operation, with another object in place of
the one that its next step is about, at any of its steps. Nothing outside may differ by a byte, a mode, an owner, a time
or a name; nothing may hang; only documented errors may be raised; and a lock that was left alone stays its holder's.
Without root, the links belong to the user, and semats follows those. HOLDFAST_TEST_SWAPS=10000 runs all cases, not 40
of each."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import GeneratorType
from typing import Any

import pytest

from holdfast.engines.file.hold import FileHold
from holdfast.errors import HoldfastError
from unit.elsewhere import IS_ROOT
from unit.failing import Tap
from unit.fault_operations import OPERATIONS, AcquireFenced, Operation, Scene, TakeOverDead, Wrong, die
from unit.swaps import KINDS, Neighbour, Outside, Watchful, watchful
from unit.unfriendly_operations import MORE, List

SAMPLE = int(os.environ.get("HOLDFAST_TEST_SWAPS", "40"))
"""Cases of each operation and way."""
_TARGETS = ("its own", "the lock file", "any")
_SLOW = {"Take over a dead holder's lock in a task (asyncio), each step in a thread"}


def _cases() -> list[Any]:
    found = []
    for operation in (*OPERATIONS, *MORE):
        ways = operation.ways if operation.name not in _SLOW else ()
        found += [pytest.param(operation, way, id=f"{operation.name}, {way}") for way in ways if way != "durable"]
    return found


@pytest.fixture
def outside(shm: Path) -> Iterator[Outside]:
    made = Outside(shm / "outside")
    yield made
    made.end()


@pytest.mark.needs("unnamed", "flock", "proc", "events")
@pytest.mark.parametrize(("kind", "way"), _cases())
def test_a_swap_at_any_step_changes_nothing_outside_and_hangs_nothing(
    kind: type[Operation],
    way: str,
    shm: Path,
    outside: Outside,
    within: Callable[[float], AbstractContextManager[None]],
) -> None:
    place = shm / "shared"
    place.mkdir()
    with watchful() as steps:
        steps.forbidden = str(outside.root)
        steps_in_all = _once(kind, way, place, outside, steps, None)
        assert steps_in_all
        # Only root can make a device or another user's link; own links are followed where the protocol says so.
        roots = () if IS_ROOT else ("a device", "a link") if "semats" in kind.name else ("a device",)
        kinds = [what for what in KINDS if not what.startswith(roots)]
        every = list(itertools.product(range(steps_in_all), kinds, _TARGETS))
        dice = random.Random(os.environ.get("HOLDFAST_TEST_SEED", "") + kind.name + way)
        for case in dice.sample(every, min(SAMPLE, len(every))):
            with within(60.0):
                _once(kind, way, place, outside, steps, case)
            wrong = outside.differences()
            assert not wrong, f"{case}: {wrong}"
            assert not steps.strayed or kind is List, f"{case}: {steps.strayed}"
        assert not outside.differences(bytewise=True)


@pytest.mark.needs("unnamed", "flock", "proc")
@pytest.mark.parametrize("kind", [AcquireFenced, TakeOverDead], ids=lambda kind: kind.name)
def test_a_file_that_is_linked_here_is_not_written_over(kind: type[Operation], shm: Path, outside: Outside) -> None:
    """Where the system lets users link files that they neither own nor may write (fs.protected_hardlinks)."""
    place = shm / "shared"
    place.mkdir()
    with watchful() as steps:
        for number, what, target in itertools.product(range(12), KINDS, ("its own", "the lock file")):
            if what.startswith("a hard link"):
                _once(kind, "unnamed", place, outside, steps, (number, what, target))
                assert not outside.differences(bytewise=True), (number, what, target)


def _once(
    kind: type[Operation],
    way: str,
    place: Path,
    outside: Outside,
    steps: Watchful,
    case: tuple[int, str, str] | None,
) -> int:
    """Run the operation once; the number of its steps."""
    operation, tap = kind(), Tap()
    scene = Scene(place, tap, way, **operation.options)
    swapped: list[str] = []
    neighbour = Neighbour(place, outside)

    def before(number: int, path: str) -> None:
        assert case is not None
        if number == case[0]:
            target = _target(case, path, scene)
            if scene.lock_file.startswith(f"{target}/"):
                target = scene.lock_file  # whoever may write above its directory decides which directory that is
            swapped.append(target)
            try:
                neighbour.exchange(target, case[1])
            except PermissionError:
                pytest.skip(f"{case[1]} cannot be made here")

    result: Any = None
    try:
        operation.prepare(scene)
        for env in scene.environments:
            env.swept.clear()
        steps.count, steps.before = 0, None if case is None else before
        steps.open = True
        try:
            result = operation.act(scene)
        except (OSError, HoldfastError) as error:
            if case is None:
                raise
            _require_documented(error)
        except Wrong:
            if case is None:
                raise
        finally:
            steps.open = False
        _require_one_holder(scene, result, swapped)
        return steps.count
    finally:
        for waiting in vars(operation).values():
            if isinstance(waiting, GeneratorType):
                with contextlib.suppress(OSError, HoldfastError):
                    waiting.close()
        for env in scene.environments:
            die(env)
        _empty(place)


def _target(case: tuple[int, str, str], path: str, scene: Scene) -> str:
    if case[2] == "the lock file":
        return scene.lock_file
    if case[2] == "its own":
        return path if path != str(scene.place) else scene.lock_file
    there = sorted(str(one) for one in scene.place.rglob("*"))
    return random.Random(repr(case)).choice(there) if there else scene.lock_file


def _require_documented(error: Exception) -> None:
    if not isinstance(error, HoldfastError):
        assert isinstance(error, OSError)
        assert error.errno, repr(error)
        assert error.strerror, repr(error)


def _require_one_holder(scene: Scene, result: Any, swapped: list[str]) -> None:
    """Require one holder, if the lock file itself was left alone."""
    if scene.slots is not None or scene.lock_file in swapped:
        return
    held = {
        id(held): held
        for env in scene.environments
        for held in env.holds.values()
        if isinstance(held, FileHold) and not held.released and held.path == scene.lock_file and not held.request.shared
    }
    assert len([held for held in held.values() if held.verify()]) <= 1, f"two holders after {swapped}"
    if isinstance(result, FileHold) and not swapped:
        assert result.verify()


def _empty(place: Path) -> None:
    for path in sorted(place.rglob("*"), reverse=True):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            path.rmdir()
        else:
            path.unlink()
