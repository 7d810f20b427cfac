"""Two views of one directory, tried against each other: two mounts on one machine, or two machines.

A trial is a few steps of each side, in turns, and both ways. A side is a `View`, which takes its own steps, or a
`Remote`, which has a process on another machine take them, by messages that are files in that directory.

DP1  Nothing is left: each side removes all that it has made, also when it is interrupted. The names are those of
     temporary files (publish.py), so a leftover of a kill is removed by the next process of that machine that publishes
     through names.
DP2  No lock is touched, and no other file: a side writes to, locks and links only files that it has created itself,
     opens others for reading only, and takes no name that does not belong to this conversation.
DP3  A message is a new file that is never changed: a mount that shows old content knows nothing of it. Before each look
     for a message, the directory is changed, so that a client gives up what it remembers of it. It may give up old
     content, too: a trial that finds fresh content proves less than mount options that permit old content (storage.py).
DP4  Both sides end by themselves: when a file of the other side is gone, or when the time is up.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable
from typing import Any, TypeAlias

from .._core.wait import Steps, Wait
from .._platform.interface import Environment
from .._platform.values import temporary_name
from .detect import head_of
from .doctor import GOOD, LEVELS, NOTE, UNUSABLE, WEAKER, Finding

Tried: TypeAlias = "Steps[bool | None]"

_STEPS = {"create": 1, "write": 2, "reads": 2, "guard": 1, "unguard": 1, "guarded": 1, "link": 2}
"""Steps that one side may ask of the other, and the number of their words."""
_OF_OWN_FILES = ("write", "guard", "unguard", "link")
_MOST, _LONGEST, _MODE = 1 << 16, 200, 0o644
_ONE_CLIENT = (
    "a server may take them for one client, and give both the same lock (NFS 4), so this proves nothing about two "
    "machines. To test those, use --listen on one and --with HOST on the other"
)
_SOONEST, _LATEST = 0.02, 0.2
"""Seconds between looks for a message."""


class Silent(TimeoutError):
    """The other machine has not answered, or has ended."""


class View:
    """A side of a trial. Its steps return whether it was so, or was done; None: it cannot be tried here."""

    def __init__(self, env: Environment, directory: str, talk: str, side: str) -> None:
        self.env = env
        self.talk = talk
        self.start = temporary_name(env.identity(), "").removesuffix(".tmp")
        self._directory = directory
        self._side = side
        self._made: list[str] = []
        self._fds: dict[str, int] = {}
        self._name = re.compile(rf"\.holdfast-[0-9a-f]{{8}}-[0-9]{{1,10}}-{talk}-[a-z]{{1,8}}\.tmp")

    def name(self, label: str) -> str:
        """A temporary name for a file of this side (DP1)."""
        return f"{self.start}{self.talk}-{self._side}{label}.tmp"

    def ask(self, step: str, *words: str) -> Tried:
        yield from ()
        return self.do(step, words)

    def do(self, step: str, words: tuple[str, ...]) -> bool | None:
        """Take a step that the other side may ask for (DP2). ValueError for anything else."""
        if _STEPS.get(step) != len(words) or max(map(len, words)) > _LONGEST:
            raise ValueError(f"no such step: {step[:_LONGEST]}")
        names = words if step == "link" else words[:1]
        if not all(map(self._name.fullmatch, names)):
            raise ValueError("no name of this conversation")
        if step in _OF_OWN_FILES and words[0] not in self._fds:
            return None
        try:
            found: bool | None = getattr(self, step)(*words)
        except OSError:
            return None
        return found

    def create(self, name: str) -> bool:
        return self._make(name, lambda path: self._fds.update({name: self.env.open_new(path, _MODE)}))

    def link(self, name: str, new: str) -> bool:
        return self._make(new, lambda path: self.env.link(f"{self._directory}/{name}", path))

    def _make(self, name: str, make: Callable[[str], object]) -> bool:
        self._made.append(name)  # before it is there (DP1)
        try:
            make(f"{self._directory}/{name}")
        except OSError as error:
            self._made.remove(name)
            if isinstance(error, FileExistsError):
                return False
            raise
        return True

    def write(self, name: str, text: str) -> bool:
        self.env.write(self._fds[name], text.encode(), 0)
        self.env.sync(self._fds[name])
        return True

    def guard(self, name: str) -> bool | None:
        return self.env.guard(self._fds[name])

    def unguard(self, name: str) -> bool:
        self.env.unguard(self._fds[name])
        return True

    def guarded(self, name: str) -> bool | None:
        return self._with(name, self.env.guarded)

    def reads(self, name: str, text: str) -> bool:
        return bool(self._with(name, lambda fd: self.env.read(fd, _LONGEST + 1) == text.encode()))

    def _with(self, name: str, look: Callable[[int], bool | None]) -> bool | None:
        fd = self.env.open_existing(f"{self._directory}/{name}", write=False)
        try:
            return look(fd) if stat.S_ISREG(self.env.fstat(fd).st_mode) else None
        finally:
            self.env.close(fd)

    # -- messages ------------------------------------------------------------------------------------------------------

    def post(self, name: str, message: Any) -> None:
        self.create(name)
        self.write(name, json.dumps(message) + "\n")

    def names(self) -> list[str]:
        """The names in the directory now (DP3)."""
        turn = self.name("turn")
        if self.create(turn):
            self._remove(turn)
        return self.env.list_directory(self._directory)

    def message(self, name: str) -> Any:
        """The content of a message; None as long as it is not whole."""
        try:
            data = head_of(self.env, f"{self._directory}/{name}", _MOST)
            return json.loads(data) if data.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError):
            return None  # of an OSError: it is not seen yet, or gone again

    def _remove(self, name: str) -> None:
        if name in self._fds:
            self.env.close(self._fds.pop(name))  # first: on Windows, an open file cannot be removed
        try:
            self.env.unlink(f"{self._directory}/{name}")
        except OSError:
            pass
        self._made.remove(name)

    def end(self) -> None:
        for name in [*self._made]:
            self._remove(name)


class Remote:
    """The other side, on another machine: it takes the steps that it is asked for, and answers."""

    def __init__(self, own: View, hello: str, within: float) -> None:
        self._own = own
        self._hello = hello
        self._start = hello.partition(own.talk)[0]
        self._within = within
        self._number = 0

    def name(self, label: str) -> str:
        return f"{self._start}{self._own.talk}-b{label}.tmp"

    def ask(self, step: str, *words: str) -> Tried:
        answer = yield from self._say({"step": step, "words": words})
        return answer if isinstance(answer, bool) else None

    def tell(self, findings: list[Finding]) -> Steps[None]:
        """Send the findings, and wait until they were read."""
        try:
            yield from self._say({"findings": [[getattr(one, name) for name in one._fields] for one in findings]})
        except Silent:
            pass  # it has read it and ended

    def _say(self, message: object) -> Steps[object]:
        self._number += 1
        mark = _letters(self._number)
        self._own.post(f"{self._own.start}{self._own.talk}-m{mark}.tmp", message)
        answer = yield from _receive(self._own, f"{self._start}{self._own.talk}-r{mark}.tmp", self._hello, self._within)
        return answer.get("answer") if isinstance(answer, dict) else None


def _letters(number: int) -> str:
    return f"{chr(97 + number // 26)}{chr(97 + number % 26)}"


def _receive(own: View, name: str, needed: str, within: float) -> Steps[Any]:
    """The message of this name. Silent if none comes, or the file of the other side's presence has gone (DP4)."""
    env = own.env
    pause, until = _SOONEST, env.monotonic() + within
    while True:
        names = own.names()
        found = own.message(name) if name in names else None
        if found is not None:
            return found
        if needed not in names:
            raise Silent("the other side has ended")
        if env.monotonic() >= until:
            raise Silent(f"the other side has not answered within {within:g} s")
        yield Wait((), min(until, env.monotonic() + pause))
        pause = min(_LATEST, pause * 1.5)


# -- who talks to whom -------------------------------------------------------------------------------------------------


def of_mounts(env: Environment, directory: str, other: str) -> Steps[list[Finding]]:
    """Findings between two directories of this machine that should be one."""
    talk = env.token()
    one, two = View(env, directory, talk, "a"), View(env, other, talk, "b")
    try:
        mounts = [env.storage(f"{place}/x") for place in (directory, other)]
        fresh = all(mount.fresh for mount in mounts)
        findings = yield from _tried(one, two, f"{directory} and {other}", fresh=fresh)
        if any(mount.shared for mount in mounts):
            text = f"{directory} and {other} are mounts of one machine"
            findings.insert(0, Finding("between", NOTE, text, _ONE_CLIENT))
        return findings
    finally:
        one.end()
        two.end()


def of_machines(env: Environment, directory: str, host: str, within: float) -> Steps[list[Finding]]:
    """Findings between this machine and another one, which listens. Silent if none of that name does."""
    seeker = View(env, directory, env.token(), "a")
    try:
        hello, said = yield from _sought(seeker, host, within)
    finally:
        seeker.end()
    own = View(env, directory, hello[len(".holdfast-00000000-") :].split("-")[1], "a")
    try:
        remote = Remote(own, hello, within)
        here = env.identity()
        fresh = env.storage(f"{directory}/x").fresh and said.get("fresh") is not False
        findings = yield from _tried(own, remote, f"{here.host} and {said['host']}", fresh=fresh)
        if said.get("boot") == here.boot:
            text = f"{here.host} and {said['host']} are one machine"
            findings.insert(
                0, Finding("between", NOTE, text, "this says nothing about two machines: listen on another")
            )
        yield from remote.tell(findings)
        return findings
    finally:
        own.end()


_HELLO = re.compile(r"\.holdfast-[0-9a-f]{8}-[0-9]{1,10}-[0-9a-f]{16}-listen\.tmp")


def _sought(own: View, host: str, within: float) -> Steps[tuple[str, dict[str, Any]]]:
    """The file of the listener on that host, and its content."""
    env = own.env
    until, others = env.monotonic() + within, set()
    while True:
        for name in filter(_HELLO.fullmatch, own.names()):
            said = own.message(name)
            there = said.get("host") if isinstance(said, dict) else None
            if isinstance(there, str):
                if there.casefold() == host.casefold():
                    return name, said
                others.add(there[:_LONGEST])
        if env.monotonic() >= until:
            known = f"; there are {', '.join(sorted(others))}" if others else ""
            raise Silent(f"{host} does not listen here{known}. Start holdfast doctor DIR --listen there first")
        yield Wait((), min(until, env.monotonic() + _LATEST))


def listen(env: Environment, directory: str, within: float) -> Steps[list[Finding]]:
    """Take the steps that another machine asks for, and return its findings. Silent if none comes."""
    own = View(env, directory, env.token(), "b")
    hello = f"{own.start}{own.talk}-listen.tmp"
    first = re.compile(rf"(\.holdfast-[0-9a-f]{{8}}-[0-9]{{1,10}}-){own.talk}-m{_letters(1)}\.tmp")
    try:
        here, fresh = env.identity(), env.storage(f"{directory}/x").fresh
        own.post(hello, {"host": here.host, "boot": here.boot, "fresh": fresh})
        until = env.monotonic() + within
        while not (asked := [name for name in own.names() if first.fullmatch(name)]):
            if env.monotonic() >= until:
                raise Silent(f"no other machine came within {within:g} s")
            yield Wait((), min(until, env.monotonic() + _LATEST))
        start, number = asked[0].partition(own.talk)[0], 0
        while True:
            number += 1
            mark = _letters(number)
            message = yield from _receive(own, f"{start}{own.talk}-m{mark}.tmp", asked[0], within)
            if "findings" in message:
                return _findings(message["findings"])
            own.post(f"{own.start}{own.talk}-r{mark}.tmp", {"answer": own.do(message["step"], tuple(message["words"]))})
    except (ValueError, TypeError, KeyError) as error:
        raise Silent(f"what the other side asks for makes no sense ({error})") from error
    finally:
        own.end()


def _findings(told: Any) -> list[Finding]:
    found = []
    for name, level, text, means in told:
        if level not in LEVELS or not all(isinstance(word, str) for word in (name, text, means)):
            raise ValueError("no finding")
        found.append(Finding(name, level, text, means))
    return found


# -- the trials --------------------------------------------------------------------------------------------------------


def _tried(one: View | Remote, two: View | Remote, who: str, *, fresh: bool) -> Steps[list[Finding]]:
    """Findings between the two. They have a file each, which the trials use. `fresh`: by the mount options (DP3)."""
    both = ((one, two), (two, one))
    created = []
    for mine, theirs in both:
        made = yield from mine.ask("create", mine.name("new"))
        yield from mine.ask("write", mine.name("new"), "1")
        seen = yield from theirs.ask("reads", mine.name("new"), "1")
        again = yield from theirs.ask("create", mine.name("new"))
        created.append((made, again, seen))
    if not any(again is False or seen for _, again, seen in created):
        if any(made is not True for made, _, _ in created):
            text, means = f"{who} cannot both create a file", "choose a directory that both may write to"
        else:
            text = f"{who}: a file that one creates does not exist for the other"
            means = "they are different directories: a lock file in one is not seen in the other"
        return [Finding("between", UNUSABLE, text, means)]
    found = [Finding("between", GOOD, f"{who} share one directory"), _of_creation(created)]
    links, guards, reads = [], [], []
    for mine, theirs in both:
        links.append((yield from _links(mine, theirs)))
        guards.append((yield from _guards(mine, theirs)))
        reads.append((yield from _fresh(mine, theirs)))
    return [*found, _of_links(_worst(links)), _of_guards(_worst(guards)), _of_fresh(_worst(reads), fresh)]


def _worst(results: list[bool | None]) -> bool | None:
    return False if False in results else None if None in results else True


def _links(mine: View | Remote, theirs: View | Remote) -> Tried:
    made = yield from mine.ask("link", mine.name("new"), mine.name("link"))
    again = yield from theirs.ask("link", theirs.name("new"), mine.name("link"))
    return None if made is not True or again is None else not again


def _guards(mine: View | Remote, theirs: View | Remote) -> Tried:
    held = yield from mine.ask("guard", mine.name("new"))
    seen = yield from theirs.ask("guarded", mine.name("new"))
    yield from mine.ask("unguard", mine.name("new"))
    after = yield from theirs.ask("guarded", mine.name("new"))
    return None if held is not True or None in (seen, after) else bool(seen and not after)


def _fresh(mine: View | Remote, theirs: View | Remote) -> Tried:
    yield from theirs.ask("reads", mine.name("new"), "1")  # it may be remembered from now on
    written = yield from mine.ask("write", mine.name("new"), "2")
    seen = yield from theirs.ask("reads", mine.name("new"), "2")
    return None if written is not True else seen


def _of_creation(created: list[tuple[bool | None, bool | None, bool | None]]) -> Finding:
    name = "creation between"
    if any(again is True for _, again, _ in created):
        means = "two processes can hold the lock at once: no lock file of any implementation is safe between the two"
        return Finding(name, UNUSABLE, "a file that one has created, the other can create again", means)
    if any((made, again) != (True, False) for made, again, _ in created):
        return Finding(name, WEAKER, "one of the two may not create files", "it cannot acquire a lock there")
    return Finding(name, GOOD, "a file that one has created, the other cannot create")


def _of_links(works: bool | None) -> Finding:
    if works:
        return Finding("links between", GOOD, "of two links to one name, only the first succeeds")
    if works is None:
        means = "lock files are published by exclusive creation"
        return Finding("links between", NOTE, "no hard links can be made", means)
    means = "two contenders may take over the same dead holder's lock: use another filesystem, or a server"
    return Finding("links between", UNUSABLE, "both can link to one name", means)


def _of_guards(works: bool | None) -> Finding:
    if works:
        return Finding("guard between", GOOD, "each sees the other's kernel lock (flock), and its release")
    text = "one does not see the other's kernel locks (flock)"
    if works is None:
        text = "no kernel lock (flock) can be acquired"
    means = "-p flock does not exclude between the two, and a dead holder's lock counts as held until its stale age"
    return Finding("guard between", WEAKER, text, means)


def _of_fresh(works: bool | None, fresh: bool) -> Finding:
    if works and fresh:
        return Finding("freshness between", GOOD, "a file that one opened showed what the other had just written")
    text = "a file that one opens may show its old content"
    if works:
        text += ", by the mount options; tried once, it did not"
    means = "a record or a heartbeat may be seen late: mount it so that an open asks the server (docs/platforms.md)"
    return Finding("freshness between", WEAKER, text, means)
