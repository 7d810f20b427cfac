"""The examples printed in the specifications, run as they are; only the paths are ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Lock, LockLost
from process.foreign.play import Player
from process.support import eventually, polling

Play = Callable[..., Player]

SEMA_SHELL = """\
# Shell script creating lock
echo "pid=$$" > /tmp/my.lock
echo "timestamp=$(date +%s)" >> /tmp/my.lock
echo "tag=shell-script" >> /tmp/my.lock
"""

SEMA_PYTHON = """\
def parse_lock_file(path):
    with open(path) as f:
        info = {}
        for line in f:
            if '=' in line:
                key, value = line.strip().split('=', 1)
                info[key] = value
    return info
"""

BEADS_SHELL = """\
#!/bin/bash
BEADS_DIR=".beads"
LOCK_FILE="$BEADS_DIR/.exclusive-lock"

# Create lock
cat > "$LOCK_FILE" <<EOF
{
"holder": "my-tool",
"pid": $$,
"hostname": "$(hostname)",
"started_at": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
"version": "1.0.0"
}
EOF

# Do work...
bd create "My issue" -p 1
bd update bd-42 --status in_progress

# Release lock
rm "$LOCK_FILE"
"""


@pytest.fixture(autouse=True)
def _shells() -> None:
    for name in ("bash", "hostname"):
        if shutil.which(name) is None:
            pytest.skip(f"needs {name}")


@pytest.fixture
def bash(play: Play, tmp_path: Path) -> Callable[[str], Player]:
    """Start a script with that text in a directory of the test; `bd` prints its arguments, and waits for a line."""

    def start(text: str) -> Player:
        stub = tmp_path / "bin" / "bd"
        stub.parent.mkdir(exist_ok=True)
        stub.write_text('#!/bin/sh\necho "bd $*"\nread -r _\n')
        stub.chmod(0o755)
        path = f"{stub.parent}:{os.environ['PATH']}"
        return play(["bash", "-c", f"cd '{tmp_path}'\n{text}"], PATH=path)

    return start


def parsed(path: str) -> dict[str, str]:
    scope: dict[str, Callable[[str], dict[str, str]]] = {}
    exec(SEMA_PYTHON, scope)
    return scope["parse_lock_file"](path)


def sema_shell(path: str, more: str) -> str:
    return SEMA_SHELL.replace("/tmp/my.lock", path) + more


@pytest.mark.parametrize("protocol", ["sema", "semats"])
def test_holdfast_waits_for_the_lock_of_the_sema_example(
    bash: Callable[[str], Player], play: Play, path: str, protocol: str
) -> None:
    script = bash(sema_shell(path, f"echo made\nread -r _\nrm {path}"))
    script.expect("made")
    status = Lock(path, protocol=protocol).status()
    assert status.locked
    assert (status.holder.pid, status.holder.tag) == (script.pid, "shell-script")
    assert abs(time.time() - status.holder.since) < 60
    assert parsed(path)["tag"] == "shell-script"
    ours = play("ours", path, protocol)
    ours.say("acquire")
    eventually(lambda: polling(ours.pid), what="the wait")
    script.say("go")
    ours.expect("acquired")
    assert ours.ask("lost") == "kept"


def test_a_shell_that_has_ended_holds_its_lock_for_an_hour(bash: Callable[[str], Player], path: str) -> None:
    """The example ends with the lock in place, for its caller: its pid is no proof of death."""
    assert bash(sema_shell(path, "")).wait() == 0
    assert Lock(path).try_acquire() is None
    text = Path(path).read_text()
    stamp = text.split("timestamp=")[1].split("\n")[0]
    Path(path).write_text(text.replace(stamp, str(int(stamp) - 3602)))
    with Lock(path, timeout=5) as hold:
        assert hold.recovered_from.tag == "shell-script"


def test_a_lock_that_the_example_is_still_writing_is_held(bash: Callable[[str], Player], path: str) -> None:
    """The file appears empty, then has one line, then two: malformed and held, until it can be read."""
    lines = SEMA_SHELL.replace("/tmp/my.lock", path).splitlines()[1:]
    script = bash(f": > {path}\necho now\nread -r _\n" + "".join(f"{line}\necho now\nread -r _\n" for line in lines))
    for known in (None, None, script.pid, script.pid):
        script.expect("now")
        assert Lock(path).try_acquire() is None
        assert Lock(path).status().holder.pid == known
        script.say("go")


@pytest.mark.parametrize("protocol", ["sema", "semats"])
def test_the_python_example_reads_our_record(path: str, protocol: str) -> None:
    with Lock(path, protocol=protocol, tag="a = b, ü c") as hold:
        found = parsed(path)
        assert found["pid"] == str(os.getpid())
        assert abs(int(found["timestamp"]) - time.time()) < 60
        assert found["tag"] == "a = b, ü c"
        assert set(found) == {"pid", "timestamp", "holdfast", "tag"}
        hold.ensure_held()


def test_a_holder_notices_that_the_sema_example_wrote_over_its_lock(bash: Callable[[str], Player], path: str) -> None:
    """The example does not check whether the lock is held."""
    hold = Lock(path).acquire()
    assert bash(sema_shell(path, "")).wait() == 0
    with pytest.raises(LockLost):
        hold.release()
    assert parsed(path)["tag"] == "shell-script"


def test_holdfast_respects_the_lock_of_the_beads_example(
    bash: Callable[[str], Player], play: Play, tmp_path: Path
) -> None:
    database = tmp_path / ".beads"
    database.mkdir()
    script = bash(BEADS_SHELL)
    script.expect("bd create My issue -p 1")
    status = Lock(database, protocol="beads", holder="ours").status()
    assert status.locked
    assert status.holder.pid == script.pid
    assert status.record.fields["holder"] == "my-tool"
    assert play("beads", str(database)).ask("cycle") == "skip my-tool"
    ours = play("ours", str(database), "beads")
    ours.say("acquire")
    eventually(lambda: polling(ours.pid), what="the wait")
    script.say("go")
    script.expect("bd update bd-42 --status in_progress")
    assert ours.silent()
    script.say("go")
    ours.expect("acquired")
    assert script.wait() == 0
    assert ours.ask("lost") == "kept"


def test_a_killed_beads_example_is_not_waited_for(bash: Callable[[str], Player], tmp_path: Path) -> None:
    database = tmp_path / ".beads"
    database.mkdir()
    script = bash(BEADS_SHELL)
    script.expect("bd create My issue -p 1")
    script.kill()
    script.wait()
    with Lock(database, protocol="beads", holder="ours", timeout=5) as hold:
        assert hold.recovered_from.fields["holder"] == "my-tool"
        found = json.loads((database / ".exclusive-lock").read_text())
        assert list(found)[:5] == ["holder", "pid", "hostname", "started_at", "version"]


def test_a_holder_notices_the_clean_up_that_beads_recommends(tmp_path: Path) -> None:
    """A tool removes the lock at its end, whosever it is; the loss is reported."""
    (tmp_path / ".beads").mkdir()
    hold = Lock(tmp_path / ".beads", protocol="beads", holder="ours").acquire()
    assert subprocess.run(["rm", str(tmp_path / ".beads" / ".exclusive-lock")]).returncode == 0
    assert hold.lost
    with pytest.raises(LockLost):
        hold.release()
