"""Every interleaving of a workload, one after the other, none of them twice.

Depth first, and each run from its beginning: a run cannot be copied, but it can be repeated, as nothing in it depends
on anything but the choices. Two ways to keep the number down:

- *Sleep sets* (Godefroid): when a step has been explored at some point, its siblings need not take it again until
  something is done that does not commute with it. Of all interleavings that differ only in the order of steps which
  commute, exactly one is run to its end; so nothing is missed. Runs that turn out to repeat one so are cut short.
- A *bound of preemptions*: only so many times is an actor interrupted that could go on. It misses what needs more, and
  finds most of what goes wrong early. Then there are no sleep sets: the two do not go together.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from .footprint import Footprint, commute
from .world import ALL, EXPIRE, KERNEL, KIND, World

if TYPE_CHECKING:
    from .world import Option


class Repetition(Exception):
    """The rest of this run would only be another order of one that has been run."""


class _Node:
    """One point of the current run: what may be chosen here, and which of it is being explored."""

    __slots__ = ("at", "cost", "interrupts", "options", "sleep")

    def __init__(self, options: list[Option], sleep: dict[int, Footprint], cost: int, *, interrupts: bool) -> None:
        self.options = options
        self.at = 0
        self.sleep = sleep
        self.cost = cost
        """Preemptions before this point."""
        self.interrupts = interrupts
        """Whether all but the first option interrupt somebody who could go on."""


class Search:
    """Chooses for one run after the other; `advance` says whether there is another one."""

    def __init__(self, *, preemptions: int | None = None, seed: int | None = None) -> None:
        self._bound = preemptions
        self._rng = None if seed is None else random.Random(seed)
        self._nodes: list[_Node] = []
        self._prefix: list[int] = []
        self._at = 0

    @property
    def schedule(self) -> list[int]:
        """Of the run that is going on, or has just ended."""
        return [node.options[node.at][0] for node in self._nodes[: self._at]]

    def choose(self, world: World) -> int | None:
        at = self._at
        self._at = at + 1
        if at < len(self._prefix):
            return self._prefix[at]
        options = world.options()
        if not options:
            self._at = at
            return None
        node = self._sleepless(options) if self._bound is None else self._bounded(world, options)
        self._nodes.append(node)
        return node.options[node.at][0]

    def _sleepless(self, options: list[Option]) -> _Node:
        """A new point, without what would only repeat."""
        sleep: dict[int, Footprint] = {}
        if self._nodes:
            before = self._nodes[-1]
            key, touched = before.options[before.at]
            if touched is not ALL:
                same = key % KIND if key < KERNEL else -1
                for other, footprint in (*before.sleep.items(), *before.options[: before.at]):
                    own = other % KIND == same and other < KERNEL  # what one actor may do next does not commute
                    if footprint is not ALL and not own and commute(footprint, touched):
                        sleep[other] = footprint
        if sleep:
            options = [option for option in options if sleep.get(option[0]) != option[1]]
            if not options:
                self._at -= 1
                raise Repetition
        if self._rng is not None and len(options) > 1:
            self._rng.shuffle(options)
        return _Node(options, sleep, 0, interrupts=False)

    def _bounded(self, world: World, options: list[Option]) -> _Node:
        cost = 0
        if self._nodes:
            before = self._nodes[-1]
            switched = before.interrupts and before.at > 0 and before.options[before.at][0] < EXPIRE
            cost = before.cost + switched
        interrupts = world.last is not None and options[0][0] == world.last.index
        assert self._bound is not None
        if cost >= self._bound and interrupts:
            options = [option for option in options if option is options[0] or option[0] >= EXPIRE]
        return _Node(options, {}, cost, interrupts=interrupts)

    def advance(self) -> bool:
        """Go on to the next run; False when all have been."""
        nodes = self._nodes
        del nodes[self._at :]
        self._at = 0
        while nodes:
            node = nodes[-1]
            node.at += 1
            if node.at < len(node.options):
                self._prefix = [node.options[node.at][0] for node in nodes]
                return True
            nodes.pop()
        return False
