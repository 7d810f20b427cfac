"""Git: `X.lock` beside a file of a repository that a command is about to replace (`index.lock`, `HEAD.lock`, a ref's).

Git makes it exclusively, writes the new content into it, and renames it over `X`, or removes it. It does not say whose
it is, and is not always open: `git commit -a` closes `index.lock` before it starts the editor. So the holder is who has
it open, or else a git command that works in that repository. Git never removes another one's.
"""

from __future__ import annotations

from .base import LEFTOVER, Kind, Sighting, Verdict, View, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_FILES = frozenset(
    """
    index HEAD config config.worktree packed-refs shallow FETCH_HEAD ORIG_HEAD MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD
    REBASE_HEAD AUTO_MERGE MERGE_RR COMMIT_EDITMSG gc.pid description commit-graph multi-pack-index alternates
    sparse-checkout commit-graph-chain tables.list
    """.split()  # noqa: SIM905 - a list that is read more easily so
)
_BELOW = ("refs", "logs", "objects", "info", "reftable")
_LOOKERS = frozenset(
    [
        "cat-file",
        "log",
        "show",
        "blame",
        "grep",
        "shortlog",
        "daemon",
        "fsmonitor--daemon",
        "credential-cache--daemon",
        "http-backend",
        "upload-pack",
    ]
)
"""Commands that may run for days, and take no lock."""
_PROGRAMS = ("git", "git-receive-pac")
"""As the kernel calls them, in 15 letters: what a push starts on a server has a name of its own."""
_VALUED = frozenset(
    ["-C", "-c", "--attr-source", "--config-env", "--git-dir", "--namespace", "--shallow-file", "--super-prefix",
     "--work-tree"]
)  # fmt: skip
"""Options of git itself whose value is the next word."""
_ADVICE = (
    "Make sure that no git command and no editor or IDE works in this repository, in a container or on another machine "
    "either; then rm -f {path}, and look at git status. What that command was about to change is as it was before"
)


class Git(Kind):
    name = "git"

    def look(self, view: View) -> Sighting | None:
        directory = _directory(view) if view.is_file else None
        if directory is None:
            return None
        writers = view.openers()
        verdict = view.of_openers(writers) if writers else _by_work(view, directory)
        if verdict.condition == LEFTOVER:
            reason = "interrupted: git has left it, and refuses to change that file until it is removed"
            return view.sighting(self.name, verdict, reason, _ADVICE.format(path=quoted(view.path)), refused=True)
        advice = f"Wait until that command has ended (holdfast wait {quoted(view.path)})"
        if verdict.holders and not writers:
            advice += "; an editor may be open for a commit message"
        return view.sighting(self.name, verdict, "git makes others wait, or refuses, as long as it exists", advice)

    def reserves(self, view: View) -> bool:
        return _directory(view) is not None


def _directory(view: View) -> str | None:
    """The git directory that the lock is in."""
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
    """By the git commands that work in the repository, and were started before the lock was written."""
    places = [directory, *([directory.rpartition("/")[0]] if directory.endswith("/.git") else [])]
    link = view.data(f"{directory}/gitdir").decode("utf-8", "replace").strip()  # of a worktree of its own
    if link.endswith("/.git"):
        places.append(link.removesuffix("/.git"))
    known = {_number(view, place) for place in places} - {None}
    working = [pid for pid in view.files.running(_PROGRAMS) if _may_hold(view, pid) and _works_in(view, pid, known)]
    if working:
        return view.of_openers(working, "works in this repository, and was there before it was written")
    return view.of_nobody("no git command has it open, or works in this repository")


def _may_hold(view: View, pid: int) -> bool:
    since = view.env.inspect(pid).since
    program = view.env.program(pid)
    looks = program is not None and subcommand(program[1]) in _LOOKERS
    return not looks and (since is None or since <= view.found.st_mtime + 1.0)


def subcommand(words: Sequence[str]) -> str:
    """The command of git in a command line; a message, a path or a branch may be called like another one."""
    rest = iter(words[1:])
    for word in rest:
        if word in _VALUED:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return ""


def _works_in(view: View, pid: int, known: set[tuple[int, int] | None]) -> bool:
    """Whether the next repository above its working directory is this one."""
    at = view.files.directory(pid)
    while at and not view.env.may_block(f"{at}/x"):
        if _number(view, at) in known:
            return True
        if view.is_there(f"{at}/.git"):
            return False
        at = at.rpartition("/")[0]
    return False


def _number(view: View, directory: str) -> tuple[int, int] | None:
    found = view.stat(f"{directory}/.")
    return None if found is None else (found.st_dev, found.st_ino)
