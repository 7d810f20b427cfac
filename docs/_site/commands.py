"""The reference of the command line, from what `--help` and the manual pages are made of.

A default is what the help of an option says in its brackets. `VALUES` has what `--help` has no room for: what stands
for the value of an option, its unit, and an example.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from manual import notes_of

from holdfast.cli.completion import TOP, Command, Option, commands
from holdfast.cli.parser import overview_of

VALUES = {
    "DURATION": ("seconds, or numbers with the units ms, s, m (or min), h, d; `inf`: forever", "-w 1h30m"),
    "N": ("a whole number: `-E` from 0 to 255, `--slots` from 1 to 1000", "--slots 4"),
    "TEXT": ("one line of text", '-t "deploy v1.2.3"'),
    "LINE": ("a line for `/bin/sh`, as one argument", "-c 'git pull && make'"),
    "FILE": ("a path; what is there already is kept, and new lines are appended", "--record events.jsonl"),
    "PAGE": ("the path of the page to write; `-` is stdout", "-o page.html"),
    "OCTAL": ("permission bits in octal digits", "--mode 660"),
    "PID": ("the number of a process", "--owner-pid $$"),
    "NAME": ("a name: of a protocol, a tool or a schema", "-p flock"),
    "JSON": ("a JSON object, as one argument", """--payload '{"job": "nightly"}'"""),
    "START:LENGTH": ("bytes of the file", "--range 0:512"),
    "YES": ("`yes` or `no`", "--realpath no"),
    "KEY": ("a column to sort by", "--sort age"),
    "ID": ("the id of an acquisition, from `holdfast status`", "--id 83e6a6b34b1a"),
    "ROLE": ("a role of the database", "--grant deploy"),
    "DIR2": ("a directory", "--peer /mnt/two"),
    "HOST": ("the name of a machine", "--with alpha"),
    "S": ("seconds, a whole number", "--timeout 60"),
    "STR": ("one line of text", "--tag nightly"),
    "text": ("one line of text", "--tag nightly"),
    "ms": ("milliseconds, a whole number", "--timeout 1500"),
}
"""What stands for the value of an option: what it is, with its unit, and an example."""
_DEFAULT = re.compile(r"\s*\(default: ([^()]*)\)")
_STATUS = re.compile(r"(\d+(?:, \d+)*) (.*)")


def reference() -> str:
    """A section for each command, in the order of the overview."""
    found = commands()
    rows = [f"| [`holdfast {each.name}`](#{_anchor(each)}) | {_cell(each.summary)} |" for each in found]
    parts = [
        overview_of().description or "",
        "| command | does |\n|---|---|\n" + "\n".join(rows),
        _options(TOP),
        "## Values of options",
        "An option that takes a value shows it in capitals. `--name VALUE` and `--name=VALUE` mean the same.",
        _table("value", "is", "example", rows=[(f"`{name}`", *row) for name, row in _values().items()]),
        *map(_section, found),
    ]
    return "\n\n".join(parts)


def _values() -> dict[str, tuple[str, str]]:
    return {name: (_cell(text), f"`{example}`") for name, (text, example) in VALUES.items()}


def _anchor(command: Command) -> str:
    return f"holdfast-{command.name.replace(' ', '-')}"


def _section(command: Command) -> str:
    notes, status = notes_of(command)
    description = command.description or f"{command.summary[0].upper()}{command.summary[1:]}."
    parts = [f"## holdfast {command.name}", f"```text\n{' '.join(command.usage.split())}\n```", _prose(description)]
    if command.examples:
        parts += ["For example:", "```text\n" + "\n".join(command.examples) + "\n```"]
    if command.operands:
        parts.append(_table("operand", "", rows=[(f"`{name}`", _cell(help_)) for name, help_ in command.operands]))
    parts.append(_options(command.options))
    if command.text and notes.strip():
        parts.append(f"```text\n{notes.rstrip()}\n```")
    else:
        parts.append(_prose(notes))
    if status:
        parts.append(_statuses(" ".join(status.split())))
    return "\n\n".join(filter(None, parts))


def _options(options: Iterable[Option]) -> str:
    rows = [(_flags(option), _cell(default_of(option)), _cell(_DEFAULT.sub("", option.help))) for option in options]
    return _table("option", "default", "does", rows=rows)


def default_of(option: Option) -> str:
    """As its help says. Where that says nothing, a switch is off, and another option has no value."""
    found = _DEFAULT.search(option.help)
    if found or "--help" in option.flags or "--version" in option.flags:
        return found[1] if found else ""
    return "none" if option.metavar else "off"


def _flags(option: Option) -> str:
    value = f" {option.metavar}" if option.metavar else ""
    return ", ".join(f"`{flag}{value}`" for flag in option.flags)


def _statuses(text: str) -> str:
    """A row for each number, and one for all others; what is said besides stands below."""
    text, _, after = text.partition(". ")
    rows = []
    for part in text.rstrip(".").split("; "):
        found = _STATUS.fullmatch(part)
        rows.append((found[1], _cell(found[2])) if found else ("other", _cell(part.removeprefix("otherwise "))))
    rows.sort(key=lambda row: row[0] == "other")
    return f"{_table('exit status', '', rows=rows)}\n\n{_escaped(after)}".rstrip()


def _table(*head: str, rows: Iterable[tuple[str, ...]]) -> str:
    made = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in made)


def _prose(text: str) -> str:
    """Paragraphs; what is indented or comes in columns keeps its lines."""
    made = []
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        lines = paragraph.splitlines()
        first = next((number for number, line in enumerate(lines) if line.startswith("  ")), len(lines))
        made.append(_escaped("\n".join(lines[:first])))
        if first < len(lines):
            made.append("```text\n" + "\n".join(lines[first:]) + "\n```")
    return "\n\n".join(filter(None, made))


def _cell(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", _escaped(text))  # a bar in a span of code ends no cell
    return "".join(part if part.startswith("`") else part.replace("|", "&#124;") for part in parts)


def _escaped(text: str) -> str:
    """Text that Markdown takes for nothing but text; what is in backticks stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[\\])", r"\\\1", part) for part in parts)
