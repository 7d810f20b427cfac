"""`doctor`: say what a directory can do for locks, what that means, and what is wrong.

For a server: whether locks can be listed, and whether one can be acquired and released there.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from .._admin.doctor import (
    GOOD,
    NOTE,
    UNUSABLE,
    WEAKER,
    Finding,
    of_abilities,
    of_leftovers,
    of_limits,
    of_other_programs,
    of_process,
    worst,
)
from .._admin.scan import Survey
from .._core.messages import printable
from .._drivers.apart import read_at
from .._drivers.sync import drive
from .._platform import environment
from .._platform.interface import Abilities, Limits
from .._platform.probes import abilities, limits
from ..engines import engine_of
from ..engines.file.steps import disconnected
from ..errors import EngineUnavailable, HoldfastError
from ..lock import Lock
from ..model import Value
from .console import dumped
from .locks import is_url, unfolded
from .options import Namespace
from .outcome import DONE, FAILED, Screen, masked, say, screen, show

NAME = "holdfast-doctor"
"""Name of the lock that is acquired as a test."""
_WITHIN = 5.0
_NEXT = "the message says what to do; docs/postgresql.md and docs/etcd.md have more"


def findings_of(url: str) -> list[Finding]:
    """Findings about the server of a URL."""
    found = [_listing(url)]
    if found[0].level != UNUSABLE:
        found += _holding(url)
    if masked(url) != url:
        means = (
            "for PostgreSQL leave it out, and use a password file (~/.pgpass, PGPASSFILE) or PGPASSWORD; for etcd, "
            "?password_file=…, HOLDFAST_ETCD_PASSWORD, or client certificates (?cert=…&key=…) without any"
        )
        found.append(Finding("password", NOTE, "the URL has a password in it, which process lists may show", means))
    return found


def _listing(url: str) -> Finding:
    begun = time.monotonic()
    try:
        statuses = drive(engine_of(url).survey(environment(), url))
    except (HoldfastError, OSError) as error:
        return Finding("server", UNUSABLE, str(error), _NEXT)
    took = time.monotonic() - begun
    many = "1 lock there is" if len(statuses) == 1 else f"{len(statuses)} locks there are"
    return Finding("server", GOOD, f"it has answered within {took * 1000:.0f} ms; {many} held or waited for")


def _holding(url: str) -> list[Finding]:
    """Acquire a lock of our own twice: that asks for all that a lock needs."""
    probe = probe_of(url)
    if probe is None:
        return [Finding("lock", NOTE, "acquiring a lock was not tried: how this engine names its locks is not known")]
    tokens, begun = [], time.monotonic()
    try:
        for _ in range(2):
            with Lock(probe, tag="holdfast doctor", timeout=_WITHIN) as hold:
                tokens.append(hold.token or 0)
    except (HoldfastError, OSError) as error:
        return [Finding("lock", UNUSABLE, f"{masked(probe)} could not be acquired: {error}", _NEXT)]
    took = (time.monotonic() - begun) / len(tokens)
    found = [Finding("lock", GOOD, f"{NAME} was acquired and released in {took * 1000:.0f} ms")]
    if tokens[0] < tokens[1]:
        found.append(Finding("fencing", GOOD, f"its tokens increase ({tokens[0]}, {tokens[1]})"))
    else:
        means = "a resource that checks tokens would refuse the later holder; has the database been restored?"
        found.append(Finding("fencing", UNUSABLE, f"its tokens do not increase ({tokens[0]}, {tokens[1]})", means))
    return found


def probe_of(url: str) -> str | None:
    """The URL of the lock to test, on the same server; None if it is not known how locks are named there."""
    kind, parts = engine_of(url).name, urlsplit(url)
    if kind == "postgresql":
        return url.partition("#")[0] + f"#{NAME}"
    if kind == "etcd":
        return parts._replace(path=f"{parts.path.rstrip('/')}/{NAME}", fragment="").geturl()
    return None


_AMISS = 1
_STATUS = {GOOD: DONE, NOTE: DONE, WEAKER: _AMISS, UNUSABLE: FAILED}
_STYLES = {GOOD: "green", NOTE: "blue", WEAKER: "yellow", UNUSABLE: "red"}
_VERDICTS = {
    GOOD: "all promises hold here",
    NOTE: "all promises hold here; see the notes",
    WEAKER: "locks work here, but some promises are weaker",
    UNUSABLE: "it cannot be used for locks",
}
_WIDEST = 100
_INDENT = 31
_NARROW_INDENT = 10
_LEAST = 30
"""Least columns for a finding beside its name; with fewer, it stands below."""


def doctor_(options: Namespace) -> int:
    """Probe, and print the findings."""
    if is_url(options.place):
        if options.peer or options.listen or options.host:
            raise ValueError("--peer, --listen and --with are for directories, not for servers")
        return _tell(options, "url", masked(options.place), findings_of(options.place))
    directory = unfolded(options.place)
    places = [directory, *([unfolded(options.peer)] if options.peer else [])]
    remote = next((place for place in places if environment().may_block(f"{place}/.")), directory)
    can = have = None
    try:
        findings, can, have = read_at(remote, lambda: _looked_at(directory))
    except EngineUnavailable as error:
        findings = [Finding("server", UNUSABLE, str(error), "no lock there can be acquired until it answers")]
    except OSError as error:
        findings = [_impossible(directory, error)]
    else:
        findings += read_at(remote, lambda: _between(options, directory))
    return _tell(options, "directory", directory, findings, abilities=_plain(can), limits=_plain(have))


def _looked_at(directory: str) -> tuple[list[Finding], Abilities, Limits]:
    env = environment()
    can, have = abilities(env, directory), limits(directory)
    uid = os.geteuid() if hasattr(os, "geteuid") else None
    surveyed = [*Survey(env).directory(directory)]
    findings = [*of_abilities(can, uid), *of_process(env.identity(), can), *of_limits(have)]
    findings += of_leftovers(env, directory, surveyed)
    return [*findings, *of_other_programs(surveyed)], can, have


def _between(options: Namespace, directory: str) -> list[Finding]:
    """Findings from a test of the directory against another mount of it, or against another machine."""
    if not (options.peer or options.host or options.listen):
        return []
    from .._admin import peer

    env = environment()
    if options.peer:
        os.scandir(options.peer).close()  # a mistyped directory is an error of its own
        return drive(peer.of_mounts(env, directory, unfolded(options.peer)))
    if options.host:
        return drive(peer.of_machines(env, directory, options.host, options.timeout))
    if not options.quiet:
        say(f"waiting for another machine: holdfast doctor {printable(directory)} --with {env.identity().host}")
    return drive(peer.listen(env, directory, options.timeout))


def _plain(value: Any) -> Any:
    """The value as JSON can hold it: a dictionary for a `Value`."""
    return {name: _plain(getattr(value, name)) for name in value._fields} if isinstance(value, Value) else value


def _tell(options: Namespace, kind: str, shown: str, findings: list[Finding], **more: Any) -> int:
    """Print the findings and the verdict; the exit status."""
    verdict = worst(findings)
    if options.json:
        show(dumped({kind: shown, "verdict": verdict, "findings": [_plain(one) for one in findings], **more}))
    elif not options.quiet or verdict == UNUSABLE:
        show("\n".join(_as_text(shown, verdict, findings, screen(sys.stdout))))
    return _STATUS[verdict]


def _impossible(directory: str, error: OSError) -> Finding:
    """The finding that not even a file can be created, and what to do."""
    missing = error.errno == errno.ENOENT and not os.path.isdir(directory)
    means = (
        "create it first"
        if missing
        else disconnected(environment(), f"{directory}/.", error)
        or {
            errno.ENOTDIR: "choose a directory",
            errno.EACCES: "choose a directory that you may write to and search; no lock can be acquired in this one, "
            "and those in it can only be looked at",
            errno.EPERM: "choose a directory that you may write to",
            errno.EROFS: "choose a directory on a writable filesystem",
            errno.ENOSPC: "make room",
            errno.EDQUOT: "make room",
        }.get(error.errno or 0, "choose another directory")
    )
    return Finding("directory", UNUSABLE, f"no file can be created here: {error.strerror or error}", means)


def _as_text(directory: str, verdict: str, findings: list[Finding], on: Screen) -> list[str]:
    from textwrap import wrap

    # In a pipe nothing is folded: one line is a finding, and the next says what it means.
    room = None if on.width is None else min(on.width, _WIDEST)
    below = room is not None and room < _INDENT + _LEAST
    indent = " " * (_NARROW_INDENT if below else _INDENT)
    lines = [f"{on.paint(_VERDICTS[verdict], _STYLES[verdict])}: {printable(directory, 4000)}", ""]
    for one in findings:
        parts = []
        for number, text in enumerate(printable(text, 4000) for text in (one.text, one.means) if text):
            folded = [text] if room is None else wrap(text, max(20, room - len(indent)))
            parts += [indent + (on.paint(part, "dim") if number else part) for part in folded]
        name = f"{on.paint(f'{one.level:<9}', _STYLES[one.level])} {one.name}"
        if below:
            parts.insert(0, name)
        else:
            parts[0] = name + " " * (_INDENT - 10 - len(one.name)) + parts[0].lstrip()
        lines += parts
    return lines
