"""The content of a page of the documentation: its blocks of code, and what to do with each.

README.md, "Pages", has the rules. A breach of one is a `PageError` with the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

RUN = frozenset({"python", "console", "sh", "js", "sql"})
PARSED = frozenset({"json", "toml", "yaml", "ini"})
PLAIN = frozenset({"text", "diff"})
FOREIGN = frozenset({"c", "crontab", "dockerfile", "go", "html", "makefile", "nix", "rust", "typescript"})
"""Languages that nothing here runs: a block in one is written into a file, or says why it is not run."""

NEEDS = frozenset({"postgresql", "etcd", "redis", "go", "node", "rust", "fs-safe", "proper-lockfile"})

_FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,})\s*(?P<language>[^\s`]*)[^`]*")
_DIRECTIVE = re.compile(r"\s*<!--\s*(?P<name>file|needs|not run|new session|output|leaves running)\b(?P<rest>.*)-->\s*")
_HIDDEN = re.compile(r"\s*<!--\s*hidden:\s*(?P<language>\S+)\s*")
_WHOLE = frozenset({"new session", "leaves running"})
"""Directives about the session or the following blocks, not about one block."""


class PageError(Exception):
    """The page breaks a rule; the text says where."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}")


@dataclass(frozen=True)
class Block:
    """A block of code. `line` is the number of its first line of code, counted from 1."""

    line: int
    language: str
    text: str
    hidden: bool = False
    file: str = ""
    needs: tuple[str, ...] = ()
    not_run: str = ""
    is_output: bool = False


@dataclass
class Session:
    """Blocks that share a directory, a shell and an interpreter. `may_leave` says why processes stay behind."""

    blocks: list[Block] = field(default_factory=list)
    may_leave: str = ""


def pages() -> list[Path]:
    """Every page for readers."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    return sorted([*found, ROOT / "bench" / "README.md", ROOT / "tests" / "README.md"])


def sessions(text: str) -> list[Session]:
    """The sessions of a page, in order; those without a block are left out."""
    made = [Session()]
    pending: dict[str, str] = {}
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if directive := _DIRECTIVE.fullmatch(line):
            _heed(directive["name"], directive["rest"], at, made, pending)
        elif hidden := _HIDDEN.fullmatch(line):
            end = next((i for i in range(at, len(lines)) if lines[i].strip() == "-->"), None)
            if end is None:
                raise PageError(at, "a hidden block has no end: a line that is -->")
            made[-1].blocks.append(_block(at + 1, hidden["language"], lines[at:end], pending, hidden=True))
            at = end + 1
        elif fence := _FENCE.fullmatch(line):
            end = next((i for i in range(at, len(lines)) if _ends(lines[i], fence["fence"])), None)
            if end is None:
                raise PageError(at, "a fence has no end")
            inner = [each.removeprefix(fence["indent"]) for each in lines[at:end]]
            made[-1].blocks.append(_block(at + 1, fence["language"], inner, pending))
            at = end + 1
        elif pending and line.strip():
            raise PageError(at, f"no block follows the directive {next(iter(pending))!r}")
    if pending:
        raise PageError(at, f"no block follows the directive {next(iter(pending))!r}")
    return [session for session in made if session.blocks]


def _heed(name: str, rest: str, line: int, made: list[Session], pending: dict[str, str]) -> None:
    value = rest.strip().removeprefix(":").strip()
    if not value and name not in ("new session", "output"):
        raise PageError(line, f"{name!r} needs words after a colon" + (": the reason" if name == "not run" else ""))
    if name == "new session":
        made.append(Session())
    elif name == "leaves running":
        made[-1].may_leave = value
    else:
        pending[name] = value or "yes"


def _ends(line: str, fence: str) -> bool:
    closing = line.strip()
    return len(closing) >= len(fence) and set(closing) == {fence[0]}


def _block(line: int, language: str, lines: list[str], pending: dict[str, str], hidden: bool = False) -> Block:
    block = Block(
        line,
        language,
        "\n".join(lines) + "\n",
        hidden,
        file=pending.get("file", ""),
        needs=tuple(re.split(r"[,\s]+", pending["needs"])) if "needs" in pending else (),
        not_run=pending.get("not run", ""),
        is_output="output" in pending,
    )
    pending.clear()
    _check(block)
    return block


def _check(block: Block) -> None:
    known = RUN | PARSED | PLAIN | FOREIGN
    if not block.language:
        raise PageError(block.line - 1, "a fence without a language; `text` is for what is no code")
    if block.language not in known:
        raise PageError(block.line - 1, f"unknown language {block.language!r}; known: {' '.join(sorted(known))}")
    if block.language in FOREIGN and not (block.file or block.not_run):
        raise PageError(block.line - 1, f"nothing runs {block.language}: say `file: NAME`, or `not run: REASON`")
    if unknown := set(block.needs) - NEEDS:
        raise PageError(block.line - 1, f"needs {', '.join(sorted(unknown))}? known: {' '.join(sorted(NEEDS))}")
    if block.language == "sql" and "postgresql" not in block.needs and not block.not_run:
        raise PageError(block.line - 1, "sql is only run with `needs: postgresql`")
    if block.is_output and block.language != "text":
        raise PageError(block.line - 1, "only a block of `text` can be an output")


@dataclass(frozen=True)
class Command:
    """A command of a `console` block, and the wanted output; None if none is shown."""

    line: int
    text: str
    wanted: str | None


def commands(block: Block) -> list[Command]:
    """The `$ command` lines of a block, each with the output below it."""
    found: list[Command] = []
    text: list[str] = []
    shown: list[str] = []
    start = 0

    def end() -> None:
        if text:
            while shown and not shown[-1].strip():
                shown.pop()
            found.append(Command(start, "\n".join(text), "\n".join(shown) if shown else None))
            text.clear()
            shown.clear()

    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ ") or line == "$":
            end()
            start = number
            text.append(line[2:])
        elif text and not shown and text[-1].endswith("\\"):
            text.append(line.removeprefix("> "))
        elif text and not shown and (line.startswith("> ") or line == ">"):
            text.append(line[2:])
        elif text:
            shown.append(line)
        elif line.strip():
            raise PageError(number, "a console block begins with a command: `$ ` and what is typed")
    end()
    return found
