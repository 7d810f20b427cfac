"""Every step made to fail in turn: nothing leaks, nothing lies, and the next one gets the lock."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast._core.contest import Refusal
from holdfast._core.hold import Held
from holdfast._core.request import Request
from holdfast.errors import HoldfastError
from holdfast.model import Identity, marker_text
from unit.stepping import Contender, Stepped, sema_record

Contend = Callable[..., Contender]
Environments = Callable[..., Stepped]

NEVER_FAIL = frozenset({"inspect", "watch", "watch_process"})
"""Steps that answer in another way than by an OSError."""
NUMBERS = (errno.EIO, errno.ENOSPC, errno.EMFILE)
numbers = pytest.mark.parametrize("number", NUMBERS, ids=lambda number: errno.errorcode[number])

# What to switch off, and the options, for each way to the lock.
WAYS: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
    "unnamed": ((), {}),
    "unnamed, durable": ((), {"durable": True}),
    "named": (("unnamed",), {"durable": True}),
    "exclusive": (("unnamed", "link"), {"durable": True}),
    "portable": (("generic",), {}),
    "without kernel locks": (("flock",), {}),
}


class Rig:
    """A path in some state, and contenders for it."""

    def __init__(self, path: Path, contend: Contend, environments: Environments, way: str) -> None:
        self.path = path
        self.without, self.options = WAYS[way]
        self._contend, self._environments = contend, environments

    def contender(self) -> Contender:
        kind = "generic" if "generic" in self.without else "linux"
        env = self._environments(*(word for word in self.without if word != "generic"), kind=kind)
        return self._contend(self.path, env, **self.options)

    def free(self) -> None:
        self.path.unlink(missing_ok=True)

    def dead(self) -> None:
        if self.without in (("generic",), ("flock",)):
            here = self.contender().env.identity()
            gone = Identity(2**22 + 5, here.boot, here.pid_namespace, "-", here.host)
            text = marker_text(False, self.path.parent.stat().st_dev, gone)
            self.path.write_bytes(sema_record(gone.pid, time.time(), "x" * 300, text))
        else:
            holder = self._contend(self.path, tag="x" * 300)
            holder.get()
            holder.crash()

    def stale(self) -> None:
        self.path.write_bytes(sema_record(2**22 + 5, 1000, "x" * 300))


@pytest.fixture(params=WAYS)
def rig(request: pytest.FixtureRequest, disk: Path, contend: Contend, environments: Environments) -> Rig:
    return Rig(disk / "l", contend, environments, request.param)


def fail_at(env: Stepped, place: int, number: int) -> None:
    """The step at that place fails; closing fails after the deed, as it does in the kernel."""

    def at_step(at: int, name: str) -> None:
        if at == place and name != "close":
            raise OSError(number, os.strerror(number))

    def past_step(at: int, name: str) -> None:
        if at == place and name == "close":
            raise OSError(number, os.strerror(number))

    env.at_step, env.past_step = at_step, past_step


def run_and_check(contender: Contender, number: int, where: str) -> Held | None:
    """Run it with its fault; whatever comes of it must be true."""
    result: Held | Refusal | None = None
    raised: Exception | None = None
    try:
        result = contender.run()
    except (OSError, HoldfastError) as error:
        raised = error
    contender.env.at_step = contender.env.past_step = None
    if raised is not None:
        assert isinstance(raised, HoldfastError) or raised.errno == number, f"{where}: {raised!r}"
    if isinstance(result, Held):
        assert result.verify(), f"{where}: a false success"
        return result
    assert not contender.env.open_descriptors(), f"{where}: a descriptor is left"
    assert not contender.env.holds, f"{where}: a hold is left"
    return None


def check_next(rig: Rig, where: str) -> None:
    after = rig.contender()
    after.request.timeout = 1
    result = after.run()
    assert isinstance(result, Held), f"{where}: the next one is refused: {result}"
    assert result.verify()
    result.release()
    for name in os.listdir(rig.path.parent):
        # A name that could not be removed is the one thing that a fault may leave; a later contender sweeps it.
        assert name.startswith(".holdfast-"), f"{where}: {name} is left"
        (rig.path.parent / name).unlink()


@pytest.mark.parametrize("state", ["free", "dead", "stale"])
@numbers
def test_a_fault_while_acquiring_leaks_or_lies(state: str, number: int, rig: Rig) -> None:
    getattr(rig, state)()
    rehearsal = rig.contender()
    held = rehearsal.get()
    steps = list(rehearsal.env.steps)
    held.release()
    assert len(steps) > 4
    for at, name in enumerate(steps):
        if name in NEVER_FAIL:
            continue
        where = f"{name} at {at} of {steps}"
        rig.free()
        getattr(rig, state)()
        contender = rig.contender()
        fail_at(contender.env, at, number)
        result = run_and_check(contender, number, where)
        if result is not None:
            result.release()
        check_next(rig, where)


@numbers
def test_a_fault_while_releasing_leaks_or_lies(number: int, rig: Rig) -> None:
    rehearsal = rig.contender()
    held = rehearsal.get()
    start = len(rehearsal.env.steps)
    held.release()
    steps = rehearsal.env.steps[start:]
    assert steps[-3:] == ["unlink", "unguard", "close"]
    for at, name in enumerate(steps):
        contender = rig.contender()
        held = contender.get()
        fail_at(contender.env, len(contender.env.steps) + at, number)
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            held.release()
        contender.env.at_step = contender.env.past_step = None
        assert caught.value.errno == number
        assert held.released
        assert not contender.env.open_descriptors(), name
        assert not contender.env.holds
        held.release()  # does nothing
        if rig.path.exists() and not held.guarded:
            continue_without_proof(rig)
        check_next(rig, name)


def continue_without_proof(rig: Rig) -> None:
    """Without a guard, the living process is all there is: the file counts as held until it ends."""
    assert isinstance(rig.contender().run(), Refusal)
    rig.free()


@numbers
def test_a_fault_while_looking_leaks(number: int, rig: Rig) -> None:
    from holdfast._core.acquire import look

    rig.stale()
    request = Request(str(rig.path), {})
    rehearsal = rig.contender().env
    look(rehearsal, request)
    for at, name in enumerate(rehearsal.steps):
        if name in NEVER_FAIL or name == "list_directory":
            continue  # who waits is shown as far as it can be seen
        env = rig.contender().env
        fail_at(env, at, number)
        with pytest.raises(OSError, match=os.strerror(number)):
            look(env, request)
        assert not env.open_descriptors(), f"{name} at {at}"


@numbers
def test_a_fault_while_waiting_leaks_or_hangs(number: int, disk: Path, contend: Contend) -> None:
    """A waiter that fails says so; one that cannot watch, polls."""
    holder = contend(disk / "l")
    held = holder.get()
    rehearsal = contend(disk / "l", timeout=None)
    rehearsal.step()
    steps = list(rehearsal.env.steps)
    rehearsal.steps.close()
    for at, name in enumerate(steps):
        contender = contend(disk / "l", timeout=None)
        if name in NEVER_FAIL:
            contender.env.instead[name] = lambda _what: None
        else:
            fail_at(contender.env, at, number)
        try:
            wait = contender.step()
        except OSError as error:
            outcome = error.errno == number
        else:
            outcome = wait is not None and wait.deadline < contender.env.monotonic() + 11
        assert outcome, f"{name} at {at}"
        contender.steps.close()
        assert not contender.env.open_descriptors(), f"{name} at {at}"
    assert held.verify()
