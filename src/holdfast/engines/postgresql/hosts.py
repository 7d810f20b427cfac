"""Where a server is: the hosts that libpq would try, with their addresses.

libpq looks names up while the caller waits, and does not know the time limit of a connection that is opened step by
step. So its list is taken apart here: one attempt for each address, each with a limit.
"""

from __future__ import annotations

import random
import socket
import threading
from ipaddress import ip_address

from psycopg import pq

from ..._core.environment import Signal, Wait
from ...errors import EngineUnavailable
from .url import NAME, escaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from ..._core.environment import Environment
    from .url import Place

_LOOKUP_WITHIN = 10.0
_TIMEOUT = 10.0
"""Seconds for a connection, where the caller has said nothing (connect_timeout)."""
_DOOMED = " sslmode=tell-me-the-rest"
"""libpq fills in what comes from its environment, its service files and its defaults, then finds that this is no mode:
before it looks anything up or connects."""


class Known:
    """What libpq knows of a server, from wherever it does."""

    def __init__(self, place: Place) -> None:
        self.place = place
        with_mistake = pq.PGconn.connect_start((place.conninfo + _DOOMED).encode())
        self._values = {o.keyword.decode(): o.val.decode() for o in with_mistake.info if o.val}
        complaint = " ".join(with_mistake.get_error_message("utf-8").split())
        with_mistake.finish()
        if "sslmode" not in complaint:
            raise EngineUnavailable(
                f"{place.base} cannot be reached: libpq says: {complaint}. Check the URL, the service file, and the "
                "environment variables whose names begin with PG",
                path=place.shown,
                protocol=NAME,
            )

    def get(self, name: str) -> str:
        return self._values.get(name, "")

    def number(self, name: str) -> int:
        value = self.get(name).strip()
        return int(value) if value.lstrip("-").isdecimal() else 0

    @property
    def timeout(self) -> float:
        """Seconds for one attempt."""
        given = self.number("connect_timeout")
        return float(given) if given > 0 else _TIMEOUT


class Attempt:
    """One address to try: its part of the connection string, and what people call it."""

    def __init__(self, host: str, address: str, port: str) -> None:
        self.conninfo = f" host={escaped(host)} hostaddr={escaped(address)} port={escaped(port)}"
        shown = host or address or "the local socket"
        self.label = shown if not port or shown.startswith("/") else f"{shown}:{port}"


def attempts(env: Environment, known: Known, until: float, failed: list[str]) -> Generator[Wait, None, list[Attempt]]:
    """In libpq's order. A host whose name is not known is left out; why goes to `failed`."""
    hosts, addresses, ports = (known.get(name).split(",") for name in ("host", "hostaddr", "port"))
    number = max(len(hosts), len(addresses))
    found = []
    for index in range(number):
        host, address = (given[index] if index < len(given) else "" for given in (hosts, addresses))
        port = ports[index] if index < len(ports) else ports[0]
        if address or not host or host.startswith(("/", "@")) or _is_address(host):
            found.append(Attempt(host, address, port))
            continue
        looked_up = yield from _look_up(env, host, port, until)
        if isinstance(looked_up, str):
            failed.append(f"{host}: {looked_up}")
        else:
            found += [Attempt(host, each, port) for each in looked_up]
    if known.get("load_balance_hosts") == "random":
        random.shuffle(found)
    return found


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _look_up(env: Environment, host: str, port: str, until: float) -> Generator[Wait, None, list[str] | str]:
    """The addresses of a name, or why there are none."""
    until = min(until, env.monotonic() + _LOOKUP_WITHIN)
    done, found = Signal(), list[list[str] | str]()

    def look() -> None:
        try:
            answers = socket.getaddrinfo(host, port or None, type=socket.SOCK_STREAM)
            found.append(list(dict.fromkeys(str(answer[4][0]) for answer in answers)))
        except (OSError, UnicodeError) as error:
            found.append(f"the name is not known ({error})")
        done.set()

    threading.Thread(target=look, name="holdfast-name", daemon=True).start()
    while not found:
        if env.monotonic() >= until:
            return "the name could not be looked up in time"
        yield Wait((), until, done)
    return found[0]
