"""What may be typed after `holdfast postgresql`."""

from __future__ import annotations

import argparse

from .arguments import Parser

ACTIONS = ("init",)
_NOTE = """\
init makes, in the database of URL, the schema and the table that locks need there,
if they are not there yet; it changes nothing else, and may be run again. Roles that
use locks need rights there, which --grant gives them, also where all is there. --print
is for those who have somebody else run it, or a migration: psql takes it. URL is that
of any lock there, or without a lock's name: postgresql://user@host/database. The
schema is the one in the URL (?schema=NAME), or holdfast; with another one, all locks
need that in their URL. Passwords belong into ~/.pgpass (PGPASSFILE) or PGPASSWORD:
lists of processes show what is typed.

exit status: 0 all is there; 2 usage; 3 the server cannot be reached, or refuses"""


def parser(name: str) -> argparse.ArgumentParser:
    """The command's parser."""
    made = Parser(
        f"holdfast {name}",
        "[options] ACTION URL",
        "Prepare a PostgreSQL database for locks.",
        _NOTE,
    )
    add = made.add_argument
    add("action", choices=ACTIONS, metavar="ACTION", help="init: make the schema and the table, if need be")
    add("url", metavar="URL", help="the database: postgresql://user@host:port/database")
    add("--schema", metavar="NAME", help="the schema to make (default: that of the URL, else holdfast)")
    add("--grant", metavar="ROLE", action="append", default=[], help="let ROLE use locks there; may be given again")
    add("--print", action="store_true", help="print the SQL for all that, and ask no server")
    add("-q", "--quiet", action="store_true", help="no messages but errors")
    return made
