"""`doctor` for a server: whether locks can be listed, and whether one can be had and given back there."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from .._drive.sync import drive
from .._operator.diagnosis import GOOD, NOTE, UNUSABLE, Finding
from .._os import environment
from ..engines import engine_of
from ..errors import HoldfastError
from ..lock import Lock
from .urls import masked

NAME = "holdfast-doctor"
"""The lock that is acquired to see whether that can be done."""
_WITHIN = 5.0
_NEXT = "the message says what to do; docs/postgresql.md and docs/etcd.md have more"


def findings_of(url: str) -> list[Finding]:
    """What was looked at, and what came of it."""
    found = [_listing(url)]
    if found[0].level != UNUSABLE:
        found += _holding(url)
    if masked(url) != url:
        found.append(
            Finding(
                "password",
                NOTE,
                "the URL has a password in it, which lists of processes may show",
                "for PostgreSQL leave it out, and use a password file (~/.pgpass, PGPASSFILE) or PGPASSWORD; for etcd, "
                "?password_file=…, HOLDFAST_ETCD_PASSWORD, or client certificates (?cert=…&key=…) without any",
            )
        )
    return found


def _listing(url: str) -> Finding:
    begun = time.monotonic()
    try:
        statuses = drive(engine_of(url).survey(environment(), url))
    except (HoldfastError, OSError) as error:
        return Finding("server", UNUSABLE, str(error), _NEXT)
    took = time.monotonic() - begun
    return Finding(
        "server",
        GOOD,
        f"it has answered within {took * 1000:.0f} ms; {len(statuses)} locks there are held or waited for",
    )


def _holding(url: str) -> list[Finding]:
    """Acquire a lock twice, which nobody else wants: that asks for all that a lock needs."""
    probe = probe_of(url)
    if probe is None:
        return [
            Finding("lock", NOTE, "whether a lock can be acquired was not tried: how one is named there is not known")
        ]
    tokens, begun = [], time.monotonic()
    try:
        for _ in range(2):
            with Lock(probe, tag="holdfast doctor", timeout=_WITHIN) as hold:
                tokens.append(hold.token or 0)
    except (HoldfastError, OSError) as error:
        return [Finding("lock", UNUSABLE, f"{masked(probe)} could not be acquired: {error}", _NEXT)]
    took = (time.monotonic() - begun) / len(tokens)
    found = [Finding("lock", GOOD, f"{NAME} was acquired and released, in {took * 1000:.0f} ms with all that it needs")]
    if tokens[0] < tokens[1]:
        found.append(Finding("fencing", GOOD, f"its tokens increase ({tokens[0]}, {tokens[1]})"))
    else:
        means = "a resource that checks tokens would refuse the later holder; has the database been restored?"
        found.append(Finding("fencing", UNUSABLE, f"its tokens do not increase ({tokens[0]}, {tokens[1]})", means))
    return found


def probe_of(url: str) -> str | None:
    """The URL of the lock that is tried, on the same server."""
    kind, parts = engine_of(url).name, urlsplit(url)
    if kind == "postgresql":
        return url.partition("#")[0] + f"#{NAME}"
    if kind == "etcd":
        return parts._replace(path=f"{parts.path.rstrip('/')}/{NAME}").geturl()
    return None
