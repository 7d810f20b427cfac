"""Directories that stay what they were when they were entered.

Between the look at a directory and the removal of what was found in it, others may exchange it, or one above it, for a
link to somewhere else. What is entered here is opened, from the top down and never through a link, and from then on
each step on it, or on what is in it, goes by that descriptor, whatever its path leads to by then (clean.py, M13).
"""

from __future__ import annotations

from .._platform.interface import Surroundings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FIRST = (
    *("open_unnamed", "open_directory", "open_new", "open_existing", "unlink", "stat", "sync_directory", "exists"),
    *("make_directory", "make_directories", "remove_directory", "list_directory", "scan"),
    *("watch", "may_block", "poll_limit", "events_reach"),
)
_PATHS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(_FIRST, (0,)),
    "link": (0, 1),
    "link_unnamed": (1,),
    "claim": (1,),
}
"""Which arguments of a step are paths."""


class Anchored:
    """An environment for which the paths of the directories that were entered lead to those very directories.

    Where the system has no such ways (`Surroundings.way_to`), it is the environment itself.
    """

    def __init__(self, env: Surroundings) -> None:
        self._env = env
        self._fds: dict[str, int] = {}
        self._ways: dict[str, str] = {}

    def enter(self, top: str, where: str) -> None:
        """Open `where`, which is `top` or below it. OSError where that is not possible, or there is a link by now."""
        if where in self._fds:
            return
        env = self._env
        fd = env.open_directory(f"{top}/.")  # whoever named it may have named a link
        try:
            for name in filter(None, where.removeprefix(top).split("/")):
                way = env.way_to(fd)
                if way is None:
                    break
                above, fd = fd, env.open_directory(f"{way}/{name}")
                env.close(above)
            way = env.way_to(fd)
            if way is not None:
                self._fds[where], self._ways[where] = fd, way
                fd = -1
        finally:
            if fd >= 0:
                env.close(fd)

    def leave(self, *kept: str) -> None:
        """Close all directories but these."""
        for where in [where for where in self._fds if where not in kept]:
            del self._ways[where]
            self._env.close(self._fds.pop(where))

    def _by_descriptor(self, path: str) -> str:
        if path in self._ways:
            return f"{self._ways[path]}/."
        where, _, name = path.rpartition("/")
        way = self._ways.get(where or "/")
        return path if way is None else f"{way}/{name}"

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._env, name)
        places = _PATHS.get(name)
        if places is None:
            return value

        def step(*given: Any, **options: Any) -> Any:
            if not self._ways or options.get("dir_fd") is not None:
                return value(*given, **options)
            led = list(given)
            for place in places:
                if isinstance(given[place], str):
                    led[place] = self._by_descriptor(given[place])
            try:
                return value(*led, **options)
            except OSError as error:
                told = dict(zip(led, given, strict=True))
                error.filename = told.get(error.filename, error.filename)
                if error.filename2 is not None:
                    error.filename2 = told.get(error.filename2, error.filename2)
                raise

        return step
