"""Turns between machines (turns.py): fair, cheap for the server, and removed with their owners."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast._core.wait import Wait
from holdfast._platform.values import Storage
from holdfast.engines.file import turns
from holdfast.engines.file.acquire import AcquireAttempt
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.queue import QueueEntry, is_turn, turn_name, turn_number
from holdfast.engines.file.request import FileRequest
from holdfast.engines.file.turns import EntryWithTurn
from holdfast.engines.file.uncontended import _is_contended
from holdfast.model import Identity
from unit.stepping import Clock, Contender, Stepped, failing, is_ready


class Machines:
    """Processes of several machines that share a directory, on one clock that the test sets."""

    def __init__(self, environments: Callable[..., Stepped], path: Path) -> None:
        self._environments = environments
        self.path = str(path)
        self.queue = path.parent / f".holdfast-{path.name}.queue"
        self.clock = Clock()
        self.waiting: list[Contender] = []
        self.due: dict[Contender, Wait] = {}

    def machine(self, number: int) -> Stepped:
        env = self._environments("events")
        who = env.real.identity()
        env.real._identity = Identity(who.pid, f"boot-{number}", f"{number}.{number}", who.started, f"host-{number}")
        for name in ("monotonic", "uptime"):
            env.instead[name] = self.clock.read
        env.instead["storage"] = lambda *_: Storage("nfs4", shared=True, events=False)
        env.instead["may_block"] = lambda _path: True
        env.instead["poll_limit"] = lambda _path: 0.05
        return env

    def contend(self, env: Stepped, **options: Any) -> Contender:
        """A contender that wants the lock from now on."""
        contender = Contender(env, self.path, timeout=None, fair=True, lease=0, **options)
        self.waiting.append(contender)
        self._step(contender)
        return contender

    def _step(self, contender: Contender) -> None:
        wait: Wait | None = contender.step()
        if wait is None:
            self.waiting.remove(contender)
            self.due.pop(contender, None)
        else:
            self.due[contender] = wait

    def _when(self, contender: Contender) -> float:
        """The time at which it is to go on."""
        wait = self.due[contender]
        ready = wait.signal.is_set if wait.signal is not None else bool(wait.fds) and is_ready(wait)
        return 0.0 if ready else wait.deadline

    def pass_time(self, seconds: float, *, until: Callable[[], object] = lambda: False) -> float:
        """Step all contenders when due; the seconds that this takes."""
        began = self.clock.now
        while not until():
            first = min(self.waiting, key=self._when, default=None)
            if first is None or self._when(first) > began + seconds:
                self.clock.now = began + seconds
                break
            self.clock.now = max(self.clock.now, self._when(first))
            self._step(first)
        return self.clock.now - began

    def dies(self, env: Stepped) -> None:
        """Cut the machine's power."""
        self.waiting = [one for one in self.waiting if one.env is not env]
        env.crash()

    def turns(self) -> list[str]:
        return sorted(name for name in os.listdir(self.queue) if is_turn(name)) if self.queue.exists() else []


@pytest.fixture
def machines(environments: Callable[..., Stepped], shm: Path) -> Machines:
    return Machines(environments, shm / "l")


def held(contender: Contender) -> FileHold:
    assert isinstance(contender.result, FileHold)
    return contender.result


def nothing_left(machines: Machines) -> bool:
    return not os.listdir(Path(machines.path).parent)


def test_machines_are_served_by_their_turns(machines: Machines) -> None:
    """MT2, MT3, MT6, MT7: a machine that takes the lock again goes behind the others."""
    first, second, third = (machines.machine(number) for number in range(3))
    holder = machines.contend(first)
    order: list[str] = []
    waiting = {"second": machines.contend(second)}
    machines.pass_time(1)
    waiting["third"] = machines.contend(third)
    machines.pass_time(1)
    assert len(machines.turns()) == 2
    held(holder).release()
    waiting["first again"] = machines.contend(first)
    while waiting:
        took = machines.pass_time(5, until=lambda: any(one.done for one in waiting.values()))
        assert took < 2, "the next one finds out soon"
        (name,) = (name for name, one in waiting.items() if one.done)
        order.append(name)
        assert not machines.turns() or len(machines.turns()) == len(waiting) - 1, "a holder has none"
        held(waiting.pop(name)).release()
    assert order == ["second", "third", "first again"]
    assert nothing_left(machines)


def test_a_machine_has_one_turn_however_many_wait_there(machines: Machines) -> None:
    """MT7: the machine's queue says which process has it."""
    first, second = machines.machine(1), machines.machine(2)
    holder = machines.contend(first)
    many = [machines.contend(second) for _ in range(3)]
    machines.pass_time(2)
    assert len(machines.turns()) == 1
    held(holder).release()
    for one in many:
        machines.pass_time(5, until=lambda one=one: one.done)
        held(one).release()
    assert nothing_left(machines)


def test_a_waiter_far_from_its_turn_asks_the_server_twice_a_second_at_most(machines: Machines) -> None:
    """MT2."""
    holder = machines.contend(machines.machine(0))
    for number in (1, 2):
        machines.contend(machines.machine(number))
        machines.pass_time(1)
    env = machines.machine(3)
    far = machines.contend(env)
    machines.pass_time(10)
    env.steps.clear()
    machines.pass_time(60)
    looks = [step for step in env.steps if step == "open_directory"]
    assert 60 / turns._FAR - 2 <= len(looks) <= 60 / turns._FAR + 60 / turns._BEAT_EVERY + 2
    # An NFS client asks twice to open the directory, then once for the names; it knows a file that has not changed.
    asking = 2 * len(looks) + env.steps.count("list_directory") + env.steps.count("rename") + 4 * 60 / turns.LOOK_EVERY
    assert asking <= 2 * 60, env.steps
    assert not far.done
    held(holder).release()
    for one in [*machines.waiting]:
        machines.pass_time(10, until=lambda one=one: one.done)
        held(one).release()
    assert nothing_left(machines)


def test_a_first_waiter_removes_the_tickets_of_the_dead_only_once(machines: Machines) -> None:
    """Otherwise each of its looks would ask the server about the tickets of all other machines."""
    holder = machines.contend(machines.machine(0))
    env = machines.machine(2)
    later = machines.contend(machines.machine(1))  # its ticket is ahead, its turn is not
    machines.pass_time(1)
    machines.contend(env)
    held(holder).release()
    machines.pass_time(5, until=lambda: later.done)
    machines.pass_time(1)
    env.steps.clear()
    machines.pass_time(5)
    assert env.steps.count("guarded") > 20, "it is first, and looks often"
    assert "open_fifo" not in env.steps


def test_a_queue_that_another_machine_has_just_made_is_found(machines: Machines) -> None:
    """MT7: a client remembers that it was missing until it opens the parent directory."""
    holder = machines.contend(machines.machine(0))
    machines.contend(machines.machine(1))
    env, remembered = machines.machine(2), [False]
    env.instead["exists"] = lambda path: remembered[0] and os.path.exists(path)
    env.before["open_directory"] = lambda _path: remembered.__setitem__(0, True)
    assert _is_contended(env, holder.request, None)


def test_the_turn_of_a_dead_machine_holds_up_the_others_for_a_bounded_time(machines: Machines) -> None:
    """MT4: by the waiter's clock, and not while the machine lives and beats."""
    holder_env, dead, alive, last = (machines.machine(number) for number in range(4))
    holder = machines.contend(holder_env)
    for env in (dead, alive, last):
        machines.contend(env)
        machines.pass_time(1)
    machines.pass_time(30)
    assert len(machines.turns()) == 3, "the living beat"
    machines.dies(dead)
    machines.pass_time(turns._LASTS / 2)
    assert len(machines.turns()) == 3
    machines.pass_time(turns._LASTS)
    assert len(machines.turns()) == 2
    second, third = machines.waiting
    held(holder).release()
    assert machines.pass_time(5, until=lambda: second.done) < 1
    assert not third.done
    held(second).release()
    assert machines.pass_time(5, until=lambda: third.done) < 2
    held(third).release()
    shutil.rmtree(machines.queue)  # a ticket of another machine that has died stays for a day (queue.py, Q3)


def test_an_observer_that_was_away_does_not_count_that_time(machines: Machines) -> None:
    """MT4."""
    holder_env, other, away = (machines.machine(number) for number in range(3))
    holder = machines.contend(holder_env)
    machines.contend(other)
    machines.pass_time(1)
    late = machines.contend(away)
    machines.pass_time(1)
    (waiting,) = (one for one in machines.waiting if one is not late)
    machines.waiting.remove(waiting)  # its machine is asleep, and so is the observer, for longer than a turn lasts
    machines.clock.now += 2 * turns._LASTS
    machines.pass_time(turns._LASTS / 2)
    assert len(machines.turns()) == 2
    machines.pass_time(turns._LASTS)
    assert len(machines.turns()) == 1
    machines.waiting.append(waiting)
    machines.due[waiting] = Wait((), 0.0)
    machines.pass_time(1)
    assert len(machines.turns()) == 2, "a living waiter whose turn is gone makes a new one"
    held(holder).release()
    for one in (late, waiting):
        machines.pass_time(5, until=lambda one=one: one.done)
        held(one).release()


def test_a_free_lock_is_not_left_to_an_idle_turn(machines: Machines) -> None:
    """MT5: a turn that is old by the server's clock is then removed."""
    dead, newcomer = machines.machine(1), machines.machine(2)
    holder = machines.contend(newcomer)
    machines.contend(dead)
    machines.pass_time(1)
    (turn,) = machines.turns()
    machines.dies(dead)
    held(holder).release()
    for age, stays in ((1, True), (60, False)):
        found = (machines.queue / turn).stat()
        os.utime(machines.queue / turn, (found.st_atime, found.st_mtime - age))
        again = machines.contend(newcomer)
        assert machines.pass_time(10, until=lambda again=again: again.done) < 2 * turns.PATIENCE + 0.5
        held(again).release()
        assert (turn in machines.turns()) is stays
    shutil.rmtree(machines.queue)  # as above


def test_a_turn_that_one_reading_does_not_show_is_still_there(machines: Machines) -> None:
    """MT8: as when its owner is sending a beat."""
    first, second, third = (machines.machine(number) for number in range(3))
    holder = machines.contend(first)
    ahead = machines.contend(second)
    machines.pass_time(1)
    (turn,) = machines.turns()
    behind = machines.contend(third)
    machines.pass_time(1)
    real, shown = third.real.list_directory, [0]

    def hides_once(directory: Any) -> list[str]:
        names: list[str] = real(directory)
        shown[0] += turn.rpartition("-")[0] in "".join(names)
        return [name for name in names if shown[0] != 2 or not name.startswith(turn.rpartition("-")[0])]

    third.instead["list_directory"] = hides_once
    machines.waiting.remove(ahead)  # it is slow to notice
    held(holder).release()
    machines.pass_time(0.9)
    assert shown[0] >= 2
    assert not behind.done
    third.instead.clear()
    ahead.steps.close()
    machines.due.clear()
    behind.steps.close()
    machines.waiting.clear()


@pytest.mark.parametrize("step", ["open_new", "open_directory", "rename"])
def test_a_directory_that_takes_no_turns_harms_only_the_order(step: str, machines: Machines) -> None:
    """MT1."""
    first, second = machines.machine(1), machines.machine(2)
    holder = machines.contend(first)
    second.before[step] = failing(errno.EIO)
    waiting = machines.contend(second)
    machines.pass_time(8)
    assert not waiting.done
    held(holder).release()
    machines.pass_time(5, until=lambda: waiting.done)
    second.before.clear()
    held(waiting).release()


def test_an_interrupted_waiter_leaves_no_turn(machines: Machines) -> None:
    """MT6: at every step, the beats included."""
    first = machines.machine(1)
    holder = machines.contend(first)
    for at in range(400):
        env = machines.machine(2)

        def interrupt(number: int, _name: str, at: int = at, env: Stepped = env) -> None:
            if number == at:
                env.at_step = None
                raise KeyboardInterrupt

        env.at_step = interrupt
        operations = env.real.operations
        operation = operations.begin(env)
        with contextlib.suppress(KeyboardInterrupt):
            machines.contend(env)
            machines.pass_time(0.5)
            machines.clock.now += turns._BEAT_EVERY
            machines.pass_time(0.5)
            machines.waiting[-1].steps.close()
        done, env.at_step = env.at_step is not None, None
        for one in env.contenders:
            one.steps.close()
        machines.waiting.clear()
        operations.abort(operation)
        assert machines.turns() == [], f"step {at}"
        if done:
            break
    else:
        raise AssertionError("it makes ever more steps")
    held(holder).release()
    assert nothing_left(machines)


def test_the_names_of_turns_sort_by_number_and_are_known() -> None:
    names = [turn_name(number, "0123456789abcdef", beat) for number in (1, 9, 10, 11) for beat in (0, 7)]
    assert names == sorted(names)
    assert all(is_turn(name) for name in names)
    assert [turn_number(name) for name in names] == [1, 1, 9, 9, 10, 10, 11, 11]
    for name in ("turn-", "turn-1-a-1", names[0] + "x", names[0].replace("-0", "-x", 1), names[0].upper()):
        assert not is_turn(name)


def test_a_local_filesystem_has_no_turns(environments: Callable[..., Stepped], machines: Machines) -> None:
    """Nor have readers, which do not wait for each other, and contenders that do not wait."""
    shared, local = machines.machine(1), environments()
    entries = []
    for env, timeout, options in (
        (shared, None, {}),
        (local, None, {}),
        (shared, None, {"shared": True, "protocol": "flock"}),
        (shared, 0, {}),
    ):
        request = FileRequest(machines.path, options)
        entries.append(type(AcquireAttempt(env, (request,), timeout, ())._entry))
    assert entries == [EntryWithTurn, QueueEntry, QueueEntry, QueueEntry]
