"""What a scenario is: a name, one sentence why, and a function that fails by saying what was expected and what was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .bench import Bench

Basis = Literal["letter", "care"]
"""Whether the specification says so, or experience: without that care locks are lost, stolen or waited for in vain."""


class Failed(Exception):
    """The implementation did something else than it should."""

    def __init__(self, expected: str, happened: str, found: bytes | None = None) -> None:
        super().__init__(f"expected {expected}; {happened}")
        self.expected = expected
        self.happened = happened
        self.found = found
        """What was in the lock file; None where there was none, or where it does not matter."""


class Skipped(Exception):
    """This machine cannot set the scene."""


@dataclass(frozen=True)
class Scenario:
    name: str
    why: str
    protocols: frozenset[str]
    needs: frozenset[str]
    """Abilities without which it is left out."""
    basis: Basis
    run: Callable[[Bench], None]
    waits: bool = False
    """Whether it takes seconds in which nothing happens: those are begun first, and the others run meanwhile."""


SCENARIOS: list[Scenario] = []


def scenario(
    *protocols: str, needs: str = "try", basis: Basis = "letter", waits: bool = False
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Make a scenario of a function: its name is the name, its docstring is the sentence."""

    def add(function: Callable[[Bench], None]) -> Callable[[Bench], None]:
        why = " ".join((function.__doc__ or "").split())
        name = function.__name__.replace("_", "-")
        SCENARIOS.append(Scenario(name, why, frozenset(protocols), frozenset(needs.split()), basis, function, waits))
        return function

    return add
