"""`break`: remove one lock, or end one hold on a server, if it is still the one that was seen.

The id names the acquisition to remove. Without one, it shows the holder and asks, unless `--yes` has answered.
"""

from __future__ import annotations

import os
import sys

from .._admin.found import EMPTY
from .._admin.scan import Survey, id_of, name_of
from .._core.messages import sentence, unbreakable
from .._drivers.apart import seen_at
from .._drivers.sync import drive
from .._platform import environment
from ..engines import engine_of
from ..engines.file.inspect import Assessment, Observation
from ..engines.file.remove import remove_if
from ..engines.file.request import FileRequest
from ..errors import InvalidPath
from ..liveness import Liveness
from ..lock import Lock, requests_of
from ..model import Evidence, Record, Status
from ..protocols import is_persistent
from .console import as_json, name_of_record, rows_of, text_of, url_id_of, user_name
from .locks import absolute, is_url, leave_to_its_program, refuse_empty, rooted
from .options import Namespace
from .outcome import DONE, HELD, USAGE, say, show
from .slots import elsewhere

_WORD = "break"


class _Breaking:
    """A lock as it was first seen, and what the user has asked for."""

    done, aim = "removed", "remove it"
    means = (
        "Its holder is alive. Removing the file does not stop it, and another process could acquire the lock beside "
        "it: end the holder instead, or, if you are sure, use --force"
    )
    warning = "Its holder is alive and is not stopped: another process can get in beside it."

    def __init__(self, options: Namespace, status: Status, its_id: str | None) -> None:
        self.options = options
        self.status = status
        self.id = its_id
        self.wanted: str | None = options.id.strip().lower() if options.id is not None else None
        """The id of the acquisition to remove; None until `ask` has found it out."""

    def refuse(self, why: str, code: int = HELD) -> int:
        if self.options.json:
            show(as_json(self.status, "refused", id=self.id, why=why))
        else:
            say(f"{self.status.path} was not {self.done}: {why}")
        return code

    def another(self, now: str | None) -> str:
        return f"its id is now {now}, not {self.wanted}. Check its status, and decide again"

    def end(self, result: str) -> int:
        if self.options.json:
            show(as_json(self.status, result, id=self.id))
        elif not self.options.quiet:
            say(f"{self.status.path}: {result}")
        return DONE

    def needs_force(self) -> str | None:
        """Why only --force removes it; None if that is not needed."""
        seen = self.status
        return seen_at(seen.path, lambda: self._why_force(seen.record, seen.liveness, seen.evidence))

    def ask(self) -> int | None:
        """Find out which acquisition to remove; an exit status if that is unknown or not confirmed, None to go on."""
        if self.wanted is not None:
            return None
        if self.options.yes:
            self.wanted = self.id
            why = self._may_not()
            return self.refuse(why) if why else None
        if self.options.json or not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            ways = f"Confirm with --yes whatever acquisition is there, or only this one with --id {self.id}"
            return self.refuse(f"{self._may_not() or sentence(self.status)}. {ways}", USAGE)
        if why := self._may_not():
            return self.refuse(why)  # so there is nothing to ask
        print(text_of([*rows_of(self.status), ("id", self.id or "")], sys.stderr), file=sys.stderr)
        if self.warning and self.status.liveness is Liveness.ALIVE:
            print(self.warning, file=sys.stderr)
        print(f"Type {_WORD!r} to {self.aim}: ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:
            print(file=sys.stderr)  # Ctrl-D has left the cursor behind the question
        if answer.strip() != _WORD:
            return self.refuse("you did not confirm it")
        self.wanted = self.id
        return None

    def _may_not(self) -> str | None:
        return None if self.options.force else self.needs_force()

    def remove(self) -> int:
        """Remove the file if its id is still the wanted one."""
        refused, gone = seen_at(self.status.path, self._remove)
        return self.end("broken" if gone else "not held") if refused is None else self.refuse(refused)

    def _remove(self) -> tuple[str | None, bool]:
        """Why it must not be removed, or None; and whether it was."""
        status, refused, unreadable = self.status, None, False
        request = FileRequest(status.path, {"protocol": status.protocol or "sema"}, lock_file=status.path)

        def agreed(seen: Observation, assessed: Assessment) -> bool:
            nonlocal refused, unreadable
            refused = self._why_not(seen, assessed)
            unreadable = refused is None and seen.record is None
            return refused is None

        try:
            record = drive(remove_if(environment(), request, agreed))
        except PermissionError as error:
            places = status.path, os.path.dirname(status.path) or "/"
            file, directory = (user_name(os.stat(one, follow_symlinks=False).st_uid) for one in places)
            error.add_note(f"the lock is user {file}'s, and its directory user {directory}'s: let one of them break it")
            raise
        return refused, record is not None or (unreadable and not environment().exists(status.path))

    def _why_not(self, seen: Observation, assessed: Assessment) -> str | None:
        now = name_of(environment(), self.status.path, self.status.protocol, seen.data)
        if now != self.wanted:
            return self.another(now)
        return None if self.options.force else self._why_force(seen.record, assessed.liveness, assessed.evidence)

    def _why_force(self, record: Record | None, liveness: Liveness, evidence: Evidence) -> str | None:
        """Why only --force removes it: a living holder's guard, or record locks (`ofd`, dpkg, Java) on a file without a
        record. None if it has neither."""
        if liveness is Liveness.ALIVE and evidence.source == "guard":
            return f"{sentence(self.status)}. {self.means}"
        owners = Survey(environment()).owners(self.status.path, records=True) if record is None else []
        if not owners:
            return None
        return f"{sentence(self.status)}; process {owners[0].pid or '?'} has record locks on it. {self.means}"


class _OnServer(_Breaking):
    done, aim = "broken", "end this hold"
    means = "Its holder is alive: end that process, or, if you are sure, use --force"
    warning = ""  # its holder hears of it

    def needs_force(self) -> str | None:
        return f"{sentence(self.status)}. {self.means}" if self.status.evidence.proven else None


def break_(options: Namespace) -> int:
    """Remove the named lock file, or end the named hold on a server."""
    refuse_empty(options.lock)
    if is_url(options.lock):
        return _break_on_server(options)
    one = seen_at(options.lock, lambda: _looked_at(options))
    status = one.status
    if is_persistent(status.protocol):
        if not status.locked and not status.holders:
            return one.end("not held")
        return one.refuse(unbreakable(status))
    if one.id is None:
        other = seen_at(options.lock, lambda: elsewhere(options))
        return one.refuse(f"nothing is there, but {other}; name that file") if other else one.end("not held")
    code = one.ask()
    return one.remove() if code is None else code


def _looked_at(options: Namespace) -> _Breaking:
    leave_to_its_program(absolute(options.lock), options.protocol)
    status = _status(options)
    return _Breaking(options, status, id_of(environment(), status))


def _status(options: Namespace) -> Status:
    """The lock's status at one look. InvalidPath if there is a file that is no lock file."""
    if options.protocol is not None:
        return Lock(options.lock, protocol=options.protocol).status()
    path = rooted(options.lock)
    try:
        found = Survey(environment()).file(path)
    except (FileNotFoundError, NotADirectoryError):
        return Lock(path).status()  # says in its own words that nothing is there, or that nothing could be
    if found is not None and found.condition == EMPTY:
        return Lock(path).status()  # for its contenders it is a lock that is never released
    if found is None:
        why = f"{options.lock} is not a lock file of a known protocol; if it is a lock file, name its protocol (-p)"
        raise InvalidPath(why, path=options.lock)
    return found.status


def _break_on_server(options: Namespace) -> int:
    lock = Lock(options.lock, **({} if options.protocol is None else {"protocol": options.protocol}))
    status = lock.status()
    one = _OnServer(options, status, url_id_of(status))
    if not status.locked:
        return one.end("not held")
    if one.id is None:
        return one.refuse(f"{sentence(status)}. Try again in a moment")
    if one.wanted not in (None, one.id):
        return one.refuse(one.another(one.id))
    code = one.ask()
    if code is not None:
        return code
    if not options.force and (why := one.needs_force()):
        return one.refuse(why)
    request, engine = requests_of(lock)[0], engine_of(options.lock)
    steps = engine.break_if(environment(), request, lambda record: name_of_record(status.path, record) == one.id)
    if drive(steps) is not None:
        return one.end("broken")
    if lock.status().locked:
        return one.refuse("it has changed hands since. Check its status, and decide again")
    return one.end("not held")
