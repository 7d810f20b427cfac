"""The search itself: it runs every interleaving that differs from the others, and no other."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest

from sim.kernel import Kernel
from sim.search import Replay, Search, read, search, written
from sim.workloads import WORKLOADS, Workload
from sim.world import Actor, Violation, World

Program = Callable[[Actor], None]


@pytest.fixture
def toy() -> Callable[..., Workload]:
    """A workload of these programs, each a process; it is removed afterwards."""

    def make(*programs: Program, ends: list[str] | None = None, crashes: int = 0) -> Workload:
        def build(world: World) -> None:
            said: list[str] = []
            world.said = said  # type: ignore[attr-defined]
            for number, program in enumerate(programs):
                world.actor(world.process("ABC"[number], 101 + number), program)
            if ends is not None:
                world.checkers = [_Ends(said, ends)]

        workload = Workload("toy", build, crashes=crashes)
        del WORKLOADS["toy"]
        return workload

    return make


class _Ends:
    """Records how each run has ended."""

    def __init__(self, said: list[str], ends: list[str]) -> None:
        self._said, self._ends = said, ends

    def at_end(self, _world: World) -> None:
        self._ends.append("".join(self._said))

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args, **_named: None


def steps(count: int, kind: str, *, own: bool = False) -> Program:
    """Several steps that read or write one thing: shared by all, or the process's own."""

    def program(me: Actor) -> None:
        mark = me.process.mark if own else me.world.kernel.critical
        for _ in range(count):
            me.step("toy", None, getattr(mark, kind))
            me.world.said.append(me.name)  # type: ignore[attr-defined]

    return program


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_interleaving_of_steps_that_do_not_commute_is_run(count: int, toy: Callable[..., Workload]) -> None:
    ends: list[str] = []
    outcome = search(toy(steps(count, "w"), steps(count, "w"), ends=ends))
    assert outcome.complete
    assert outcome.runs == len(set(ends)) == len(ends) == math.comb(2 * count, count)


@pytest.mark.parametrize(("kind", "own"), [("r", False), ("i", False), ("w", True)])
def test_orders_that_make_no_difference_are_not_run(kind: str, own: bool, toy: Callable[..., Workload]) -> None:
    """Reads of one thing, additions to one directory, writes to different things."""
    outcome = search(toy(steps(3, kind, own=own), steps(3, kind, own=own)))
    assert (outcome.runs, outcome.complete) == (1, True)


def test_a_bound_of_preemptions_is_kept(toy: Callable[..., Workload]) -> None:
    ends: list[str] = []
    search(toy(steps(4, "w"), steps(4, "w"), ends=ends), preemptions=1)
    assert len(ends) == len(set(ends))
    for end in ends:
        switches = sum(one != other for one, other in pairwise(end))
        assert switches <= 2, end  # one preemption is at a process's end
    assert "AABBBBAA" in ends
    assert "BBAAAABB" in ends


def test_a_kill_is_tried_at_every_step(toy: Callable[..., Workload]) -> None:
    ends: list[str] = []
    assert search(toy(steps(3, "w"), crashes=1, ends=ends)).complete
    assert sorted(ends) == ["", "A", "AA", "AAA"]


def test_sleep_sets_lose_no_outcome_that_two_preemptions_reach() -> None:
    """Compares the outcomes of a full search with those of one bounded by preemptions."""

    def ends(chooser: Search) -> set[tuple[object, ...]]:
        found = set()
        while True:
            world = workload.world()
            order = _Order()
            world.checkers.append(order)  # type: ignore[arg-type]
            try:
                world.run(chooser)
                found.add((*order.entered, *sorted(order.refusals)))
            except Exception as error:
                assert type(error).__name__ == "Repetition"  # noqa: PT017
            if not chooser.advance():
                return found

    workload = Workload("toy", WORKLOADS["two-try"].build)
    del WORKLOADS["toy"]
    assert ends(Search(preemptions=2)) <= ends(Search())


class _Order:
    """Records who enters, in order, and who is refused; whether a refusal precedes an entry makes no difference."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.refusals: list[str] = []

    def enters(self, _world: World, who: Actor) -> None:
        self.entered.append(f"{who.name} enters")

    def refused(self, _world: World, who: Actor, _timeout: object, *, allowed: bool) -> None:
        self.refusals.append(f"{who.name} is refused")

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args, **_named: None


def test_a_schedule_is_read_as_it_was_written() -> None:
    schedule = [0, 0, 0, 1, 20001, 0, 50000, 50000]
    assert read(written(schedule)) == schedule
    assert written(schedule) == "0x3 1 20001 0 50000x2"


def test_a_killed_process_does_nothing_more(toy: Callable[..., Workload]) -> None:
    """None of its clean-up runs; its descriptors are closed, and its lock is gone."""
    kernel = Kernel()
    world = World(kernel)
    world.crashes = 1
    process = world.process("A", 101)

    def program(me: Actor) -> None:
        fd = me.process.open_new("/d/l", 0o644)
        me.process.guard(fd)
        try:
            me.step("inside", None, kernel.critical.w)
        finally:
            me.process.unlink("/d/l")

    world.actor(process, program)
    world.run(Replay([0, 0, 20000]))
    assert "/d/l" in kernel.names
    assert not any(kernel.names["/d/l"].locks.values())
    assert process.dead
    with pytest.raises(Violation, match="sleep for ever"):
        search_for_ever(toy)


def search_for_ever(toy: Callable[..., Workload]) -> None:
    from holdfast._core.wait import Wait

    toy(lambda me: me.pause(Wait((), math.inf))).world().run(Replay([]))
