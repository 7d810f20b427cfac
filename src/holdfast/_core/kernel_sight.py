"""A lock of the kernel alone, as one contender sees it while it waits. See kernel.py for what such a lock is.

F6  One descriptor serves for the whole wait, and becomes the hold's: opening and closing the file anew would wake
    everybody who waits for it, ourselves first. If the path names another file by now, we start over with that one.
F7  Whose turn it is tries in earnest. A look that only wants to know takes the guard for an instant, if it is free: in
    that instant it refuses somebody else. So one who waits behind others looks rarely, and asks whether *nobody* has
    the lock: readers inside are not a lock that those ahead have let lie.
F8  A release makes no event; closing does, and most do both. So the watch also heeds descriptors that could only read,
    and there is a look every `Protocol.recheck` seconds for those who unlock and keep the file open.
    A record of another protocol is not free for us, as its holder would not heed the guard: who acquires is told so
    (ProtocolMismatch), hence who waits as well, and a status says that it is held.
F9  A reader goes behind the writers who wait, except one whose own thread or task is inside as a reader already: they
    would wait for each other. And who is inside as a reader cannot become the writer: it would wait for itself.
"""

from __future__ import annotations

from ..errors import WouldDeadlock
from ..model import Evidence, Holder, Liveness, Record, Status, Waiter
from .environment import Environment, LockOwner, Presence, Watch
from .hold import Held
from .kernel import open_existing, read_own, require_no_other, settle, take, try_guard
from .liveness import Assessment
from .observe import Observation, forget, other_protocol, read_record, require_regular
from .policy import Verdict
from .request import Request
from .sight import Sight

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from .environment import Wait

_HELD = Evidence("guard", "the kernel lock on its file is held", proven=True)
_FREE = Evidence("guard", "nobody has the kernel lock on its file", proven=True)
_UNTRIED = Evidence("none", "somebody who wants it alone waits for it, and comes first")
_NO_VERDICT = Verdict(False, False, "")
_LOOKS = 3
"""How often a lock whose holder is not seen is tried again, before it is said that one cannot see who holds it."""


class KernelSight(Sight):
    """One lock file of the protocol `flock`."""

    def __init__(self, env: Environment, request: Request) -> None:
        super().__init__(env, request)
        self._refused: bool | None = None
        """Whether others had the guard when it was tried last, since the last look; None: not tried."""

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(self, *, strict: bool = True) -> bool:  # noqa: ARG002
        """Look what the path names; False when nothing is there. Who has the guard is found out by trying (F7)."""
        self.missed, self._refused = False, None
        self.there = self._observe()
        if self.there:
            assert self._seen is not None
            self.seen = self._seen
            self.assessed = Assessment(Liveness.ALIVE, _HELD)
            self.verdict = _NO_VERDICT
        return self.there

    def _observe(self) -> bool:
        env, request = self.env, self.request
        previous = self._seen
        if previous is not None:
            there = self._identity()
            if there is None or there == previous.identity:
                return there is not None
            forget(env, previous)  # F6
            self._seen = None
        fd = open_existing(env, request)
        if fd is None:
            return False
        try:
            found = env.fstat(fd)
            require_regular(found, request)
            self._seen = Observation(found, fd)
        except BaseException:
            env.close(fd)
            raise
        self._disarm()
        return True

    @property
    def could_be_had(self) -> bool:
        return not self.there or not self._refused

    def is_free(self) -> bool:
        if not self.there:
            return True
        free = self._probe(shared=self.request.shared)
        if free:
            head, record = read_own(self.env, self.request, self.seen.fd)
            if record is None:
                require_no_other(self.env, self.request, self.seen.fd, head)  # F7
        return free

    def lies_free(self) -> bool:
        return not self.there or self._probe(shared=False)

    def _probe(self, *, shared: bool) -> bool:
        """F7."""
        fd = self.seen.fd
        free = try_guard(self.env, self.request, fd, shared=shared)
        if free:
            self.env.unguard(fd)
        if shared == self.request.shared:
            self._note(refused=not free)
        return free

    def _note(self, *, refused: bool) -> None:
        self._refused = refused
        if refused:
            self.seen.record = read_own(self.env, self.request, self.seen.fd)[1]

    # -- our own holds -------------------------------------------------------------------------------------------------

    def _our_own(self) -> list[Held]:
        if not self.there:
            return []
        return [held for held in list(self.env.holds.values()) if held.identity == self.seen.identity]

    def _joinable(self, held: Held) -> bool:
        return self.request.shared or not held.request.shared

    def _in_the_way(self, held: Held) -> bool:
        return not (self.request.shared and held.request.shared)

    def is_inside(self, context: tuple[object, ...]) -> bool:
        """F9."""
        return self.request.shared and any(
            share.context[: len(context)] == context
            for held in self._our_own()
            if held.request.shared and not held.released
            for share in list(held.shares)
        )

    def deadlock(self, slots: int) -> WouldDeadlock:
        if not any(held.request.shared for held in self._our_own()):
            return super().deadlock(slots)
        return WouldDeadlock(
            f"{self.request.path} is held shared by this very thread or task, which would wait for itself for ever: a "
            "shared hold cannot become exclusive. Release it first, or pass a timeout.",
            path=self.request.path,
            protocol=self.request.protocol.name,
        )

    # -- trying --------------------------------------------------------------------------------------------------------

    def attempt(self) -> Generator[Wait, None, Held | None]:
        """Try in earnest: one step, so nothing is waited for."""
        yield from ()
        if not self.there:
            held = take(self.env, self.request)
        else:
            seen = self.seen
            free = try_guard(self.env, self.request, seen.fd)
            self._note(refused=not free)
            if not free:
                return None
            held = settle(self.env, self.request, seen.fd)
            if held is None:
                forget(self.env, seen)
            seen.fd, self._seen = -1, None
        self.missed = held is None
        return held

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _subscribe(self) -> Watch | None:
        return self.env.watch(self.request.path, readers=True)  # F8

    # -- describing ----------------------------------------------------------------------------------------------------

    def describe(self) -> Status:
        env, request = self.env, self.request
        if not self.there:
            return super().describe()
        owners: list[LockOwner] = []
        for looks in range(_LOOKS):
            if self.seen.fd >= 0 and (self._refused is None or looks):
                self._probe(shared=self.request.shared)
            owners = env.lock_owners(self.seen.identity)
            if not self._refused or self.seen.fd < 0 or _holding(owners):
                break  # else nobody is seen: it may have been released in between
        if self._refused is False and (mismatched := self._mismatched()) is not None:
            return mismatched
        record = self._believed(_holding(owners)) if self._refused else None
        holders = tuple(self._holder(owner, record) for owner in _holding(owners))
        first = next((holder for holder in holders if holder.pid is not None), Holder() if self._refused else None)
        return Status(
            path=request.path,
            protocol=request.protocol.name,
            locked=self._refused is not False,
            stale=False,
            liveness=Liveness.ALIVE if self._refused or holders else Liveness.UNKNOWN,
            evidence=_UNTRIED if self._refused is None else _HELD if self._refused or holders else _FREE,
            holder=first,
            record=record,
            reason=self._reason(holders),
            age=None if record is None or record.since is None else max(0.0, env.time() - record.since),
            waiters=tuple(
                Waiter(None, owner.pid, None, None, env.command(owner.pid))
                for owner in owners
                if owner.waiting and owner.pid is not None
            ),
            holders=holders,
        )

    def _mismatched(self) -> Status | None:
        """What is to be said of another protocol's record (F7)."""
        data = read_record(self.env, self.seen.fd)
        other = other_protocol(self.request, data, None)
        if other is None:
            return None
        text = f"its content is a record of the {other} protocol, whose holder would not heed the kernel lock"
        return Status(
            self.request.path, self.request.protocol.name, True, False, Liveness.UNKNOWN, Evidence("none", text),
            Holder(), reason=text, modified=self.env.fstat(self.seen.fd).st_mtime, data=data,
        )  # fmt: skip

    def _reason(self, holders: tuple[Holder, ...]) -> str:
        if self._refused is None:
            return _UNTRIED.text
        if self._refused:
            return "its holder is alive"
        return "only readers hold it, and one more may" if holders else "nobody holds it"

    def _holder(self, owner: LockOwner, record: Record | None) -> Holder:
        command = None if owner.pid is None else self.env.command(owner.pid)
        if record is None or record.pid != owner.pid:
            return Holder(owner.pid, command=command, shared=not owner.exclusive)
        return Holder(owner.pid, record.host, record.since, record.tag, command)

    def _believed(self, owners: list[LockOwner]) -> Record | None:
        """The record in the file, if it is the holder's and not left by another (kernel.py, F5)."""
        record = self.seen.record
        if record is None or record.pid is None or record.marker is None:
            return None
        env, there = self.env, record.marker.identity
        here = env.identity()
        local = (there.boot, there.pid_namespace) == (here.boot, here.pid_namespace) and "-" not in (
            there.boot,
            there.pid_namespace,
            there.started,
        )
        if not local or not owners or any(owner.pid != record.pid or not owner.exclusive for owner in owners):
            return None
        found = env.inspect(record.pid)
        return record if (found.presence, found.started) == (Presence.RUNNING, there.started) else None


def _holding(owners: list[LockOwner]) -> list[LockOwner]:
    return [owner for owner in owners if not owner.waiting]
