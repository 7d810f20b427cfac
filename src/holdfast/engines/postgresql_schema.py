"""What a database needs before it can store locks: one schema with one table."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from .._core.environment import Environment, Wait
    from ..model import Status


def ddl(schema: str = "holdfast") -> str:
    """The SQL that `init` runs, for whoever wants to read it or apply it by other means. ValueError for a bad name."""
    raise NotImplementedError


def init(url: str, schema: str | None = None) -> str:
    """Make what locks need in the database at `url`, if it is not there yet; the name of the schema.

    `url` is that of any lock there, or without the name after #. `schema` overrides the URL's `schema=` (holdfast).
    Idempotent, and changes nothing that is there. Blocks until the server has answered. Raises InvalidPath for a bad
    URL, EngineUnavailable where the server cannot be reached, HoldfastError where it refuses, with what to grant.
    """
    raise NotImplementedError


def survey(env: Environment, url: str) -> Generator[Wait, None, tuple[Status, ...]]:
    """All locks at `url` whose names begin with what stands after # (nothing: all) and that somebody holds or waits for.

    Sorted by path, which is the lock's URL without a password. Raises as `init`. Also `ENGINE.survey`.
    """
    raise NotImplementedError
