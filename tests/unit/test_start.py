"""Modules loaded at a start: no more than are used. Each one costs a tenth of a millisecond or more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

IMPORT = """
holdfast holdfast.errors holdfast.events holdfast.lock holdfast.model
holdfast._core holdfast._core.attempt holdfast._core.hold holdfast._core.options holdfast._core.wait
holdfast._drivers holdfast._drivers.background holdfast._drivers.sync
holdfast._platform holdfast._platform.fork holdfast._platform.operations holdfast._platform.values
holdfast.engines holdfast.engines.base
holdfast.engines.file holdfast.engines.file.hold holdfast.engines.file.interop holdfast.engines.file.paths
holdfast.engines.file.publish holdfast.engines.file.request holdfast.engines.file.steps
holdfast.engines.file.uncontended
holdfast.protocols holdfast.protocols.base holdfast.protocols.sema
"""
ACQUIRE = f"""{IMPORT}
holdfast._platform.descriptors holdfast._platform.linux holdfast._platform.portable holdfast._platform.posix
holdfast._platform.procfs
"""
COMMAND = f"""{ACQUIRE}
holdfast.cli holdfast.cli.detached holdfast.cli.locks holdfast.cli.options holdfast.cli.outcome
"""
RUN = f"{COMMAND} holdfast.cli.run holdfast.cli.guardian holdfast._platform.libc holdfast._platform.tree"
TRY = f"{COMMAND} holdfast.cli.acquire holdfast.cli.keeper holdfast.cli.owner"
STANDARD = {
    *("__future__", "_functools", "_operator", "atexit", "errno", "fcntl", "itertools"),
    *("select", "_ctypes", "gc"),
    *("_collections_abc", "_stat", "genericpath", "os", "posixpath", "stat"),  # from `site`, which is left out here
}
MAIN = "from holdfast.cli import main; main()"
ONCE = "import sys, holdfast; holdfast.Lock(sys.argv[1], heartbeat=0).acquire().release()"


def loaded(code: str, *words: object) -> set[str]:
    """The modules loaded for this code by a process and its forks, besides those of the interpreter."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    found = []
    for one in ("pass", code):
        command = [sys.executable, "-S", "-X", "importtime", "-c", one, *map(str, words)]
        done = subprocess.run(command, env={**kept, "PYTHONPATH": str(SOURCE)}, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stderr
        found.append(set(re.findall(r"^import time: .*\| +(\S+)$", done.stderr, re.MULTILINE)))
    return found[1] - found[0]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have another environment")
@pytest.mark.parametrize(
    ("ours", "code", "words"),
    [
        pytest.param(IMPORT, "import holdfast", [], id="import"),
        pytest.param(ACQUIRE, ONCE, ["{lock}"], id="acquire"),
        pytest.param(RUN, MAIN, ["run", "{lock}", "--", "true"], id="run"),
        pytest.param(TRY, MAIN, ["try", "--owner-pid", "{pid}", "{lock}"], id="try"),
    ],
)
def test_a_start_loads_what_it_uses_and_no_more(tmp_path: Path, ours: str, code: str, words: list[str]) -> None:
    found = loaded(code, *(word.format(lock=tmp_path / "l", pid=os.getpid()) for word in words))
    found.discard("holdfast._platform.storage")  # in a container, whose root is an overlay
    assert {name for name in found if name.startswith("holdfast")} == set(ours.split())
    assert {name for name in found if not name.startswith("holdfast")} <= STANDARD


FORK = """
import os, sys, holdfast

holdfast.Lock(sys.argv[1], heartbeat=0).acquire().release()
child = os.fork()
if child == 0:
    os._exit("holdfast.engines.file.acquire" not in sys.modules or "holdfast._platform.inotify" not in sys.modules)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.needs("events")
def test_the_code_for_waiting_is_loaded_before_a_fork_once_for_all_children(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path / "l")], check=True)


NO_DESCRIPTOR = """
import errno, os, resource, sys, holdfast

holdfast.Lock(sys.argv[1] + ".first", heartbeat=0).acquire().release()
resource.setrlimit(resource.RLIMIT_NOFILE, (32, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
kept = []
try:
    while True:
        kept.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
try:
    holdfast.Lock(sys.argv[1], timeout=0, heartbeat=0).acquire()
except OSError as error:
    assert error.errno == errno.EMFILE and error.filename == sys.argv[1], error
    assert "raise the limit" in str(error), error
else:
    raise AssertionError("acquired")
"""


def test_the_code_that_explains_a_lack_of_descriptors_is_already_loaded(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", NO_DESCRIPTOR, str(tmp_path / "l")], check=True)
