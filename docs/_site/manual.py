"""Manual pages, from what `--help` is made of.

    manual.py DIRECTORY

Writes holdfast.1 and a page for each command. Run by `make man`, and when the package is built.
"""

from __future__ import annotations

import argparse
import os
import re
import sys

from holdfast import __version__
from holdfast.cli.completion import TOP, Command, commands
from holdfast.cli.parser import STATUS, overview_of

_MAIN = ("run", "try", "release", "status", "ls")
"""What every page points to."""
_ENVIRONMENT = {
    "HOLDFAST_OS": "with the value generic, use portable Python only; with posix, what macOS and the BSDs have",
    "PGPASSFILE": "where passwords for PostgreSQL are, instead of in a URL; the other PG variables count as well",
    "HOLDFAST_WITHOUT": "abilities to do without, separated by commas: unnamed, proc, link, flock, events",
    "HOLDFAST_ETCD_PASSWORD": "the password for etcd, instead of in a URL",
}


def pages() -> dict[str, str]:
    """Each page's file name, and its text for troff."""
    found = commands()
    made = {"holdfast.1": _overview(found)}
    made.update({f"{_page(command)}.1": _of_command(command, found) for command in found})
    return made


def _page(command: Command) -> str:
    return f"holdfast-{command.name.replace(' ', '-')}"


def _overview(found: list[Command]) -> str:
    parser = overview_of()
    rows = [_item(rf"\fB{_escaped(_page(command))}\fR(1)", command.summary) for command in found]
    more = [_item(rf"\fB{_escaped(name)}\fR", text) for name, text in _ENVIRONMENT.items()]
    return "\n".join(
        [
            _head("holdfast", parser.description or ""),
            _section("SYNOPSIS", r"\fBholdfast\fR [\fB\-h\fR] [\fB\-V\fR] \fICOMMAND\fR ..."),
            _section("DESCRIPTION", _text(parser.description or "")),
            _section("COMMANDS", "\n".join(rows)),
            _section("OPTIONS", "\n".join(_item(_flags(option.flags, None), option.help) for option in TOP)),
            _section("PROTOCOLS", _text(_protocols(parser))),
            _section("ENVIRONMENT", "\n".join(more)),
            _section("SEE ALSO", _also([*map(_page, found), "flock"])),
            "",
        ]
    )


def _protocols(parser: argparse.ArgumentParser) -> str:
    whole = parser.format_help()
    return whole[whole.index("protocols (-p):") :].partition("\n\n`")[0].partition("\n")[2]


def notes_of(command: Command) -> tuple[str, str]:
    """What is to be known about it (the commands of its own, for one that has a text), and what its status says."""
    if not command.text:
        notes, _, status = command.notes.partition(STATUS)
        return notes, status
    text, _, status = command.text.partition("Exit status: ")
    return text.partition("Commands:\n")[2].partition("\n\nOptions:")[0], status


def _of_command(command: Command, found: list[Command]) -> str:
    notes, status = notes_of(command)
    parts = [_head(_page(command), command.summary), _section("SYNOPSIS", _usage(command))]
    parts.append(
        _section("DESCRIPTION", _text(command.description or f"{command.summary[0].upper()}{command.summary[1:]}."))
    )
    operands = [_item(rf"\fI{_escaped(name)}\fR", help_) for name, help_ in command.operands]
    options = [_item(_flags(option.flags, option.metavar), option.help) for option in command.options]
    if operands:
        parts.append(_section("OPERANDS", "\n".join(operands)))
    parts.append(_section("OPTIONS", "\n".join(options)))
    if command.text:
        parts.append(_section("COMMANDS", _text(notes)))
    elif notes.strip():
        parts.append(_section("NOTES", _text(notes)))
    if command.examples:
        parts.append(_section("EXAMPLES", _text("\n".join(f"  {line}" for line in command.examples))))
    if status:
        parts.append(_section("EXIT STATUS", _text(status)))
    others = [_page(other) for other in found if other.name in _MAIN and other is not command]
    parts.append(_section("SEE ALSO", _also(["holdfast", *others])))
    return "\n".join([*parts, ""])


def _head(name: str, summary: str) -> str:
    title = _escaped(name.upper())
    return (
        f'.TH "{title}" "1" "" "holdfast {__version__}" "User Commands"\n'
        f".nh\n.SH NAME\n{_escaped(name)} \\- {_escaped(summary[0].lower() + summary[1:].rstrip('.'))}"
    )


def _section(title: str, body: str) -> str:
    return f".SH {title}\n{body}"


def _usage(command: Command) -> str:
    words = command.usage.split()
    count = 1 + len(command.name.split())
    rest = " ".join(_escaped(word) for word in words[count:])
    return rf"\fB{_escaped(' '.join(words[:count]))}\fR {rest}"


def _item(term: str, text: str) -> str:
    return f".TP\n{term}\n{_escaped(text)}"


def _flags(flags: tuple[str, ...], metavar: str | None) -> str:
    value = rf" \fI{_escaped(metavar)}\fR" if metavar else ""
    return ", ".join(rf"\fB{_escaped(flag)}\fR{value}" for flag in flags)


def _also(names: list[str]) -> str:
    return ",\n".join(rf"\fB{_escaped(name)}\fR(1)" for name in names)


def _text(text: str) -> str:
    """Paragraphs; what is indented or comes in columns keeps its lines."""
    made = []
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        lines = [_escaped(line) for line in paragraph.splitlines()]
        if any(line.startswith("  ") for line in paragraph.splitlines()):
            made.append(".PP\n.nf\n" + "\n".join(lines) + "\n.fi")
        else:
            made.append(".PP\n" + "\n".join(lines))
    return "\n".join(made).removeprefix(".PP\n")


def _escaped(text: str) -> str:
    """Text that troff takes for nothing but text."""
    text = (
        text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga").replace("^", "\\(ha")
    )
    text = text.replace("~", "\\(ti").encode("ascii", "xmlcharrefreplace").decode()
    text = re.sub(r"&#(\d+);", lambda number: f"\\[u{int(number[1]):04X}]", text)
    return f"\\&{text}" if text.startswith(".") else text


def write(directory: str) -> None:
    """Write all pages, and nothing else, into a directory that need not be there."""
    os.makedirs(directory, exist_ok=True)
    for name, text in pages().items():
        with open(os.path.join(directory, name), "w", encoding="ascii", newline="\n") as file:
            file.write(text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: manual.py DIRECTORY")
    write(sys.argv[1])
