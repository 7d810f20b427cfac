"""Two contenders in every schedule with two switches between them: never both inside, and never both out for good. Each
runs in its own greenlet, and they switch exactly where the schedule says: the first makes k steps, the second j, the
first all the rest, then the second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import greenlet
import pytest

from holdfast.engines.file.hold import FileHold
from holdfast.model import Identity, marker_text
from unit.stepping import Clock, Contender, Stepped, device_in, sema_record

Environments = Callable[..., Stepped]
GONE = 2**22 + 5
"""No process: numbers above the kernel's limit are never given out."""

WAYS = {
    "unnamed": (),
    "named": ("unnamed",),
    "exclusive": ("unnamed", "link"),
    "without kernel locks": ("flock",),
    "portable": ("generic",),
}


class Player:
    """Runs one piece of work, step by step on demand."""

    def __init__(self, env: Stepped, work: Callable[[], object]) -> None:
        self.done = False
        self.error: BaseException | None = None
        self._work = work
        self._env = env
        self._tester = greenlet.getcurrent()
        env.at_step = lambda _number, _name: self._tester.switch()
        self._greenlet = greenlet.greenlet(self._run)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error
        self.done = True
        self._env.at_step = None

    def advance(self, steps: float) -> float:
        """Make that many further steps, or run to the end; the number made."""
        gone = 0
        while gone < steps and not self.done:
            self._greenlet.switch()
            gone += 1
        return gone

    def finish(self) -> None:
        self.advance(float("inf"))
        if self.error is not None:
            raise self.error


def run(contender: Contender) -> None:
    """Run to the end without waiting: the schedule decides what happens meanwhile."""
    for _ in range(2000):
        if contender.step() is None:
            return
    raise AssertionError("it waits for ever")


class Stage:
    """Two reusable environments, and a path."""

    def __init__(self, path: Path, environments: Environments, way: str) -> None:
        without = tuple(word for word in WAYS[way] if word != "generic")
        kind = "generic" if "generic" in WAYS[way] else "linux"
        self.path, self.way = path, way
        self.envs = [environments(*without, kind=kind) for _ in range(3)]
        clock = Clock()  # no patience ends while this process is not scheduled
        for env in self.envs:
            env.ask_once_about_processes()
            env.instead["monotonic"] = clock.read
        self.guards = way not in ("without kernel locks", "portable")

    def set(self, state: str) -> None:
        self.path.unlink(missing_ok=True)
        who = self.envs[0].identity()
        gone = Identity(GONE, who.boot, who.pid_namespace, "-", who.host)
        if state == "dead":
            text = marker_text(self.guards, device_in(self.path.parent), gone)
            self.path.write_bytes(sema_record(GONE, time.time(), marker=text))
        elif state == "stale":
            self.path.write_bytes(sema_record(GONE, 1000))

    def contender(self, which: int) -> Contender:
        env = self.envs[which]
        env.contenders.clear()
        del env.steps[:]
        contender = Contender(env, str(self.path))
        if self.way in ("named", "exclusive"):
            contender.request.method = self.way
        return contender

    def held(self) -> list[FileHold]:
        return [held for env in self.envs for held in env.real.holds.values()]

    def clear(self) -> None:
        for held in self.held():
            held.release()

    def check_recovery(self, where: str) -> None:
        after = self.contender(2)
        run(after)
        assert after.inside, f"{where}: now nobody can have it: {after.result}"
        self.clear()
        assert os.listdir(self.path.parent) == [], where


class Schedules:
    """Some steps of the first, some of the second: each pair that differs in effect from those before. `part` of
    `parts`: all of them would make one long test."""

    def __init__(self, first: int, second: int, part: int = 0, parts: int = 1) -> None:
        self._first, self._second = range(part, first + 1, parts), second
        self._same = False

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for switch in self._first:
            for back in range(1, self._second + 1):
                self._same = False
                yield switch, back
                if self._same:
                    break

    def play(self, players: list[Player], switch: int, back: int) -> None:
        players[0].advance(switch)
        self._same = players[0].done
        players[1].advance(back)
        self._same = self._same or players[1].done  # more steps would make no difference
        for player in players:
            player.finish()


@pytest.fixture(params=WAYS)
def stage(request: pytest.FixtureRequest, shm: Path, environments: Environments) -> Stage:
    return Stage(shm / "l", environments, request.param)


def rehearse(stage: Stage, state: str) -> int:
    stage.set(state)
    contender = stage.contender(0)
    run(contender)
    assert contender.inside
    steps = len(contender.env.steps)
    stage.clear()
    return steps


TAKEOVERS = 3
"""The parts of a test with takeovers, which have many steps."""
CASES = [
    pytest.param(way, state, part, parts, id=f"{way}-{state}" + f"-{part}" * (parts > 1))
    for way in WAYS
    for state, parts in (("free", 1), ("dead", TAKEOVERS), ("stale", TAKEOVERS))
    if state == "free" or way not in ("named", "exclusive")  # a takeover publishes nothing, by any way
    for part in range(parts)
]


@pytest.mark.parametrize(("way", "state", "part", "parts"), CASES)
def test_one_of_two_contenders_is_inside_under_every_schedule(
    way: str, state: str, part: int, parts: int, shm: Path, environments: Environments
) -> None:
    stage = Stage(shm / "l", environments, way)
    steps = rehearse(stage, state)
    turns = Schedules(steps, steps, part, parts)
    for switch, back in turns:
        where = f"{switch} steps of the first, {back} of the second"
        stage.set(state)
        contenders = [stage.contender(which) for which in (0, 1)]
        players = [Player(c.env, lambda c=c: run(c)) for c in contenders]
        turns.play(players, switch, back)
        inside = [contender for contender in contenders if isinstance(contender.result, FileHold)]
        assert len(inside) <= 1, f"{where}: both are inside"
        for contender in inside:
            assert contender.result.verify(), f"{where}: the winner has no lock"  # type: ignore[union-attr]
            assert stage.path.read_bytes() == contender.result.data  # type: ignore[union-attr]
        stage.clear()
        stage.check_recovery(where)


def test_a_release_leaves_the_next_holders_lock_under_every_schedule(stage: Stage) -> None:
    """The releaser never removes the next lock, and never hears that its own was lost."""
    steps = rehearse(stage, "free")
    turns = Schedules(5, steps + 5)
    for switch, back in turns:
        where = f"{switch} steps of the releaser, {back} of the next"
        stage.set("free")
        holder, following = stage.contender(0), stage.contender(1)
        run(holder)
        held = holder.result
        assert isinstance(held, FileHold)
        players = [Player(holder.env, held.release), Player(following.env, lambda c=following: run(c))]
        turns.play(players, switch, back)
        if following.inside:
            assert following.result.verify(), f"{where}: the next one was robbed"  # type: ignore[union-attr]
        stage.clear()
        stage.check_recovery(where)
