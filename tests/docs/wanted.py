"""Comparing an output with the one that the page shows. Text that varies by its nature may differ.

Numbers, durations, dates, ids and host names are equal to any others, and any blanks to one. In the wanted output `…`
is any text within a line, and a line that is `…` is any number of lines.
"""

from __future__ import annotations

import re
import socket

_ANY = "…"
_HOST = re.escape(socket.gethostname())
_VARIES = (
    (re.compile(rf"(?<![\w.-])(?:{_HOST}|build\d+|[\w-]+(?:\.[\w-]+)*\.example)(?![\w-])"), "<host>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d)\b)?)?"), "<date>"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<n>"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b"), "<n>"),  # the id of an acquisition
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:ns|µs|us|ms|s|min|h|d)\b(?: \d+ ?(?:s|min|h)\b)*"), "<time>"),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:\.\d+)?\b"), "<time>"),
    (re.compile(r"(?<![A-Za-z_])\d+(?:\.\d+)?"), "<n>"),
    (re.compile(r"^(user +|.*\"user\": *\")[\w.-]+", re.MULTILINE), r"\1<user>"),
    (re.compile(r"[ \t]+"), " "),
)


_ENDED = r"(Done|Exit \d+|Hangup|Interrupt|Killed|Quit|Terminated|Aborted)\b.*\n"
_JOB = re.compile(rf"^\[\d+\][+-]? +{_ENDED}", re.MULTILINE)
_COMMAND = re.compile(rf"^.*shell\.sh: line \d+: +\d+ {_ENDED}", re.MULTILINE)


def matches(wanted: str, got: str, exactly: bool = False) -> bool:
    """Whether the output is as wanted. `exactly`: nothing varies, but for `…`."""
    # The shell's messages about ended jobs: a page states neither their moment nor their words.
    without_jobs = _JOB.sub("", got + "\n")
    forms = (got, without_jobs, _COMMAND.sub(r"\1\n", without_jobs), _COMMAND.sub("", without_jobs))
    return any(_matches(wanted, form, exactly) for form in forms)


def _matches(wanted: str, got: str, exactly: bool) -> bool:
    lines = []
    for line in _plain(wanted, exactly).split("\n"):
        if line.strip() == _ANY:
            lines.append(r"(?:[^\n]*\n)*?")
        else:
            lines.append(re.escape(line).replace(re.escape(_ANY), r"[^\n]*") + r"\n")
    return re.fullmatch("".join(lines), _plain(got, exactly) + "\n") is not None


def _plain(text: str, exactly: bool) -> str:
    if not exactly:
        for pattern, name in _VARIES:
            text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))
