"""What a postgresql:// URL says: everything before # is libpq's, but for `schema`; behind it is the lock's name.

    postgresql://user:password@host:port,host2:port2/database?libpq=parameters&schema=holdfast#name

PG1  No text that people see has a password in it: `shown` is made of the URL's parts without those that are secret, and
     what libpq says of a URL that it cannot read is passed on only if no part of that can be secret.
PG2  The key is made of the name alone, so all who spell it equally exclude each other. Names whose keys are equal would
     exclude each other without reason; that is noticed, because the row of a key has the name (lock.py).
"""

from __future__ import annotations

from hashlib import blake2b
from urllib.parse import quote, unquote_to_bytes

from psycopg import Error, pq

from ...errors import InvalidPath

NAME = "postgresql"
SCHEMA = "holdfast"
_LONGEST_NAME = 2000
"""Bytes of UTF-8; an index takes no more than 2700."""
_LONGEST_SCHEMA = 63
_SECRET = frozenset({"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"})
_OURS = frozenset({"schema"})
_TARGETS = frozenset({"any", "read-write", "primary"})
_SHAPE = "postgresql://user@host:5432/database#name"
_HOW = (
    f"A lock in PostgreSQL is {_SHAPE}; write what is special in a user, a password or a name in percent-encoding "
    "(# is %23, @ is %40, / is %2F)"
)


class Place:
    """A database, a schema in it, and the name of a lock there; or its beginning, for those who list locks."""

    __slots__ = ("base", "conninfo", "key", "name", "schema", "shown")

    def __init__(self, conninfo: str, schema: str, name: str, base: str) -> None:
        self.conninfo = conninfo
        """For libpq; has the password."""
        self.schema = schema
        self.name = name
        self.base = base
        self.key = key_of(name)
        self.shown = self.path_of(name)

    @property
    def table(self) -> str:
        """As SQL takes it."""
        return f"{quoted(self.schema)}.lock"

    def path_of(self, name: str) -> str:
        """The URL of a lock of that name here, as people may see it (PG1)."""
        return f"{self.base}#{quote(name, safe='/:@!$&()*+,;=?~-._')}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shown!r}>"


def key_of(name: str) -> int:
    """The key of the advisory lock: the first 64 bits of BLAKE2b as a signed number, most significant byte first."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


def quoted(identifier: str) -> str:
    """An identifier as SQL takes it, whatever is in it."""
    return '"' + identifier.replace('"', '""') + '"'


def check_schema(schema: object) -> str:
    if not isinstance(schema, str):
        raise TypeError(f"schema is a str, not {schema!r}")
    if not schema or "\0" in schema or len(schema.encode()) > _LONGEST_SCHEMA:
        raise InvalidPath(f"schema is the name of a PostgreSQL schema, of 1 to {_LONGEST_SCHEMA} bytes", protocol=NAME)
    return schema


def parse(url: str, *, named: bool = True) -> Place:
    """What the URL says; InvalidPath for one that says nothing. Without `named`, the name may be missing."""
    before, _, fragment = url.partition("#")
    scheme, _, rest = before.partition("://")
    path, _, query = rest.partition("?")
    schema, kept = _ours(query)
    authority, _, database = path.partition("/")
    user, at, hosts = authority.rpartition("@")
    if "@" in user:
        raise InvalidPath(f"this URL has more than one @. {_HOW}", protocol=NAME)
    public = [part for part in kept if part.partition("=")[0] not in _SECRET]
    base = f"{NAME}://{user.partition(':')[0]}{at}{hosts}" + (f"/{database}" if database else "")
    shown = public if schema == SCHEMA else [*public, f"schema={quote(schema, safe='')}"]
    base += "?" + "&".join(shown) if shown else ""
    masked = f"{scheme}://{user.partition(':')[0]}{at}{hosts}/{database}?{'&'.join(public)}"
    given = _parsed(masked, f"{scheme}://{path}?{'&'.join(kept)}")
    _check(given)
    return Place(_conninfo(given), schema, _name(fragment, needed=named), base)


def _ours(query: str) -> tuple[str, list[str]]:
    """The schema, and the parameters that are libpq's."""
    schema, kept = SCHEMA, []
    for part in filter(None, query.split("&")):
        key, _, value = part.partition("=")
        if key in _OURS:
            schema = check_schema(_decoded(value, "the schema"))
        else:
            kept.append(part)
    return schema, kept


def _name(fragment: str, *, needed: bool) -> str:
    name = _decoded(fragment, "the name behind #")
    if needed and not name:
        raise InvalidPath(f"the URL names no lock: put its name behind a #. {_HOW}", protocol=NAME)
    if "\0" in name or len(name.encode()) > _LONGEST_NAME:
        raise InvalidPath(
            f"the name of a lock is any text without NUL, up to {_LONGEST_NAME} bytes of UTF-8", protocol=NAME
        )
    return name


def _decoded(text: str, what: str) -> str:
    try:
        return unquote_to_bytes(text.encode()).decode()
    except UnicodeError:
        raise InvalidPath(f"{what} is no UTF-8 once it is percent-decoded. {_HOW}", protocol=NAME) from None


def _parsed(masked: str, whole: str) -> dict[str, str]:
    """What libpq makes of the URL, whose secrets are left out of the `masked` one (PG1)."""
    try:
        pq.Conninfo.parse(masked.encode())
    except (Error, UnicodeError) as error:
        secret = masked.partition("?")[0] != whole.partition("?")[0]
        said = "" if secret else f" ({str(error).strip()})"
        raise InvalidPath(f"libpq cannot read this URL{said}. {_HOW}", protocol=NAME) from None
    try:
        options = pq.Conninfo.parse(whole.encode())
    except (Error, UnicodeError):
        raise InvalidPath(f"libpq cannot read the password in this URL. {_HOW}", protocol=NAME) from None
    return {option.keyword.decode(): option.val.decode() for option in options if option.val is not None}


def _check(given: dict[str, str]) -> None:
    for port in given.get("port", "").split(","):
        if port and not (port.isascii() and port.isdecimal() and 0 < int(port[:9]) < 65536):
            raise InvalidPath(f"a port in this URL is no number from 1 to 65535. {_HOW}", protocol=NAME)
    wanted = given.pop("target_session_attrs", "any")
    if wanted not in _TARGETS:
        raise InvalidPath(
            f"target_session_attrs={wanted} asks for a standby, which would grant a lock that the primary has granted "
            "to somebody else. Leave it out: of several hosts, the one that can be written to is taken",
            protocol=NAME,
        )


def _conninfo(given: dict[str, str]) -> str:
    return " ".join(f"{key}={escaped(value)}" for key, value in sorted(given.items()))


def escaped(value: str) -> str:
    """A value as libpq takes it in a connection string."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
