"""A resource that checks fencing tokens, and a holder that comes too late: `python examples/fencing.py [LOCK]`.

LOCK is a path, or the URL of a lock: postgresql://user@host/database#name, etcd://host:2379/name. Left out, it is a
file in a directory of its own.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import tempfile
from pathlib import Path

import holdfast


class TooLateError(Exception):
    """Somebody with a higher token has been here already."""


class Store:
    """What the lock protects. It remembers the highest token that it has seen, and refuses what comes with a lower one.

    The look at the token and the write are one transaction: between them, nobody else can come in.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._transaction() as db:
            db.execute("create table if not exists report (id integer primary key, text text, token integer)")
            db.execute("insert or ignore into report values (1, 'nothing yet', 0)")

    def write(self, text: str, token: int) -> None:
        with self._transaction() as db:
            done = db.execute("update report set text = ?, token = ? where id = 1 and token <= ?", (text, token, token))
            if not done.rowcount:
                (seen,) = db.execute("select token from report where id = 1").fetchone()
                raise TooLateError(f"token {token} is too late: {seen} has been here")

    def read(self) -> str:
        with self._transaction() as db:
            (text,) = db.execute("select text from report where id = 1").fetchone()
            return str(text)

    @contextlib.contextmanager
    def _transaction(self):  # type: ignore[no-untyped-def]
        with contextlib.closing(sqlite3.connect(self._path)) as db, db:
            yield db


def main(where: str, directory: Path) -> None:
    store = Store(directory / "report.sqlite")
    lock = holdfast.Lock(where, tag="report", fencing=True, timeout=10)

    slow = lock.acquire()
    print(f"the first holder has token {slow.token}, and is stopped before it writes")

    lock.break_lock()  # somebody loses patience; on a server its time may as well have run out
    quick = lock.acquire()
    assert slow.token is not None
    assert quick.token is not None
    print(f"the second holder has token {quick.token}, and writes")
    store.write("by the second", quick.token)
    quick.release()

    print("the first one goes on, where it was")
    try:
        store.write("by the first", slow.token)
    except TooLateError as refused:
        print(f"and is refused: {refused}")
    with contextlib.suppress(holdfast.LockLost):
        slow.release()
    print(f"the report is {store.read()!r}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(sys.argv[1] if len(sys.argv) > 1 else f"{made}/report.lock", Path(made))
