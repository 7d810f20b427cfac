"""Runs the blocks of a page, and compares what they print with what the page shows."""

from __future__ import annotations

import ast
import configparser
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from docs import pages, typed, wanted
from docs.pages import Block, Command
from docs.session import Failed, Session

_USAGE, _NOT_EXECUTABLE, _NOT_FOUND = 2, 126, 127
_UNCAUGHT = re.compile(r"Traceback \(most recent call last\)|^Node\.js v\d", re.MULTILINE)
"""The output of Python and Node for an error that ends them."""
_UNIT_SECTIONS = {"Service": "service", "Timer": "timer", "Socket": "socket", "Path": "path", "Unit": "target"}
_TOOLS = {"go": ("go",), "node": ("node",), "rust": ("cargo", "rustc")}


@dataclass
class Report:
    """The result of a page. `failures` and `skipped` name page and line."""

    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    ran: int = 0


Servers = Callable[[str], Mapping[str, str] | str]
"""Servers by the name of an engine: texts of the page and their replacements, or why there is no server."""


def run(page: Path, servers: Servers, name: str = "") -> Report:
    """Run all sessions of a page."""
    report = Report()
    name = name or page.name
    try:
        found = pages.sessions(page.read_text(encoding="utf-8"))
    except pages.PageError as error:
        report.failures.append(f"{name}: {error}")
        return report
    for session in found:
        _Run(page, name, session, report).all(servers)
    return report


class _Run:
    def __init__(self, page: Path, name: str, planned: pages.Session, report: Report) -> None:
        self._page = page
        self._name = name
        self._planned = planned
        self._report = report
        self._session = Session()
        self._line = planned.blocks[0].line
        self._printed = ""
        self._units: dict[str, str] = {}

    def all(self, servers: Servers) -> None:
        try:
            missing = self._missing(servers)
            for block in self._planned.blocks:
                lacking = next((missing[need] for need in block.needs if need in missing), "")
                if lacking:
                    self._report.skipped.append(f"{self._name}:{block.line}: {lacking}")
                else:
                    self._one(block)
            self._verify_units()
        except Failed as failed:
            self._fail(self._line, str(failed))
            self._session.end(patient=False)
            return
        except BaseException:
            self._session.end(patient=False)
            raise
        left = self._session.end()
        if left and not self._planned.may_leave:
            self._fail(self._planned.blocks[-1].line, "the page leaves processes behind:\n" + "\n".join(left))

    def _missing(self, servers: Servers) -> dict[str, str]:
        missing = {}
        for need in sorted({need for block in self._planned.blocks for need in block.needs}):
            if need in _TOOLS:
                if absent := [tool for tool in _TOOLS[need] if shutil.which(tool) is None]:
                    missing[need] = f"not installed: {' and '.join(absent)}"
                continue
            found = servers(need)
            if isinstance(found, str):
                missing[need] = found
            else:
                self._session.replaced.update(found)
        return missing

    def _fail(self, line: int, what: str) -> None:
        self._report.failures.append(f"{self._name}:{line}: {what}")

    def _one(self, block: Block) -> None:
        self._line = block.line
        if problem := parse(block):
            self._fail(block.line, problem)
            return
        if block.not_run or block.language not in pages.RUN:
            for problem in typed.problems(block):
                self._fail(block.line, problem)
        if block.file:
            self._session.write(block.file, block.text)
        if block.language == "ini":
            self._note_unit(block)
        if block.is_output:
            self._compare(block.line, "the block before", block.text, self._printed)
        elif not block.file and not block.not_run and block.language in pages.RUN:
            self._report.ran += 1
            getattr(self, f"_{block.language}")(block)

    # -- languages -----------------------------------------------------------------------------------------------------

    def _python(self, block: Block) -> None:
        error, self._printed = self._session.python(block.text, self._page, block.line)
        if error:
            raise Failed(f"it raises:\n{error}{self._printed}")

    def _sh(self, block: Block) -> None:
        if block.text.startswith("#!"):
            status, self._printed = self._session.program(str(self._session.write(f"tmp/{block.line}", block.text)))
            self._broken(block.line, "the script", status, self._printed)
            return
        # The shell lives on with what the script has set, so -e ends all of it.
        status, self._printed = self._session.shell(f"set -eu\n{block.text}\nset +eu")
        self._broken(block.line, "the script", status, self._printed)

    def _console(self, block: Block) -> None:
        found = pages.commands(block)
        for command, following in zip(found, [*found[1:], None], strict=True):
            self._line = command.line
            status, got = self._session.shell(command.text)
            self._printed = got
            if command.wanted is not None:
                self._compare(command.line, f"$ {command.text}", command.wanted, got, "$?" in command.text)
            elif following is None or "$?" not in following.text:
                self._broken(command.line, f"$ {command.text}", status, got)

    def _js(self, block: Block) -> None:
        if shutil.which("node") is None:
            self._report.skipped.append(f"{self._name}:{block.line}: node is not installed")
            return
        script = self._session.write(f"block-{block.line}.mjs", block.text)
        status, self._printed = self._session.program("node", str(script))
        if status:
            raise Failed(f"node ends with status {status}:\n{self._printed}")

    def _sql(self, block: Block) -> None:
        if shutil.which("psql") is None:
            self._report.skipped.append(f"{self._name}:{block.line}: psql is not installed")
            return
        status, self._printed = self._session.program(
            "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", self._session.here(DATABASE), stdin=block.text
        )
        if status:
            raise Failed(f"psql ends with status {status}:\n{self._printed}")

    # -- what came of it -----------------------------------------------------------------------------------------------

    def _broken(self, line: int, what: str, status: int, got: str) -> None:
        """Report an error where no output is shown to compare with. A status of 1 says "held"; these say that it is
        wrong."""
        if status in (_USAGE, _NOT_EXECUTABLE, _NOT_FOUND) or _UNCAUGHT.search(got) or "command not found" in got:
            self._fail(line, f"{what}\n  ends with status {status}, and prints:\n{_indented(got)}")

    def _compare(self, line: int, what: str, shown: str, got: str, exactly: bool = False) -> None:
        if not wanted.matches(shown, got, exactly):
            self._fail(line, f"{what}\n  wanted:\n{_indented(shown)}\n  got:\n{_indented(got)}")

    # -- units of systemd ----------------------------------------------------------------------------------------------

    def _note_unit(self, block: Block) -> None:
        sections = re.findall(r"^\[(\w+)\]", block.text, re.MULTILINE)
        kind = next((_UNIT_SECTIONS[name] for name in [*sections[::-1], *sections] if name in _UNIT_SECTIONS), None)
        if kind:
            named = Path(block.file).name if Path(block.file).suffix == f".{kind}" else f"page-{block.line}.{kind}"
            self._units[named] = block.text

    def _verify_units(self) -> None:
        if not self._units:
            return
        if shutil.which("systemd-analyze") is None:
            self._report.skipped.append(f"{self._name}: systemd-analyze is not installed, so its units are not checked")
            return
        made = [str(self._session.write(f"units/{name}", text)) for name, text in self._units.items()]
        _, printed = self._session.program("systemd-analyze", "verify", "--man=no", *made)
        # Only errors in our units count: not that a program is not installed here, nor other units.
        ours = [
            line
            for line in printed.splitlines()
            if any(name in line for name in self._units) and "is not executable: No such file" not in line
        ]
        if ours:
            self._fail(self._planned.blocks[0].line, "systemd-analyze verify:\n" + "\n".join(ours))


DATABASE = "postgresql://deploy@db.example/locks"


def parse(block: Block) -> str:
    """The error in the text of a block, as far as it can be found without running the block; else empty."""
    try:
        if block.language == "python":
            compile(block.text, "", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        elif block.language == "json":
            _json(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "yaml":
            list(yaml.safe_load_all(block.text))
        elif block.language == "ini":
            configparser.RawConfigParser(strict=False, allow_no_value=True).read_string(block.text)
        elif block.language == "console":
            pages.commands(block)
    except (SyntaxError, ValueError, yaml.YAMLError, configparser.Error, pages.PageError) as error:
        return f"this is no {block.language}: {error}"
    return _bash(block) if block.language in ("sh", "console") and block.not_run else ""


def _json(text: str) -> None:
    """Require one JSON value, or one on each line."""
    try:
        json.loads(text)
    except ValueError:
        for line in filter(str.strip, text.splitlines()):
            json.loads(line)


def _bash(block: Block) -> str:
    found: list[Command] = pages.commands(block) if block.language == "console" else []
    text = "\n".join(command.text for command in found) if found else block.text
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
    return f"bash cannot parse this: {done.stderr}" if done.returncode else ""


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip("\n").splitlines()) or "    (nothing)"
