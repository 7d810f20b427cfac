"""Who waits: those who queue, in order, and those who only watch the lock file. For people; nothing relies on it."""

from __future__ import annotations

from ..errors import MalformedRecord
from ..model import Waiter
from ..protocols import get
from . import tickets
from .environment import Environment
from .files import let_go
from .observe import Observation, read_record
from .request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..model import Status
    from .queue import Line
    from .tickets import Queue

    Arrival = tuple[float, Waiter]


def waiters(env: Environment, request: Request, seen: Observation | None, status: Status) -> tuple[Waiter, ...]:
    """Everybody who can be seen to wait, those whom the status knows already among them. Changes nothing."""
    queue = sorted([*_in_tickets(env, request), *_in_line(env, request)], key=lambda arrival: arrival[0])
    found = [waiter.replaced(position=position) for position, (_, waiter) in enumerate(queue, 1)]
    known = {waiter.pid for waiter in found}
    found += [waiter for waiter in status.waiters if waiter.pid not in known]
    if seen is not None:
        # A holder may watch its own lock file, in order to be told of its loss.
        seen_already = (*status.waiters, *status.holders, status.holder)
        known.update(who.pid for who in seen_already if who is not None and who.pid is not None)
        others = [pid for pid in env.watchers(seen.identity) if pid not in known]
        if others:  # the keeper of a shell's lock is no holder by the record, but has its guard
            keepers = {owner.pid for owner in env.lock_owners(seen.identity) if not owner.waiting}
            others = [pid for pid in others if pid not in keepers]
        found += [Waiter(None, pid, None, None, env.command(pid)) for pid in others]
    return tuple(found)


def _in_tickets(env: Environment, request: Request) -> list[Arrival]:
    """Those of other processes: the first of each."""
    line: Line | None = env.lines.get(request.queue)
    mine = set() if line is None else {place.name for place in line.places.copy()}
    return [(tickets.arrival(name), waiter) for name, waiter in read_tickets(env, request.queue) if name not in mine]


def read_tickets(env: Environment, path: str) -> list[tuple[str, Waiter]]:
    """The tickets in the queue at the path, by arrival, and who has them; without those that wait no more."""
    queue = tickets.opened(env, path)
    if queue is None:
        return []
    with queue:
        read = [(name, read_ticket(env, queue, name)) for name in queue.names()]
    return [(name, waiter) for name, waiter in read if waiter is not None]


def read_ticket(env: Environment, queue: Queue, name: str) -> Waiter | None:
    """Who has the ticket; None for one that waits no more."""
    try:
        fd = queue.open(name)
    except OSError:
        return None
    try:
        state, _, record = read_record(env, fd).partition(b"\n")
        if state + b"\n" != tickets.WAITING or not env.guarded(fd):
            return None  # it holds the lock; or it is dead
        decoded = get("sema").decode(record)
    except (OSError, MalformedRecord):
        return None
    finally:
        let_go(env, fd)
    if decoded.pid is None or decoded.marker is None:
        return None
    there, here = decoded.marker.identity, env.identity()
    local = (there.boot, there.pid_namespace) == (here.boot, here.pid_namespace)
    command = env.command(decoded.pid) if local else None  # elsewhere the number means another process
    return Waiter(None, decoded.pid, decoded.created, decoded.tag, command)


def _in_line(env: Environment, request: Request) -> list[Arrival]:
    """Those of this process."""
    line: Line | None = env.lines.get(request.queue)
    if line is None:
        return []
    ago = env.time() - env.monotonic()
    pid = env.identity().pid
    command = env.command(pid)
    return [
        (place.started - env.clock_shift, Waiter(None, pid, ago + place.started, place.tag, command))
        for place in line.places.copy()
        if not place.holding
    ]
