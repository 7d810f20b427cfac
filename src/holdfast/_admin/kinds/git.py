"""Git: `X.lock` beside a file of a repository that a command is about to replace (`index.lock`, `HEAD.lock`, a ref's).

Git makes it exclusively, writes the new content into it, and renames it over `X`, or removes it. The file does not name
its holder, and is not always open: `git commit -a` closes `index.lock` before it starts the editor. So the holder is
the process that has it open, or else a git command that works in that repository. Git never removes the lock of another
process.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from os.path import join

from ..._core.messages import quoted
from ..found import LEFTOVER, Found
from .base import Verdict, View

_FILES = frozenset(
    """
    index HEAD config config.worktree packed-refs shallow FETCH_HEAD ORIG_HEAD MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD
    REBASE_HEAD AUTO_MERGE MERGE_RR COMMIT_EDITMSG gc.pid description commit-graph multi-pack-index alternates
    sparse-checkout commit-graph-chain tables.list
    """.split()  # noqa: SIM905 - a list that is read more easily so
)
_BELOW = ("refs", "logs", "objects", "info", "reftable")
_LOOKERS = frozenset(
    ["cat-file", "log", "show", "blame", "grep", "shortlog", "daemon", "fsmonitor--daemon", "credential-cache--daemon",
     "http-backend", "upload-pack"]
)  # fmt: skip
"""Commands that may run for days, and take no lock."""
_PROGRAMS = ("git", "git-receive-pac")
"""The programs' names, of which the kernel keeps 15 letters: what a push starts on a server has a name of its own."""
_VALUED = frozenset(
    ["-C", "-c", "--attr-source", "--config-env", "--git-dir", "--namespace", "--shallow-file", "--super-prefix",
     "--work-tree"]
)  # fmt: skip
"""Options of git itself whose value is the next word."""
_ADVICE = (
    "Make sure that no git command and no editor or IDE works in this repository, in a container or on another machine "
    "either; then rm -f {path}, and look at git status. The file that this lock protects is unchanged"
)


def look(view: View) -> Found | None:
    directory = _directory(view) if view.is_file else None
    if directory is None:
        return None
    writers = view.openers()
    verdict = view.of_openers(writers) if writers else _by_work(view, directory)
    if verdict.condition == LEFTOVER:
        reason = "interrupted: git has left it, and refuses to change that file until it is removed"
        return view.described(verdict, reason, _ADVICE.format(path=quoted(view.path)), refuses=True)
    advice = f"Wait until that command has ended (holdfast wait {quoted(view.path)})"
    if verdict.holders and not writers:
        advice += "; an editor may be open for a commit message"
    return view.described(verdict, "other git commands wait, or refuse, as long as it exists", advice)


def reserves(view: View) -> bool:
    return _directory(view) is not None


def _directory(view: View) -> str | None:
    """The git directory that the lock is in; None if it is in none."""
    parts = view.where.split("/")
    below = next((number for number, part in enumerate(parts) if number and part in _BELOW), None)
    if below is None and view.name.removesuffix(".lock") not in _FILES:
        return None
    for directory in dict.fromkeys(("/".join(parts[:below]), view.where)):
        has = view.is_there(f"{directory}/HEAD") or view.name == "HEAD.lock"
        whole = view.is_there(f"{directory}/objects", f"{directory}/refs")
        if has and (whole or view.is_there(f"{directory}/commondir")):
            return directory
    return None


def _by_work(view: View, directory: str) -> Verdict:
    """The verdict by the git commands that work in the repository, and were started before the lock was written."""
    known = {_number(view, directory)} - {None}
    working = [pid for pid in view.files.running(_PROGRAMS) if _may_hold(view, directory, pid, known)]
    if working:
        return view.of_openers(working, "works in this repository, and was there before it was written")
    return view.of_nobody("no git command has it open, or works in this repository")


def _may_hold(view: View, directory: str, pid: int, known: set[tuple[int, int] | None]) -> bool:
    since = view.env.inspect(pid).since
    if since is not None and since > view.found.st_mtime + 1.0:
        return False
    program = view.env.program(pid)
    command, given = read_line(() if program is None else program[1])
    if command in _LOOKERS:
        return False
    given = given or view.files.variable(pid, "GIT_DIR")
    found = _repository_of(view, pid, given, common=_is_common(view, directory))
    return bool(known & found) or (bool(given) and found == {None})  # it was started where its path leads to one


def read_line(words: Sequence[str]) -> tuple[str, str]:
    """The git command in a command line, and the git directory that it names; empty if there is none. A message, a path
    or a branch may be called like another command."""
    rest, directory = iter(words[1:]), ""
    for word in rest:
        option, equals, value = word.partition("=")
        if not word.startswith("-"):
            return word, directory
        if option in _VALUED and not equals:
            value = next(rest, "")
        if option == "--git-dir":
            directory = value
    return "", directory


def _is_common(view: View, directory: str) -> bool:
    """Whether all worktrees of the repository share the locked file."""
    return view.where != directory or view.name in ("config.lock", "packed-refs.lock", "shallow.lock", "gc.pid.lock")


def _repository_of(view: View, pid: int, given: str, *, common: bool) -> set[tuple[int, int] | None]:
    """The git directory that a command works with: the one that it was given, or the next one above its working
    directory. `common`: also the one that this shares with other worktrees."""
    at = view.files.directory(pid)
    if given and at:
        return _numbers(view, join(at, given), common=common)
    while at and not view.env.may_block(f"{at}/x"):
        inner = f"{at}/.git"
        found = view.stat(inner)
        if found is not None and not stat.S_ISREG(found.st_mode):
            return _numbers(view, inner, common=common)
        if found is not None:  # of a submodule, a worktree, or a git directory elsewhere
            path = _line(view.data(inner)).partition("gitdir: ")[2]
            return _numbers(view, join(at, path), common=common)
        if view.is_there(f"{at}/HEAD", f"{at}/objects", f"{at}/refs") or view.is_there(f"{at}/HEAD", f"{at}/commondir"):
            return _numbers(view, at, common=common)
        at = at.rpartition("/")[0]
    return set()


def _line(data: bytes) -> str:
    """A line as git reads it, for which a path ends with a NUL."""
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape").strip()


def _numbers(view: View, directory: str, *, common: bool) -> set[tuple[int, int] | None]:
    if view.env.may_block(f"{directory}/x"):
        return set()
    found = {_number(view, directory)}
    path = _line(view.data(f"{directory}/commondir")) if common else ""
    if path:
        found.add(_number(view, join(directory, path)))
    return found


def _number(view: View, directory: str) -> tuple[int, int] | None:
    found = view.stat(f"{directory}/.")
    return None if found is None else (found.st_dev, found.st_ino)
