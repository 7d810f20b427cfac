"""Protocols and engines that installed packages add to holdfast by entry points."""

from __future__ import annotations

from .errors import HoldfastError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.metadata import EntryPoint
    from typing import TypeVar

    T = TypeVar("T")


def names(group: str) -> set[str]:
    """The names of the installed entry points of a group. Loads nothing."""
    return {entry.name for entry in _entries(group)}


def find(group: str, kind: type[T], name: str, instead: str = "", wrong: Callable[[T], str] = lambda _: "") -> T | None:
    """The protocol or engine of that name from an installed package: an instance of `kind`, made if the package has a
    subclass; None if no package has it.

    HoldfastError if it is broken, with the cause chained, or if `wrong` finds fault with it. The message says what to
    do; `instead` adds an alternative.
    """
    for entry in _entries(group):
        if entry.name == name:
            what = f"the {kind.__name__.lower()} {name!r} of an installed package (entry point {name} = {entry.value})"
            made = _load(entry, kind, what, instead)
            if text := wrong(made):
                raise HoldfastError(f"{what} {text}", protocol=name)
            return made
    return None


def _entries(group: str) -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points

    return entry_points(group=group)


def _load(entry: EntryPoint, kind: type[T], what: str, instead: str) -> T:
    try:
        found = entry.load()
        made = found() if isinstance(found, type) and issubclass(found, kind) else found
    except Exception as error:
        raise HoldfastError(
            f"{what} cannot be loaded: {type(error).__name__}: {error}. Repair or remove that package{instead}",
            protocol=entry.name,
        ) from error
    if not isinstance(made, kind):
        raise HoldfastError(f"{what} is not a {entry.group}.{kind.__name__}, but {made!r}", protocol=entry.name)
    return made
