"""The engine on files, which `_core` is, in the form that all engines have."""

from __future__ import annotations

from .._core.acquire import acquire, look_at_all, wait_until_free
from .._core.remove import break_lock
from .._core.request import Request, slots_of
from .base import Engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Sequence

    from .._core.environment import Environment, Wait
    from .._core.hold import Share
    from .._core.refusal import Refusal
    from .._core.request import Options
    from ..model import Record, Status


class Files(Engine):
    """The default."""

    name = "file"
    is_remote = False

    def request(self, resource: str | os.PathLike[str], options: Options) -> Request:
        return Request(resource, options)

    def slots(self, resource: str | os.PathLike[str], slots: int, options: Options) -> tuple[Request, ...]:
        return slots_of(resource, slots, options)

    def acquire(
        self, env: Environment, requests: Sequence[Request], timeout: float | None, context: tuple[object, ...]
    ) -> Generator[Wait, None, Share | Refusal]:
        return acquire(env, requests, timeout, context)

    def wait_until_free(
        self, env: Environment, requests: Sequence[Request], timeout: float | None, context: tuple[object, ...]
    ) -> Generator[Wait, None, Refusal | None]:
        return wait_until_free(env, requests, timeout, context)

    def look(self, env: Environment, requests: Sequence[Request]) -> Generator[Wait, None, tuple[Status, ...]]:
        yield from ()
        return look_at_all(env, requests)

    def break_lock(self, env: Environment, request: Request) -> Generator[Wait, None, Record | None]:
        return break_lock(env, request)

    def may_block(self, env: Environment, request: Request) -> bool:
        return request.durable or request.fencing or env.may_block(request.path)


FILES = Files()
