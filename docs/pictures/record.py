"""Records the terminal of the README: a real session, run anew, as an animated picture.

    python docs/pictures/record.py docs/pictures/terminal.svg

Needs pyte (a terminal in memory). Each line of the picture appears when it came in the session, or a little later, so
that it can be read; where animations are off, all of it is there from the beginning.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from html import escape
from pathlib import Path

import pyte

import holdfast

COLUMNS, LINES = 94, 30
WIDTH, HEIGHT, MARGIN, BAR = 8.43, 19, 18, 30
READING = 0.09
"""Seconds for each line of output, before the next command is typed."""
TYPING = 0.013
COLOURS = {"green": "#3fb950", "red": "#ff7b72", "brown": "#d29922", "cyan": "#39c5cf", "blue": "#58a6ff"}

LOCK = "/run/lock/web.lock"
HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>A terminal: a deploy holds a lock, status shows who, the deploy is killed, the next one takes over</title>
<style>
text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #e6edf3; white-space: pre }}
@keyframes hidden {{ from, to {{ opacity: 0 }} }}
@media (prefers-reduced-motion: reduce) {{ text {{ animation: none !important }} }}
</style>
<rect width="{width}" height="{height}" rx="9" fill="#0d1117"/>
<circle cx="20" cy="18" r="6" fill="#ff5f57"/>
<circle cx="39" cy="18" r="6" fill="#febc2e"/>
<circle cx="58" cy="18" r="6" fill="#28c840"/>"""
# Each with the end of what must be on the screen before the next one is typed.
SESSION = [
    (f"holdfast run -t 'release 1.2' {LOCK} -- ./deploy.sh &", r"\[1\] \d+"),
    (f"holdfast status {LOCK}", "or ends"),
    ("kill -9 %1                                       # the deploy is killed", ""),
    (f"holdfast run -v {LOCK} -- echo deploying  # the next one does not wait", "released"),
]
DEPLOY = "#!/bin/sh\nsleep 600\n"
PROMPT = "$ "


class Session:
    """A shell in a terminal of our own."""

    def __init__(self, directory: str) -> None:
        self.screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self.screen)
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environment = {**os.environ, "PS1": PROMPT, "TERM": "xterm-256color", "HISTFILE": ""}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        shell = ["bash", "--norc", "--noprofile", "-i"]
        self._shell = subprocess.Popen(
            shell, stdin=slave, stdout=slave, stderr=slave, cwd=directory, env=environment, start_new_session=True
        )
        os.close(slave)
        self._master = master

    def close(self) -> None:
        os.write(self._master, b"\x03\nkill %1 %2; exit\n")
        self._shell.wait(10)
        os.close(self._master)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    def until(self, pattern: str, seconds: float = 20) -> None:
        """Read what comes until the text of the screen ends so."""
        end = time.monotonic() + seconds
        while not re.search(pattern, "\n".join(self.lines).rstrip()):
            if time.monotonic() > end:
                raise TimeoutError(f"{pattern!r} is not on the screen:\n" + "\n".join(self.lines))
            if select.select([self._master], (), (), 0.1)[0]:
                self._stream.feed(os.read(self._master, 65536))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())


def until_held() -> None:
    while not holdfast.Lock(LOCK).status().locked:
        time.sleep(0.01)


def recorded(directory: str) -> tuple[pyte.Screen, list[tuple[float, int]]]:
    """The screen at the end, and when each of its lines appeared: a command at its first key."""
    (script := Path(directory, "deploy.sh")).write_text(DEPLOY, encoding="utf-8")
    script.chmod(0o755)
    session = Session(directory)
    begun, shown, seconds = 0, [], 0.5
    try:
        session.until(r"\$$")
        for command, wanted in SESSION:
            first = len("\n".join(session.lines).rstrip().split("\n"))
            session.type(command + "\n")
            rows = rf"(?s)\$ {re.escape(command)}\n(.*\n)?"
            session.until(rf"{rows}.*{wanted}.*\$$")
            if command.endswith("&"):
                until_held()
            last = len("\n".join(session.lines).rstrip().split("\n")) - 1
            shown.append((seconds, first - 1))
            seconds += TYPING * len(command) + 0.4
            shown += [(seconds, number) for number in range(first, last)]
            seconds += READING * (last - first) + 0.6
            begun = last
        shown.append((seconds, begun))
    finally:
        session.close()
    return session.screen, shown


def line(screen: pyte.Screen, number: int) -> str:
    """One line of the terminal, by runs of the same colour."""
    runs: list[list[str]] = []
    for column in range(COLUMNS):
        cell = screen.buffer[number][column]
        style = f"{COLOURS.get(cell.fg, '')},{'b' if cell.bold else ''}"
        if not runs or runs[-1][0] != style:
            runs.append([style, ""])
        runs[-1][1] += cell.data
    command = runs[0][1].startswith(PROMPT)
    spans = ""
    for style, text in runs:
        colour, bold = style.split(",")
        more = (f' fill="{colour}"' if colour else "") + (' font-weight="bold"' if bold or command else "")
        spans += f"<tspan{more}>{escape(text)}</tspan>"
    return spans


def drawn(screen: pyte.Screen, shown: list[tuple[float, int]]) -> str:
    rows = max(number for _, number in shown) + 1
    width, height = round(COLUMNS * WIDTH + 2 * MARGIN), rows * HEIGHT + BAR + MARGIN
    parts = [HEAD.format(width=width, height=height)]
    for seconds, number in shown:
        y = BAR + HEIGHT * (number + 0.75)
        parts.append(
            f'<text x="{MARGIN}" y="{y:g}" xml:space="preserve" textLength="{COLUMNS * WIDTH:g}" '
            f'style="animation:hidden {seconds:.2f}s">{line(screen, number)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        picture = drawn(*recorded(directory))
    Path(sys.argv[1]).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
