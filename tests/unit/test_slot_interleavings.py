"""Two contenders for two slots, in every schedule with two switches between them (see test_interleavings.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.engines.file.hold import FileHold
from holdfast.model import Identity, marker_text
from unit.stepping import Clock, Contender, Stepped, device_in, sema_record
from unit.test_interleavings import GONE, TAKEOVERS, WAYS, Player, Schedules, run

Environments = Callable[..., Stepped]


class Stage:
    """Reusable environments, and the base of a semaphore."""

    def __init__(self, base: Path, environments: Environments, way: str) -> None:
        without = tuple(word for word in WAYS[way] if word != "generic")
        kind = "generic" if "generic" in WAYS[way] else "linux"
        self.base, self.way = base, way
        self.envs = [environments(*without, kind=kind) for _ in range(4)]
        clock = Clock()  # no patience ends while this process is not scheduled
        for env in self.envs:
            env.ask_once_about_processes()
            env.instead["monotonic"] = clock.read
        self.guards = way not in ("without kernel locks", "portable")

    def path(self, slot: int) -> Path:
        return self.base.with_name(f"{self.base.name}.{slot}.lock")

    def set(self, states: tuple[str, str]) -> None:
        """`held`: by the last environment."""
        self.clear()
        who = self.envs[0].identity()
        gone = Identity(GONE, who.boot, who.pid_namespace, "-", who.host)
        for slot, state in enumerate(states):
            path = self.path(slot)
            path.unlink(missing_ok=True)
            if state == "dead":
                text = marker_text(self.guards, device_in(path.parent), gone)
                path.write_bytes(sema_record(GONE, time.time(), marker=text))
            elif state == "held":
                Contender(self.envs[3], str(path), fair=False).get()

    def contender(self, which: int) -> Contender:
        env = self.envs[which]
        env.contenders.clear()
        del env.steps[:]
        contender = Contender(env, str(self.base), slots=2)
        if self.way in ("named", "exclusive"):
            for request in contender.requests:
                request.method = self.way
        return contender

    def clear(self) -> None:
        for env in self.envs:
            for held in list(env.real.holds.values()):
                held.release()


@pytest.fixture
def stage(way: str, shm: Path, environments: Environments) -> Stage:
    return Stage(shm / "b", environments, way)


STATES = [("free", "free"), ("dead", "free"), ("dead", "dead"), ("held", "free"), ("held", "dead")]
CASES = [
    pytest.param(way, states, part, parts, id="-".join((way, *states)) + f"-{part}" * (parts > 1))
    for way in ("unnamed", "exclusive", "portable")
    for states in STATES
    if way != "exclusive" or "free" in states  # otherwise nothing is published, by any way
    for parts in (TAKEOVERS if "dead" in states else 1,)
    for part in range(parts)
]


@pytest.mark.parametrize(("way", "states", "part", "parts"), CASES)
def test_a_slot_is_held_by_one_under_every_schedule(
    states: tuple[str, str], part: int, parts: int, stage: Stage
) -> None:
    """Each try is refused only if both slots are taken by then, so the number of holders is that of the free slots."""
    stage.set(states)
    rehearsal = stage.contender(0)
    run(rehearsal)
    steps = len(rehearsal.env.steps)
    free = 2 - states.count("held")
    turns = Schedules(steps, steps + 10, part, parts)
    for switch, back in turns:
        where = f"{switch} steps of the first, {back} of the second"
        stage.set(states)
        contenders = [stage.contender(which) for which in (0, 1)]
        players = [Player(c.env, lambda c=c: run(c)) for c in contenders]
        turns.play(players, switch, back)
        inside = [contender.result for contender in contenders if isinstance(contender.result, FileHold)]
        assert len(inside) == free, f"{where}: {len(inside)} are inside"
        assert len({held.path for held in inside}) == free, f"{where}: two are in one slot"
        for held in inside:
            assert held.verify(), f"{where}: somebody inside has no slot"
            assert Path(held.path).read_bytes() == held.data
    stage.clear()
    assert os.listdir(stage.base.parent) == []
