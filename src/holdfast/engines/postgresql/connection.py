"""One connection to a server, as generators: libpq in non-blocking mode, through psycopg's `pq`.

PS1  libpq is called by one thread at a time: by the connection's maker, then by the agent's thread, once a hold has
     given it to that (`keeper`), and then by the thread that has taken it back (`take`). The agent checks under the
     `mutex`, at each step, whether the hold that it steps for is still the keeper.
PS2  If anything but its answer ends a statement, the connection ends: only then is it known that the statement grants
     us nothing. The server is also sent a cancel request, by the agent, so that it notices at once and not within a
     second.
PS3  A child that is forked closes its copies of the sockets, and says nothing on them. The set of these changes under
     the mutex that keeps forks away, as libpq opens and closes them.
PS4  Nothing blocks: host names are looked up in threads (connect.py), and libpq is given addresses.
PS5  Frequent statements are prepared in the session. A session that has forgotten them was reset from outside, and with
     them the settings of PC5 and any lock: it is given up, as if it had ended. The name of a prepared statement is made
     of its text, so it cannot mean anything else in any session.
PS6  A statement that somebody cancels is sent again, where that does no harm: a look, a token, or the attempt to get a
     lock, once any lock that it may have got is given back. A cancelled statement may have done its work: its effect on
     the session's locks stays. A statement that is cancelled while it waits for a synchronous standby has succeeded for
     the server, which only warns. For us it was cancelled: the standby, perhaps the primary by now, does not have its
     token.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

from psycopg import Error, pq

from ..._core.wait import Steps, Wait
from ..._drivers.agent import agent
from ..._platform.fork import forking, in_child
from ..._platform.interface import Environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from psycopg.pq.abc import PGcancelConn, PGconn, PGresult

Row = tuple[str | None, ...]

_CANCEL_WITHIN = 5.0
_PREPARE_AFTER = 2
"""Number of times that a session is asked a statement before it is prepared; preparing one that is asked once would
cost a round trip for nothing."""
_MOST_CANCELLED = 20
"""Number of times that a statement is cancelled before that is no coincidence."""
_FORGOTTEN, _CHANGED, _CANCELLED = "26000", "0A000", "57014"
_OK = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_open: dict[int, Callable[[], object]] = {}
"""The sockets of this process, each with its owner by a weak reference (PS3)."""


def _in_child() -> None:
    for fd, owner in list(_open.items()):  # the collector may drop one meanwhile
        if owner() is None:
            _open.pop(fd, None)
            continue
        try:
            for _ in zip(map(_open.pop, (fd,)), map(os.close, (fd,)), strict=True):
                pass  # one call of C, so that this may be begun anew
        except OSError:
            pass


def _dropped(fd: int, owner: Callable[[], object]) -> None:
    """Forget the socket of a connection that an interruption has dropped: libpq has closed it, and its number may be
    another file's soon."""
    if _open.get(fd) is owner:
        del _open[fd]


in_child(_in_child)


class Broken(Exception):
    """The connection has ended, or is of no more use; the text says why."""


class Silent(Broken):
    """The connection is open, but there is no answer."""


class Refused(Exception):
    """The server has answered a statement with an error; the connection goes on."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        """The SQLSTATE."""

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the statement (pg_cancel_backend)."""
        return self.code == _CANCELLED


class _Notices:
    """Messages that a server sends unasked. No method of the connection: a cycle would keep that, and the session with
    it, from going at once where an interruption has dropped it."""

    def __init__(self) -> None:
        self.last_word = ""
        """The server's message when it ends the session."""
        self.unconfirmed = ""
        """The warning that no standby has confirmed the statement's commit (PS6)."""

    def __call__(self, notice: PGresult) -> None:
        if (_field(notice, pq.DiagnosticField.SEVERITY_NONLOCALIZED) or "") in ("FATAL", "PANIC"):
            self.last_word = _primary(notice)
        elif _field(notice, pq.DiagnosticField.SOURCE_FUNCTION) == "SyncRepWaitForLSN":  # its SQLSTATE is any warning's
            self.unconfirmed = _primary(notice)


class Connection:
    """A connection that is open, or being opened."""

    def __init__(self, env: Environment, conninfo: str, label: str) -> None:
        self.env = env
        self.label = label
        """The name of the server for people."""
        self.address = ""
        """The address in the URL that it is for (connect.py): a name may have several, of different servers."""
        self.generation = env.generation
        self.mutex = threading.RLock()  # re-entrant: a signal handler may release in the midst of a step
        self.keeper: object = None
        """The hold for which the agent's thread uses it (PS1)."""
        self.kind: tuple[object, ...] = ()
        self.used = False
        """Whether it was kept, and may have ended since (connect.py, PC7)."""
        self.spotless = True
        """Whether the session provably has no lock, and waits for none."""
        self.busy = False
        """Whether a statement waits for its answer."""
        self.backend = 0
        """The pid of the server's process, asked of itself; a pooler reports another."""
        self.timeline = 0
        """The timeline of the server's log: one more after each promotion. It never changes within a session."""
        self.fd = -1
        self._unsent = False
        self._notices = _Notices()
        self._results: list[PGresult] = []
        self._asked: dict[str, int] = {}
        """The number of times that each statement without a name was asked."""
        self._names: dict[str, bytes | None] = {}
        """The name of each prepared statement; None for one that cannot be prepared."""
        with forking:
            self._conn: PGconn | None = pq.PGconn.connect_start(conninfo.encode())
            self._track()

    # -- the connection ------------------------------------------------------------------------------------------------

    @property
    def conn(self) -> PGconn:
        if self._conn is None or self.generation != self.env.generation:
            raise Broken("the connection was closed")
        return self._conn

    @property
    def is_open(self) -> bool:
        return self._conn is not None and self.generation == self.env.generation

    def opening(self, until: float) -> Steps[None]:
        """Connect. Broken, with libpq's words, if that fails or is not done by `until`."""
        step = pq.PollingStatus.WRITING
        while True:
            if self.conn.status == pq.ConnStatus.BAD:
                raise Broken(self._complaint())
            fds = (self.fd,)
            reading = step == pq.PollingStatus.READING
            yield Wait(fds, until, None) if reading else Wait((), until, None, fds)
            if self.env.monotonic() >= until:
                raise Broken(f"connection to {self.label} failed: no answer in time")
            with forking:
                step = pq.PollingStatus(self.conn.connect_poll())
                self._track()
            if step == pq.PollingStatus.FAILED:
                raise Broken(self._complaint())
            if step == pq.PollingStatus.OK:
                self.conn.nonblocking = 1
                self.conn.notice_handler = self._notices
                return

    @property
    def is_spare(self) -> bool:
        """Whether the next caller may have it."""
        return self.spotless and not self.busy and self.is_open and bool(self.kind)

    def close(self) -> None:
        """Close it; in a forked child, do nothing. Never waits or raises. May be interrupted and called again (J3)."""
        with forking:
            if self.is_open:
                self.conn.notice_handler = None
                self.conn.finish()
                self._untrack()
            self._conn = None

    def abandon(self) -> None:
        """Close the connection, even during a statement whose result is no longer wanted (PS2)."""
        if not (self.is_open and self.busy):
            self.close()
            return
        try:
            cancel = self.conn.cancel_conn() if hasattr(self.conn, "cancel_conn") else None
        except Exception:  # a libpq before 17 cannot do it without blocking
            cancel = None
        self.close()
        if cancel is not None:
            try:
                agent(self.env).start(_cancelling(self.env, cancel), f"cancelling a statement at {self.label}")
            except (OSError, RuntimeError):
                pass  # no thread is to be had; the server notices by itself, within a second

    def take(self) -> None:
        """Take the connection back: from now on it is the caller's alone (PS1)."""
        with self.mutex:
            self.keeper = None

    def _track(self) -> None:
        """Track the socket: libpq may have opened another one (PS3)."""
        conn = self._conn
        assert conn is not None
        try:
            fd = conn.socket
        except Error:
            fd = -1
        if fd != self.fd:
            self._untrack()
            self.fd = fd
            if fd >= 0:
                _open[fd] = weakref.ref(self, partial(_dropped, fd))

    def _untrack(self) -> None:
        owner = _open.get(self.fd)
        if owner is not None and owner() is self:  # else the number is another one's by now
            del _open[self.fd]

    def _complaint(self) -> str:
        said = self.conn.get_error_message("utf-8").strip().replace("\n\t", "\n(")  # a hint is indented
        lines = [" ".join(line.split()) for line in said.splitlines()]
        return " ".join(f"{line})" if line.startswith("(") else line for line in lines) or "libpq says nothing"

    # -- statements ----------------------------------------------------------------------------------------------------

    def ask(self, sql: str, values: Sequence[object] = (), until: float = 0.0) -> Steps[list[Row]]:
        """The rows of a statement. Refused for its error; Broken if the connection ends; Silent without an answer."""
        self.send(sql, values)
        return (yield from self.answer(until))

    def ask_often(self, sql: str, values: Sequence[object], until: float) -> Steps[list[Row]]:
        """Ask a statement that this session may be asked again: it is prepared (PS5)."""
        if sql not in self._names:
            self._asked[sql] = self._asked.get(sql, 0) + 1
            if self._asked[sql] > _PREPARE_AFTER:
                yield from self._prepare(sql, until)
        name = self._names.get(sql)
        self.send(sql, values, name)
        try:
            return (yield from self.answer(until))
        except Refused as refused:
            if name is not None and refused.code in (_FORGOTTEN, _CHANGED):
                raise Broken(f"{self.label} has reset the session, or changed the table: {refused}") from None
            raise

    def ask_plainly(self, sql: str, until: float) -> Steps[list[Row]]:
        """Ask a statement whatever isolation level is the role's default, in one round trip (PC5)."""
        self._send(lambda conn: conn.send_query(f"begin isolation level read committed; {sql}; commit".encode()))
        try:
            return (yield from self.answer(until))
        except Refused:
            yield from self.ask("rollback", (), until)
            raise

    def ask_again(self, sql: str, values: Sequence[object], until: float, *, undo: str = "") -> Steps[list[Row]]:
        """Ask a statement that does no harm twice, or none after `undo`; again if somebody cancels it (PS6)."""
        undone, left = True, _MOST_CANCELLED
        while True:
            try:
                if not undone:
                    yield from self.ask(undo, (), until)
                    undone = True
                return (yield from self.ask_often(sql, values, until))
            except Refused as refused:
                left -= 1
                if not (refused.is_cancelled and left):
                    raise
                undone = not undo

    def _prepare(self, sql: str, until: float) -> Steps[None]:
        name = b"holdfast_" + blake2b(sql.encode(), digest_size=16).hexdigest().encode()
        self._send(lambda conn: conn.send_prepare(name, sql.encode()))
        try:
            yield from self.answer(until)
        except Refused:  # most likely a pooler's client has left one of that name; what else is wrong will show
            self._names[sql] = None
        else:
            self._names[sql] = name

    def send(self, sql: str, values: Sequence[object] = (), name: bytes | None = None) -> None:
        """Send a statement, with parameters $1, $2 … in it; by its name, if it is prepared."""
        given = [None if value is None else str(value).encode() for value in values]
        if name is None:
            self._send(lambda conn: conn.send_query_params(sql.encode(), given))
        else:
            self._send(lambda conn: conn.send_query_prepared(name, given))

    def _send(self, what: Callable[[PGconn], object]) -> None:
        self._results, self._notices.unconfirmed = [], ""
        try:
            what(self.conn)
            self.busy = True
            self._unsent = self.conn.flush() != 0
        except Error as error:
            raise self._broken(error) from None

    def answer(self, until: float) -> Steps[list[Row]]:
        while True:
            yield self.wait(until)
            rows = self.collect()
            if rows is not None:
                return rows
            if self.env.monotonic() >= until:
                raise Silent(f"{self.label} does not answer")

    def wait(self, until: float) -> Wait:
        """The wait before `collect`."""
        return Wait((self.fd,), until, None, (self.fd,) if self._unsent else ())

    def collect(self) -> list[Row] | None:
        """The rows that the statement has returned; None if there is no answer yet."""
        try:
            conn = self.conn
            if self._unsent:
                self._unsent = conn.flush() != 0
            conn.consume_input()
            while not conn.is_busy():
                result = conn.get_result()
                if result is None:
                    self.busy = False
                    break
                self._results.append(result)
        except Error as error:
            raise self._broken(error) from None
        if self.busy:
            return None
        return self._rows()

    def is_answered(self) -> bool:
        """Whether the answer has been read, so that `collect` returns it at once."""
        try:
            self.conn.consume_input()
            return not self.conn.is_busy()
        except Error as error:
            raise self._broken(error) from None

    def hear(self) -> list[str]:
        """Read messages that came unasked; the channels that were notified. Broken at the connection's end."""
        try:
            conn = self.conn
            conn.consume_input()
            heard = []
            while (notified := conn.notifies()) is not None:
                heard.append(notified.relname.decode())
        except Error as error:
            raise self._broken(error) from None
        return heard

    def _rows(self) -> list[Row]:
        results, self._results = self._results, []
        rows: list[Row] = []
        for result in results:
            if result.status not in _OK:
                text, code = _primary(result), _field(result, pq.DiagnosticField.SQLSTATE) or ""
                if self.conn.status == pq.ConnStatus.BAD:
                    raise Broken(f"{self.label} has ended the connection: {text}")
                raise Refused(code, text)
            for row in range(result.ntuples):
                values = [result.get_value(row, column) for column in range(result.nfields)]
                rows.append(tuple([None if value is None else value.decode("utf-8", "replace") for value in values]))
        if self._notices.unconfirmed:
            raise Refused(_CANCELLED, self._notices.unconfirmed)
        return rows

    def _broken(self, error: Error) -> Broken:
        why = self._notices.last_word or " ".join(str(error).split())
        return Broken(f"{self.label} has ended the connection: {why}")


def _cancelling(env: Environment, cancel: PGcancelConn) -> Steps[None]:
    """Cancel a statement (PS2). The answer does not matter: the connection of the statement is closed already."""
    until, fd = env.monotonic() + _CANCEL_WITHIN, -1
    advance = cancel.poll  # libpq's name for one step; it does not wait
    try:
        with forking:
            cancel.start()
            fd = cancel.socket
            _open[fd] = lambda: cancel
        step = pq.PollingStatus.WRITING
        while step in (pq.PollingStatus.WRITING, pq.PollingStatus.READING) and env.monotonic() < until:
            yield Wait((fd,), until) if step == pq.PollingStatus.READING else Wait((), until, None, (fd,))
            with forking:
                step = pq.PollingStatus(advance())
                _open.pop(fd, None)
                fd = cancel.socket if step in (pq.PollingStatus.WRITING, pq.PollingStatus.READING) else -1
                _open.update({fd: lambda: cancel} if fd >= 0 else {})
    except Error:
        pass
    finally:
        with forking:
            _open.pop(fd, None)
            cancel.finish()


def _field(result: PGresult, field: pq.DiagnosticField) -> str | None:
    value = result.error_field(field)
    return None if value is None else value.decode("utf-8", "replace")


def _primary(result: PGresult) -> str:
    text = _field(result, pq.DiagnosticField.MESSAGE_PRIMARY) or result.get_error_message("utf-8")
    return " ".join(text.split())
