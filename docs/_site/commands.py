"""The reference of the command line, from what `--help` and the manual pages are made of."""

from __future__ import annotations

import re

from holdfast.cli.completion import TOP, Command, Option, commands
from holdfast.cli.manual import notes_of
from holdfast.cli.parser import overview_of


def reference() -> str:
    """A section for each command, in the order of the overview."""
    found = commands()
    rows = [f"| [`holdfast {each.name}`](#{_anchor(each)}) | {_cell(each.summary)} |" for each in found]
    parts = [
        overview_of().description or "",
        "| command | does |\n|---|---|\n" + "\n".join(rows),
        _table("option", [(_flags(option), option.help) for option in TOP]),
        *map(_section, found),
    ]
    return "\n\n".join(parts)


def _anchor(command: Command) -> str:
    return f"holdfast-{command.name.replace(' ', '-')}"


def _section(command: Command) -> str:
    notes, status = notes_of(command)
    description = command.description or f"{command.summary[0].upper()}{command.summary[1:]}."
    parts = [f"## holdfast {command.name}", f"```text\n{' '.join(command.usage.split())}\n```", _prose(description)]
    if command.operands:
        parts.append(_table("operand", [(f"`{name}`", help_) for name, help_ in command.operands]))
    parts.append(_table("option", [(_flags(option), option.help) for option in command.options]))
    if command.text and notes.strip():
        parts.append(f"```text\n{notes.rstrip()}\n```")
    else:
        parts.append(_prose(notes))
    if status:
        parts.append(f"**Exit status**: {_escaped(' '.join(status.split()))}")
    return "\n\n".join(filter(None, parts))


def _flags(option: Option) -> str:
    value = f" {option.metavar}" if option.metavar else ""
    return ", ".join(f"`{flag}{value}`" for flag in option.flags)


def _table(head: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {term.replace('|', '&#124;')} | {_cell(text)} |" for term, text in rows]
    return "\n".join([f"| {head} | |", "|---|---|", *lines])


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
    return _escaped(text).replace("|", "&#124;")


def _escaped(text: str) -> str:
    """Text that Markdown takes for nothing but text; what is in backticks stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[\\])", r"\\\1", part) for part in parts)
