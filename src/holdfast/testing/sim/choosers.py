"""Who decides: by the default, by a schedule that was written down, by a seed, or by a search (search.py).

A schedule is the list of keys that were chosen; in text, runs of one key are counted: `0x12 20001 1x3`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from .world import CRASH, EXPIRE, IDLE, KERNEL, LOSE, World

if TYPE_CHECKING:
    from collections.abc import Sequence


class Diverged(Exception):
    """A schedule asks for something that is not possible here: the code has changed since it was written down."""


class First:
    """The actor that went last goes on as long as it can; then the next one. Nobody is killed."""

    def choose(self, world: World) -> int | None:
        for key, _ in world.options():
            if not CRASH <= key < KERNEL and not EXPIRE <= key < CRASH and not LOSE <= key < IDLE:
                return key
        return None


class Replay:
    """As a schedule says, and then by the default."""

    def __init__(self, schedule: Sequence[int]) -> None:
        self._schedule = schedule
        self._at = 0
        self._then = First()

    def choose(self, world: World) -> int | None:
        if self._at == len(self._schedule):
            return self._then.choose(world)
        key = self._schedule[self._at]
        if all(key != option for option, _ in world.options()):
            raise Diverged(f"step {self._at}: {key} is none of {[option for option, _ in world.options()]}")
        self._at += 1
        return key


class Random:
    """By a seed. Actors go on for a while before another's turn comes; rarely, one is killed, or time jumps."""

    def __init__(self, seed: int) -> None:
        self.schedule: list[int] = []
        rng = random.Random(seed)
        self._random = rng.random
        self._stay = rng.choice((0.0, 0.5, 0.8, 0.95))
        self._rare = rng.choice((0.01, 0.03, 0.1))

    def choose(self, world: World) -> int | None:
        options = world.options()
        if not options:
            return None
        key = options[0][0] if len(options) == 1 else self._pick(world, [key for key, _ in options])
        self.schedule.append(key)
        return key

    def _pick(self, world: World, keys: list[int]) -> int:
        rnd = self._random
        rare = [key for key in keys if EXPIRE <= key < KERNEL or LOSE <= key < IDLE]
        usual = [key for key in keys if not (EXPIRE <= key < KERNEL or LOSE <= key < IDLE)]
        if rare and rnd() < self._rare:
            return rare[int(rnd() * len(rare))]
        if world.last is not None and usual[0] == world.last.index and rnd() < self._stay:
            return usual[0]
        return usual[int(rnd() * len(usual))]


def written(schedule: Sequence[int]) -> str:
    """A schedule as text."""
    words: list[str] = []
    at = 0
    while at < len(schedule):
        end = at
        while end < len(schedule) and schedule[end] == schedule[at]:
            end += 1
        words.append(f"{schedule[at]}x{end - at}" if end - at > 1 else str(schedule[at]))
        at = end
    return " ".join(words)


def read(text: str) -> list[int]:
    """The schedule that `written` has written."""
    schedule: list[int] = []
    for word in text.split():
        key, _, count = word.partition("x")
        schedule += [int(key)] * int(count or 1)
    return schedule
