"""`holdfast completion`: the real shells complete command lines with the scripts."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.support import Started, World
from holdfast.cli.completion import bash, commands, fish, zsh

SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not shutil.which(shell), reason=f"{shell} is not installed: apt-get install {shell}")


@functools.cache
def script_for(shell: str) -> str:
    return SCRIPTS[shell](commands())


EACH = [pytest.param(shell, marks=needs(shell)) for shell in SCRIPTS]
TYPED = [pytest.param(shell, marks=needs(shell)) for shell in ("bash", "zsh")]


@pytest.mark.parametrize("shell", EACH)
def test_every_script_is_accepted_by_its_shell(world: World, shell: str) -> None:
    """The shell reads the script without a complaint, and the command prints what the function makes."""
    done = world.do("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == SCRIPTS[shell](commands()) + "\n"
    checked = subprocess.run([shell, "-n"], input=done.stdout, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "zsh"], ["--shell", "bash"]])
def test_an_unknown_shell_is_an_error(world: World, words: list[str]) -> None:
    done = world.do("completion", *words)
    assert (done.returncode, done.stdout) == (2, "")


def test_every_script_has_every_option_and_command() -> None:
    """Everything that `--help` shows is in each script."""
    for make in SCRIPTS.values():
        script = make(commands())
        for command in commands():
            assert all(word in script for word in command.name.split())
            for option in command.options:
                for flag in option.flags:
                    word = flag if make is not fish else f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                    assert word in script


def test_the_catalogue_knows_which_options_of_the_other_tools_take_a_value() -> None:
    taken = {
        command.name: {option.flags[-1]: option.metavar for option in command.options if option.metavar is not None}
        for command in commands()
        if command.text
    }
    assert taken == {
        "sema": {"--timeout": "S", "--stale": "S", "--tag": "STR"},
        "semats": {"--tag": "text", "--timeout": "ms"},
    }


def test_the_catalogue_has_every_option_and_command(world: World) -> None:
    """It has each command of the overview, and each option of each command's help."""
    every, *helps = world.each([["--help"], *([*command.name.split(), "--help"] for command in commands())])
    overview = every.stdout.partition("commands:\n")[2].partition("\n\n")[0]
    named = {line.split()[0] for line in overview.splitlines() if line.startswith("  ") and line[2] != " "}
    assert named == {command.name.split()[0] for command in commands()}
    for command, told in zip(commands(), helps, strict=True):
        text = told.stdout + told.stderr
        flags = {flag for option in command.options for flag in option.flags}
        assert flags, command.name
        for line in text.partition("ptions:\n")[2].splitlines():
            words = line.split()
            if line.startswith("  ") and words and words[0].startswith("-"):
                assert words[0].rstrip(",") in flags, (command.name, line)


# -- in the shells -----------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("alpha.lock", "beta one.lock"):
        (tmp_path / name).touch()
    (tmp_path / "deeper").mkdir()
    return tmp_path


def in_fish(world: World, line: str) -> list[str]:
    """The completions of fish, without their descriptions."""
    script = f"{script_for('fish')}\ncomplete -C {line!r}"
    home = {"HOME": str(world.directory), "XDG_CONFIG_HOME": str(world.directory / ".c"), "XDG_DATA_HOME": "/dev/null"}
    done = world.start(["fish", "--no-config", "-c", script], env=home)
    text = done.rest()
    assert done.wait() == 0, done.complaint()
    return [offer.partition("\t")[0] for offer in text.splitlines()]


@needs("fish")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("holdfast rel", ["release"]),
        ("holdfast run --no", ["--nonblock"]),
        ("holdfast run -p s", ["sema", "semats", "sidecar"]),
        ("holdfast try --protocol=fl", ["--protocol=flock"]),
        ("holdfast status --stale ", ["never", "protocol", "safe"]),
        ("holdfast run -w ", []),
        ("holdfast status al", ["alpha.lock"]),
        ("holdfast release b", ["beta one.lock"]),
        ("holdfast completion ", ["bash", "fish", "zsh"]),
        ("holdfast completion z", ["zsh"]),
        ("holdfast beads ch", ["check"]),
        ("holdfast beads check --js", ["--json"]),
        ("holdfast sema tr", ["try"]),
        ("holdfast sema try --ti", ["--timeout"]),
        ("holdfast run al", ["alpha.lock"]),
        ("holdfast nonsense --x", []),
        ("holdfast --ver", ["--version"]),
        ("holdfast hel", ["help"]),
        ("holdfast help rel", ["release"]),
    ],
)
def test_fish_offers_the_matching_words(world: World, place: Path, line: str, offered: list[str]) -> None:
    assert sorted(in_fish(world, line)) == offered


@needs("fish")
def test_fish_completes_the_command_after_the_dashes(world: World, place: Path) -> None:
    assert "mkfifo" in in_fish(world, "holdfast run alpha.lock -- mkfi")
    assert in_fish(world, "holdfast run alpha.lock -- cat alp") == ["alpha.lock"]


@needs("fish")
def test_fish_completes_the_command_after_the_lock(world: World, place: Path) -> None:
    assert "mkfifo" in in_fish(world, "holdfast run alpha.lock mkfi")
    assert "mkfifo" in in_fish(world, "holdfast run -qw 5 --mode=600 alpha.lock -n mkfi")
    assert in_fish(world, "holdfast run alpha.lock beta") == ["beta one.lock"]
    assert in_fish(world, "holdfast run alpha.lock cat alp") == ["alpha.lock"]
    assert in_fish(world, "holdfast run alpha.lock --non") == ["--nonblock"]
    assert in_fish(world, "holdfast run -w al") == []


class Typist:
    """A shell on a terminal, in which `holdfast` only prints its arguments."""

    def __init__(self, shell: Started) -> None:
        self._shell = shell

    def press(self, keys: str) -> str:
        """The words that these keys become."""
        self._shell.type(keys.encode() + b"\n")
        return self._shell.hear("got:").removeprefix("got:")


@pytest.fixture
def typist(request: pytest.FixtureRequest, world: World, place: Path) -> Iterator[Typist]:
    kind = request.param
    script = world.directory.parent / f"{world.directory.name}-{kind}"
    script.write_text(script_for(kind))
    says = 'holdfast() { printf "got:"; printf "<%s>" "$@"; echo; }'
    if kind == "bash":
        command = ["bash", "--norc", "--noprofile", "-i"]
        begin = f"bind 'set enable-bracketed-paste off'; {says}; . {script}; echo ready"
    else:
        command = ["zsh", "-f", "-i"]
        begin = f"unsetopt zle_bracketed_paste; autoload -U compinit; compinit -u -D; {says}; . {script}; echo ready"
    shell = world.terminal(command, env={"PS1": "", "TERM": "dumb", "HOME": str(place), "ZDOTDIR": str(place)})
    shell.type(begin.encode() + b"\n")
    shell.hear("ready")
    yield Typist(shell)
    script.unlink()


@pytest.mark.parametrize("typist", TYPED, indirect=True)
def test_a_shell_completes_each_typed_line(typist: Typist) -> None:
    """Each line has the keys typed, Tab included, and the words that they become."""
    for keys, words in [
        ("holdfast rel\t", "<release>"),
        ("holdfast run --non\t", "<run><--nonblock>"),
        ("holdfast run -p fl\t", "<run><-p><flock>"),
        ("holdfast try --protocol sid\t", "<try><--protocol><sidecar>"),
        ("holdfast try --protocol=sid\t", "<try><--protocol=sidecar>"),
        ("holdfast status --stale n\t", "<status><--stale><never>"),
        ("holdfast status al\t", "<status><alpha.lock>"),
        ("holdfast release be\t", "<release><beta one.lock>"),
        ("holdfast run -w al\t", "<run><-w><al>"),
        ("holdfast acquire --owner-pid x\t", "<acquire><--owner-pid><x>"),
        ("holdfast completion z\t", "<completion><zsh>"),
        ("holdfast beads ch\t", "<beads><check>"),
        ("holdfast beads check --js\t", "<beads><check><--json>"),
        ("holdfast sema acq\t", "<sema><acquire>"),
        ("holdfast sema try alpha.lock --js\t", "<sema><try><alpha.lock><--json>"),
        ("holdfast run alpha.lock -- mkfif\t", "<run><alpha.lock><--><mkfifo>"),
        ("holdfast run alpha.lock -- cat al\t", "<run><alpha.lock><--><cat><alpha.lock>"),
        ("holdfast run alpha.lock mkfif\t", "<run><alpha.lock><mkfifo>"),
        ("holdfast run -qw 5 --mode=600 alpha.lock -n mkfif\t", "<run><-qw><5><--mode=600><alpha.lock><-n><mkfifo>"),
        ("holdfast run alpha.lock be\t", "<run><alpha.lock><beta one.lock>"),
        ("holdfast run alpha.lock cat al\t", "<run><alpha.lock><cat><alpha.lock>"),
        ("holdfast run alpha.lock --non\t", "<run><alpha.lock><--nonblock>"),
        ("holdfast run -w al\t", "<run><-w><al>"),
        ("holdfast --ver\t", "<--version>"),
        ("holdfast hel\t", "<help>"),
        ("holdfast help rel\t", "<help><release>"),
        ("holdfast help run al\t", "<help><run><al>"),
        ("holdfast nonsense --x\t", "<nonsense><--x>"),
    ]:
        assert typist.press(keys) == words, keys


def test_an_installed_protocol_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast import protocols

    monkeypatch.setattr(protocols, "names", lambda: ["sema", "brought"])
    for make in SCRIPTS.values():
        assert "brought" in make(commands())
