"""Lines and branches that no test reaches, as `unreached.toml` names them.

A name is `FILE | FUNCTION | TEXT`, so that it stays true when lines move: the file below `src/holdfast`, the function
with its class (`Hub.read`; `-` for code of the module itself), and the text of the line. Of several lines with one text
in a function, `TEXT #2` is the second. A branch that is never taken, between two lines that are reached, is
`TEXT -> TEXT OF THE OTHER`, or `TEXT -> exit` where it leaves the function. `FILE | FUNCTION` is all of its lines.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
NAMES = Path(__file__).with_name("unreached.toml")

Place = int | tuple[int, int]
"""A line, or a branch from one to another; a negative number is the exit of the function."""


class Group(NamedTuple):
    """Names with one reason."""

    reason: str
    names: list[str]
    sometimes: bool
    """Whether a run may reach them: that depends on the outcome of a race, or on the version of Python."""


class Module:
    """The lines of a module, by function and text."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.lines = text.splitlines()
        self.functions = ["-"] * (len(self.lines) + 1)
        """The function of each line, counted from 1."""
        self._find(ast.parse(text), "")

    def _find(self, node: ast.AST, within: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = within
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{within}.{child.name}" if within else child.name
                if not isinstance(child, ast.ClassDef):
                    self._mark(child.body[0].lineno, child.body[-1].end_lineno or 0, name)
            self._find(child, name)

    def _mark(self, first: int, last: int, name: str) -> None:
        for line in range(first, last + 1):
            self.functions[line] = name

    def text(self, line: int) -> str:
        """The text of a line, and its number among the lines with that text in its function."""
        text, function = self.lines[line - 1].strip(), self.functions[line]
        same = [n for n, other in enumerate(self.lines, 1) if other.strip() == text and self.functions[n] == function]
        return text if len(same) == 1 else f"{text} #{same.index(line) + 1}"

    def name(self, place: Place) -> str:
        """The name of a line or branch."""
        if isinstance(place, int):
            return f"{self.file} | {self.functions[place]} | {self.text(place)}"
        source, target = place
        return f"{self.name(source)} -> {self.text(target) if target > 0 else 'exit'}"

    def names(self, place: Place) -> list[str]:
        """All names that a line or branch has: its own, and those of its functions and classes."""
        within = self.functions[place if isinstance(place, int) else place[0]].split(".")
        return [self.name(place), *(f"{self.file} | {'.'.join(within[:n])}" for n in range(len(within), 0, -1))]

    def has(self, name: str) -> bool:
        """Whether the name fits a line or branch here."""
        function, _, text = name.removeprefix(f"{self.file} | ").partition(" | ")
        if not text:
            return any(f"{where}.".startswith(f"{function}.") for where in self.functions)
        texts = {self.text(line) for line, where in enumerate(self.functions) if line and where == function}
        source, arrow, target = text.partition(" -> ")
        return source in texts and (not arrow or target == "exit" or target in texts)


OF_WINDOWS = {
    *("_platform/windows.py", "_platform/windows_console.py", "_platform/handles.py", "_platform/drives.py"),
    *("cli/job.py", "cli/windows_screen.py"),
}
"""Modules of Windows, where nothing is measured (tests/platforms)."""


def modules() -> dict[str, Module]:
    """Each module of holdfast that is measured, by its path below `src/holdfast`."""
    return {
        file: Module(file, path.read_text())
        for path in sorted(SOURCE.rglob("*.py"))
        if (file := path.relative_to(SOURCE).as_posix()) not in OF_WINDOWS
    }


def groups() -> list[Group]:
    """The groups of `unreached.toml`."""
    whole = tomllib.loads(NAMES.read_text())
    return [Group(group["reason"], group["names"], group.get("sometimes", False)) for group in whole.get("group", [])]


def leading_nowhere(known: dict[str, Module]) -> Iterator[str]:
    """Names that fit nothing in the source."""
    for group in groups():
        for name in group.names:
            module = known.get(name.partition(" | ")[0])
            if module is None or not module.has(name):
                yield name
