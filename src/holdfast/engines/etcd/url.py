"""The URL of a lock on etcd, checked once, before any request to a server.

    etcd://user:password@host:2379,host2:2379/name/with/slashes?ttl=10&prefix=holdfast/
    etcd://user@host/name?password_file=/path        or the password is in HOLDFAST_ETCD_PASSWORD
    etcds://…?ca=/path/ca.pem&cert=/path/client.pem&key=/path/client.key      with TLS
    …#0                                  one slot of a semaphore, to be looked at or broken

EU1  The URL that people see (`LockUrl.shown`) has neither the password nor its place or the private key's; with these,
     it can be typed again.
EU2  The keys of a lock are `<prefix><name>/<lease in hex>`, as those of etcd's own mutex (Go's `concurrency.Mutex`,
     `etcdctl lock`). A deeper key below the name is another lock's: only keys that end in one lease count.
"""

from __future__ import annotations

import math
import os
import re
from typing import NoReturn
from urllib.parse import parse_qsl, quote, unquote, urlencode

from ..._core.options import Options
from ...errors import InvalidPath
from ...model import Value
from ..base import Engine
from ..remote import RemoteRequest, is_text

PREFIX = "holdfast/"
TTL = 10
SMALLEST_TTL = 2
"""Seconds: the shortest lease that etcd grants, with its usual heartbeats."""
_LONGEST_TTL = 9_000_000_000
_PORT = 2379
_PARAMETERS = ("ca", "cert", "key", "password_file", "prefix", "ttl")
PASSWORD = "HOLDFAST_ETCD_PASSWORD"
"""The environment variable for the password of a user whose URL has none."""
_LONGEST_PASSWORD = 4096
_LEASE = re.compile(r"[0-9a-f]{1,16}\Z")
SLOT = re.compile(r"(0|[1-9][0-9]{0,2})\Z")
"""The number of a slot, in a URL and in the name of its key."""
_LONGEST_NAME = 1000


class Endpoint(Value):
    """One server of the cluster."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Access(Value):
    """The access to a cluster: equal values share their connections."""

    endpoints: tuple[Endpoint, ...]
    tls: bool = False
    user: str = ""
    password: str = ""
    password_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"<etcd at {self.names()}>"

    def names(self) -> str:
        """The names of the servers, for people."""
        return ", ".join(map(str, self.endpoints))

    def secret(self) -> str:
        """The current password, read anew each time, as files and variables change. Raises OSError or ValueError."""
        if self.password:
            return self.password
        if not self.password_file:
            found = os.environ.get(PASSWORD, "")
            if not found:
                raise ValueError(f"the variable {PASSWORD} is no longer set")
            return found
        fd = os.open(self.password_file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a FIFO would be waited for
        try:
            first = os.read(fd, _LONGEST_PASSWORD).partition(b"\n")[0].rstrip(b"\r").decode()
        finally:
            os.close(fd)
        if not first:
            raise ValueError(f"the first line of {self.password_file} is empty")
        return first


class LockUrl(Value):
    """One lock, or the beginning of the names of many."""

    access: Access
    shown: str
    prefix: str
    name: str
    ttl: int = TTL
    slot: int | None = None
    """The one slot of a semaphore that the URL names. It is not in `shown`."""

    @property
    def base(self) -> str:
        """The beginning of the keys of a lock's contenders."""
        return f"{self.prefix}{self.name}/"

    @property
    def slots(self) -> str:
        """The beginning of the keys of a semaphore's slots; no lock's keys have it, as no name has a `#`."""
        return f"{self.prefix}{self.name}/#"

    def shown_as(self, name: str) -> str:
        """The URL of another name in the same place; of one that is not UTF-8, too, though `parse` refuses that."""
        head, question, query = self.shown.partition("?")
        head = head[: len(head) - len(quote(self.name))] if self.name else head
        return f"{head}{quote(name, errors='surrogateescape')}{question}{query}"


def lease_of(base: str, key: str) -> int | None:
    """The lease that a contender's key ends in; None for a key that is none of this lock (EU2)."""
    rest = key[len(base) :] if key.startswith(base) else ""
    return int(rest, 16) if _LEASE.match(rest) else None


def parse(url: str, *, many: bool = False) -> LockUrl:
    """The parsed URL. InvalidPath if something is missing, unknown or makes no sense; `many`: a name may be missing."""
    if not is_text(url):
        _refuse(url, "is not UTF-8 once it is percent-decoded")
    scheme, _, rest = url.partition("://")
    tls = scheme.lower() == "etcds"
    rest, sharp, slot = rest.partition("#")
    if sharp and not SLOT.match(slot):
        _refuse(url, "has a '#', which only the number of one slot may follow; a name follows the servers after a '/'")
    rest, question, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    userinfo, at, hosts = authority.rpartition("@")
    user, colon, password = userinfo.partition(":")
    if at and not user:
        _refuse(url, "has a password without a user: etcd://USER:PASSWORD@HOST/NAME")
    endpoints = tuple([_endpoint(url, text) for text in hosts.split(",")])
    name = unquote(path)
    _check_name(url, name, many=many and not sharp)
    given = _parameters(url, query if question else "", tls=tls)
    _check_password(url, user, password, colon, given)
    prefix = given.get("prefix", PREFIX)
    if "\0" in prefix:
        _refuse(url, "has a NUL in its prefix")
    files = [given.get(name, "") for name in ("password_file", "ca", "cert", "key")]
    access = Access(endpoints, tls, unquote(user), unquote(password), *files)
    if bool(access.cert) != bool(access.key):
        _refuse(url, "needs both cert= and key= for a client certificate, or neither")
    public = urlencode({k: v for k, v in given.items() if k not in ("key", "password_file")}, safe="/")  # EU1
    who = f"{quote(access.user)}{':***' if password else ''}@" if access.user else ""
    servers = ",".join(map(str, endpoints))
    shown = f"{'etcds' if tls else 'etcd'}://{who}{servers}/{quote(name)}{'?' if public else ''}{public}"
    return LockUrl(access, shown, prefix, name, _ttl(url, given.get("ttl")), int(slot) if sharp else None)


def _endpoint(url: str, text: str) -> Endpoint:
    bracket = re.fullmatch(r"\[([0-9a-fA-F:.%]+)\](?::(\d+))?", text)
    plain = re.fullmatch(r"([^\s:/@\[\]\\\x00-\x20]+)(?::(\d+))?", text)
    found = bracket or plain
    if found is None:
        _refuse(url, "names no server, or an invalid one: etcd://HOST:2379,HOST2:2379/NAME")
    port = int(found[2][:9]) if found[2] else _PORT
    if not 0 < port < 65536:
        _refuse(url, f"has an invalid port: {port}")
    host = found[1]
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")  # HTTP takes no other
        except UnicodeError:
            _refuse(url, f"has an invalid host: {host}")
    return Endpoint(host, port)


def _check_name(url: str, name: str, *, many: bool) -> None:
    if not name and not many:
        _refuse(url, "names no lock: etcd://HOST:2379/NAME")
    if len(name.encode()) > _LONGEST_NAME:
        _refuse(url, f"has a name of more than {_LONGEST_NAME} bytes")
    if any(ord(c) < 32 or c in "#\x7f" for c in name):
        _refuse(url, "has a name with a '#' or with control characters")
    if name and not many and ("" in name.split("/")):
        _refuse(url, "has a name with an empty part: nothing before, after or between two '/'")


def _check_password(url: str, user: str, password: str, colon: str, given: dict[str, str]) -> None:
    file = "password_file" in given
    if file and not user:
        _refuse(url, "has password_file= without a user: etcd://USER@HOST/NAME?password_file=FILE")
    if file and (password or not given["password_file"]):
        _refuse(url, "gives the password twice" if password else "has a password_file= without a file")
    if user and not password and not file and (colon or not os.environ.get(PASSWORD)):
        _refuse(
            url,
            f"has a user without a password: put it into the variable {PASSWORD}, or into a file "
            "(etcd://USER@HOST/NAME?password_file=FILE), or write etcd://USER:PASSWORD@HOST/NAME",
        )


def _parameters(url: str, query: str, *, tls: bool) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _PARAMETERS:
            _refuse(url, f"has an unknown parameter {name!r}; there are: {', '.join(_PARAMETERS)}")
        if name in given:
            _refuse(url, f"gives {name}= twice")
        if name in ("ca", "cert", "key") and not tls:
            _refuse(url, f"has {name}=, which is for TLS: write etcds://")
        if name in ("ca", "cert", "key") and not value:
            _refuse(url, f"has a {name}= without a file")
        given[name] = value
    return given


def _ttl(url: str, text: str | None) -> int:
    if text is None:
        return TTL
    if not re.fullmatch(r"[0-9]{1,10}", text) or not SMALLEST_TTL <= int(text) <= _LONGEST_TTL:
        _refuse(url, f"has a ttl= that is not a whole number of seconds from {SMALLEST_TTL} on")
    return int(text)


def _refuse(url: str, why: str) -> NoReturn:
    """Raise InvalidPath without the password, which may be anywhere in something that is no URL (EU1)."""
    scheme, _, rest = url.partition("://")
    rest = rest.partition("?")[0].rpartition("@")[2]
    rest = re.sub(r":[^,/\]]*[^0-9,/\]][^,/\]]*(?=[,/]|$)", ":…", rest)
    raise InvalidPath(f"{scheme}://{rest} {why}", path=None, protocol="etcd")


class EtcdRequest(RemoteRequest):
    """A request for one lock, or for one slot of a semaphore."""

    __slots__ = ("lease_seconds", "lock_url")

    def __init__(self, engine: Engine, resource: str, options: Options, slot: int | None = None) -> None:
        self.lock_url = parse(resource)
        super().__init__(engine, resource, self.lock_url.shown, options, frozenset({"stale_after"}))
        if self.lease is not None and not SMALLEST_TTL <= self.lease <= _LONGEST_TTL:
            raise ValueError(
                f"stale_after, how long etcd waits for a silent holder, must be from {SMALLEST_TTL} to {_LONGEST_TTL} "
                f"seconds, not {self.lease!r}"
            )
        self.lease_seconds = self.lock_url.ttl if self.lease is None else math.ceil(self.lease)
        one = self.lock_url.slot
        if slot is not None and one is not None:
            _refuse(resource, "names one slot; a semaphore is named without its '#'")
        if one is not None:
            self.slot, self.target = one, f"{self.target}#{one}"
            self.path = self.target
        elif slot is not None:
            self.slot = slot
            self.path = f"{self.target}#{slot}"

    @property
    def full_name(self) -> str:
        return self.lock_url.base

    @property
    def server(self) -> tuple[str, ...]:
        return tuple(sorted({str(endpoint).lower() for endpoint in self.lock_url.access.endpoints}))
