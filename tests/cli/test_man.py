"""The manual pages are complete, and troff accepts them without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.completion import commands
from holdfast.cli.options import SUMMARIES

SITE = Path(__file__).parents[2] / "docs" / "_site"
sys.path.append(str(SITE))
import manual  # noqa: E402

PAGES = manual.pages()
TROFF = pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed: apt-get install groff")
MAN = pytest.mark.skipif(not shutil.which("man"), reason="man is not installed: apt-get install man-db")


def rendered(text: str) -> str:
    """The page as a reader sees it, in one line, without bold and underlined letters or hyphenation."""
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-P-c", "-P-b", "-P-u"], input=text.encode(), capture_output=True, check=True
    )
    assert done.stderr == b""
    return " ".join(done.stdout.decode().split())


@TROFF
@pytest.mark.parametrize("name", PAGES)
def test_troff_does_not_warn_of_any_page(name: str) -> None:
    assert "SEE ALSO" in rendered(PAGES[name])


@MAN
@pytest.mark.parametrize("name", PAGES)
def test_man_does_not_warn_of_any_page(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(PAGES[name])
    done = subprocess.run(["man", "--warnings=w", "-E", "UTF-8", "-l", tmp_path / name], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "NAME" in done.stdout


@TROFF
@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name.replace(" ", "-"))
def test_every_page_has_the_content_of_its_help(command: object) -> None:
    """Each option with its help, each operand, and every word of the notes."""
    page = rendered(PAGES[f"holdfast-{command.name.replace(' ', '-')}.1"])
    for option in command.options:
        for flag in option.flags:
            assert re.search(rf"(?<!\S){re.escape(flag)}(?![\w-])", page), flag
        assert " ".join(option.help.split()) in page, option.help
    for name, text in command.operands:
        assert f"{name} {' '.join(text.split())}" in page
    for line in command.examples:
        assert line in page
    for word in command.notes.replace("exit status: ", "").split():
        assert word in page, word


@TROFF
def test_the_overview_has_every_command() -> None:
    page = rendered(PAGES["holdfast.1"])
    for command in commands():
        assert f"holdfast-{command.name.replace(' ', '-')}(1) {command.summary}" in page
    assert {name.removeprefix("holdfast-").removesuffix(".1").split("-")[0] for name in PAGES} - {"holdfast"} == {
        *SUMMARIES
    }


def test_the_same_source_makes_the_same_pages(tmp_path: Path) -> None:
    """They have no date and no path, so every packager gets the same bytes."""
    for place in ("one", "two"):
        subprocess.run([sys.executable, SITE / "manual.py", tmp_path / place], check=True)
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / place).iterdir()} for place in ("one", "two"))
    assert one == two
    assert one.keys() == PAGES.keys()


@pytest.mark.parametrize(
    "text", [".TH hostile", "'br", "\\fBbold\\fR", "a\\", "\n.br", "ümlaut → 😀", "`x` ~ ^", "--long -s"]
)
@TROFF
def test_text_does_not_become_a_command_of_troff(text: str) -> None:
    page = rendered(f".TH X 1\n.SH NAME\n{manual._text(f'before {text}')}\n.PP\n{manual._text(text)}")
    wanted = " ".join(text.split())
    assert page.count(wanted) == 2, page
