"""The process to which `try` and `acquire` bind a lock by default (owner.py)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.support import HOLDFAST, World, eventually
from holdfast._platform import environment
from holdfast.cli import owner

INTERPRETER = f"{sys.executable} -c 'import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))'"


def script(tmp_path: Path, text: str, shell: str = "/bin/sh") -> Path:
    """An executable script, whose `holdfast` is this one."""
    tool = tmp_path / "bin" / "holdfast"
    if not tool.exists():
        tool.parent.mkdir()
        tool.write_text(f'#!/bin/sh\nexec {" ".join(HOLDFAST)} "$@"\n')
        tool.chmod(0o755)
    made = tmp_path / "script"
    made.write_text(f"#!{shell}\nPATH={tool.parent}:$PATH\n{text}\n")
    made.chmod(0o755)
    return made


WRAPPED = {
    "timeout": "timeout 20 holdfast try LOCK",
    "xargs": "echo LOCK | xargs holdfast try",
    "find": "find LOCK.parent -maxdepth 0 -exec holdfast try LOCK ';' >&2; false",
    "setsid -w": "setsid -f -w holdfast try LOCK",
    "make": "printf 'all:\\n\\t@holdfast try LOCK\\n' | make -s -f -",
    "a program": f"{INTERPRETER} holdfast acquire LOCK",
    "sh -c": "sh -c 'holdfast try LOCK'; false",
    "sh -c, in a program": f"{INTERPRETER} sh -c 'exec holdfast try LOCK'",
}


@pytest.mark.needs("proc")
@pytest.mark.parametrize("words", WRAPPED.values(), ids=WRAPPED.keys())
def test_a_caller_that_ends_at_once_is_given_no_lock(words: str, world: World, tmp_path: Path, path: Path) -> None:
    """W1, W2: the lock would be free again when the success is reported. The message says what to do."""
    path.with_name("l.parent").mkdir() if "find" in words else None
    text = words.replace("LOCK.parent", str(path.with_name("l.parent"))).replace("LOCK", str(path))
    done = world._finish(world.start([script(tmp_path, text)]), None)
    if "which is not a shell" not in done.stderr:
        assert "a shell that ends with this command" in done.stderr, done
    assert f"{path} was not acquired: it would be bound to process " in done.stderr
    assert "--owner-pid $$" in done.stderr
    assert "holdfast run LOCK -- CMD" in done.stderr
    assert done.returncode != 0
    assert not path.exists()


KEPT = {
    "plain": "holdfast try LOCK",
    "acquire": "holdfast acquire LOCK",
    "env": "env A=b holdfast try LOCK",
    "nice": "nice holdfast try LOCK",
    "nohup": "nohup holdfast try LOCK",
    "a list": "sh -c 'holdfast try LOCK; echo $$; read line' </dev/stdin; exit",
    "without a keeper": "holdfast try --no-keeper LOCK",
}


@pytest.mark.needs("proc")
@pytest.mark.parametrize("shell", [shell for shell in ("/bin/sh", "/bin/bash", "/usr/bin/zsh") if shutil.which(shell)])
@pytest.mark.parametrize("words", KEPT.values(), ids=KEPT.keys())
def test_the_owner_of_a_new_lock_is_named(words: str, shell: str, world: World, tmp_path: Path, path: Path) -> None:
    """W3: the process and its command, in one line."""
    made = script(tmp_path, f"{words.replace('LOCK', str(path))}; echo $$; read line", shell)
    started = world.start([made], stdin=subprocess.PIPE)
    pid = int(started.hear(""))
    assert world.do("try", "-q", path).returncode == 1
    started.process.stdin.close()
    started.wait()
    (line,) = [one for one in started.complaint().splitlines() if one.startswith("holdfast: ")]
    assert line.startswith(f"holdfast: bound to process {pid} (")
    assert line.startswith(f"holdfast: bound to process {pid} (" + ("sh -c" if "sh -c" in words else "script)"))
    assert line.endswith("): free when that ends")


def test_an_owner_named_by_its_pid_is_accepted(world: World, tmp_path: Path, path: Path) -> None:
    """Whatever process it is, and however the command is called; no message names it."""
    text = (
        f"P='--owner-pid '$$; timeout 20 holdfast try $P {path} && timeout 20 holdfast release $P {path} && echo done"
    )
    done = world._finish(world.start([script(tmp_path, text)]), None)
    assert (done.stdout, done.stderr) == ("done\n", "")
    sleeper = world.start(["sleep", "60"])
    assert world.do("try", "--owner-pid", sleeper.pid, path).returncode == 0
    sleeper.signal(signal.SIGKILL)
    eventually(lambda: not path.exists(), what="the lock to end with its owner")


@pytest.mark.needs("proc")
def test_a_password_in_the_callers_words_is_not_shown(world: World, tmp_path: Path) -> None:
    for length in range(10, 60, 4):
        url = f"postgresql://{'m' * length}:SECRETSECRETSECRET@127.0.0.1:1/db#name"
        done = world._finish(world.start([script(tmp_path, f"timeout 20 holdfast try '{url}'")]), None)
        assert "which is not a shell" in done.stderr
        assert "SECR" not in done.stderr


@pytest.mark.parametrize("option", ["-q", "-j", "-v"])
def test_the_owner_is_not_named_with_quiet_or_json(option: str, world: World, path: Path) -> None:
    done = world.shell(f'$H try {option} "$1"', path)
    assert done.returncode == 0
    assert "bound to process" not in done.stderr


@pytest.mark.parametrize("shell", [shell for shell in ("sh", "bash", "zsh") if shutil.which(shell)])
@pytest.mark.parametrize("option", ["", "--no-keeper"])
def test_a_shell_that_becomes_its_last_command_is_known_by_its_release(
    shell: str, option: str, world: World, path: Path
) -> None:
    """The process is the same, but the command's parent is another."""
    words = " ".join(HOLDFAST)
    started = world.start([shell, "-c", f"{words} try -q {option} '{path}' && exec {words} release -v '{path}'"])
    assert (started.wait(), started.complaint()) == (0, f"holdfast: {path}: released\n")
    assert not path.exists()


CALLERS: list[tuple[str, list[str], bool]] = [
    ("bash", ["-bash"], True),
    ("zsh-5.9", ["zsh"], True),
    ("ksh93", ["ksh"], True),
    (".bash-wrapped", ["bash", "x.sh"], True),
    ("pwsh.exe", ["pwsh.exe"], True),
    ("busybox", ["/bin/sh", "./x"], True),
    ("busybox", ["-ash"], True),
    ("busybox", ["/bin/busybox", "sh", "x"], True),
    ("busybox", ["xargs", "holdfast"], False),
    ("busybox", ["busybox", "timeout", "5"], False),
    ("qemu-aarch64", ["/bin/bash", "x.sh"], True),
    ("python3.11", ["/usr/bin/python3", "/usr/bin/xonsh"], True),
    ("python3.11", ["python3", "x.py"], False),
    ("sudo", ["sudo", "-E", "sh"], False),
    ("", ["timeout"], False),
    ("sshd", ["sshd: me@notty"], False),
    ("systemd", ["/sbin/init"], False),
    ("fish", ["fish", "-c", "holdfast try l"], False),
    ("sh", ["sh", "-ec", "/usr/bin/holdfast try 'l'"], False),
    ("sh", ["sh", "-c", "--", "holdfast try l"], False),
    ("sh", ["sh", "-c", "holdfast try l; work"], True),
    ("sh", ["sh", "-c", "holdfast try l || exit\nwork"], True),
    ("sh", ["sh", "-c", "holdfast try $1", "sh", "l"], True),
    ("sh", ["sh", "-c", "holdfast try other"], True),
    ("sh", ["sh", "-c", ". ./functions"], True),
    ("sh", ["sh", "-c", "holdfast 'try l"], True),
    ("sh", ["sh", "script", "-c", "holdfast try l"], True),
    ("sh", ["sh"], True),
]


@pytest.mark.parametrize(("name", "words", "kept"), CALLERS)
def test_a_lasting_caller_is_distinguished_from_one_that_ends_at_once(
    name: str, words: list[str], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W1, W2."""
    monkeypatch.setattr(type(environment()), "program", lambda _self, _pid: (name, words))
    monkeypatch.setattr(sys, "argv", ["/usr/bin/holdfast", "try", "l"])
    assert (owner._why_not(4711) is None) is kept


def test_an_unknown_caller_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """W3."""
    monkeypatch.setattr(type(environment()), "program", lambda _self, _pid: None)
    assert owner._why_not(4711) is None


@pytest.mark.parametrize("variant", ["linux", "generic"])
def test_a_program_is_known_by_its_name(variant: str, within: Callable[..., object]) -> None:
    """A script counts as its interpreter; a process that has ended counts as nothing."""
    from holdfast._platform.portable import GenericEnvironment

    env = environment() if variant == "linux" else GenericEnvironment()
    child = subprocess.Popen(["sleep", "60"])
    try:
        found = env.program(child.pid)
        assert found is not None
        assert found[0] in ("sleep", "coreutils")
    finally:
        child.kill()
        child.wait()
    assert env.program(child.pid) is None
    mine = env.program(os.getpid())
    assert mine is not None
