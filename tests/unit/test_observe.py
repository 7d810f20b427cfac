"""Looking at a path: only regular files count, nothing hangs, and one reading is never enough (inspect.py)."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.engines.file.acquire import look
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.steps import with_hint
from holdfast.errors import InvalidPath
from unit.stepping import Contend, sema_record

KINDS: dict[str, Callable[[Path], object]] = {
    "directory": lambda path: path.mkdir(),
    "FIFO": os.mkfifo,
    "symbolic link": lambda path: path.symlink_to("target"),
}


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EMFILE, ["with 0 holds", "limit of 77: close other files, or raise", "ulimit -n"]),
        (errno.ENFILE, ["all processes together", "fs.file-max"]),
        (errno.ENOSPC, ["neither space nor files", "make room there"]),
        (errno.EDQUOT, ["make room there"]),
    ],
)
def test_an_exhausted_resource_is_explained(number: int, words: list[str], disk: Path, contend: Contend) -> None:
    contender = contend(disk / "l")
    contender.env.instead["open_limit"] = lambda: 77
    plain = OSError(number, os.strerror(number), "elsewhere")
    error = with_hint(plain, contender.request, contender.env)  # type: ignore[arg-type]
    assert type(error) is OSError
    assert (error.errno, error.filename) == (number, str(disk / "l"))
    assert os.strerror(number) in str(error)
    for word in words:
        assert word in str(error)
    contender.env.instead["open_limit"] = lambda: None
    assert "None" not in str(with_hint(plain, contender.request, contender.env))  # type: ignore[arg-type]
    assert with_hint(plain, contender.request) is plain


def test_a_semaphore_without_descriptors_for_its_slots_is_said_to_have_too_many(disk: Path, contend: Contend) -> None:
    """No slot is held, so none can be released."""
    contender = contend(disk / "l")
    contender.request.slot = 7
    plain = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "elsewhere")
    said = str(with_hint(plain, contender.request, contender.env))  # type: ignore[arg-type]
    assert "as does each slot of a semaphore that is looked at" in said
    assert "use fewer slots, or close other files, or raise the limit" in said
    assert "release" not in said


def test_no_command_is_named_that_a_system_does_not_have(disk: Path, contend: Contend) -> None:
    contender = contend(disk / "l")
    contender.env.raises_open_limit = ""  # type: ignore[attr-defined]
    plain = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "elsewhere")
    assert "ulimit" not in str(with_hint(plain, contender.request, contender.env))  # type: ignore[arg-type]


def test_only_a_directory_that_is_not_there_is_called_missing(disk: Path, contend: Contend) -> None:
    """A filesystem such as proc fails with the same error where no file can be made."""
    plain = OSError(errno.ENOENT, "No such file or directory", "elsewhere")
    for contender, said in ((contend(disk / "l"), "though it exists"), (contend(disk / "d" / "l"), "does not exist")):
        error = with_hint(plain, contender.request, contender.env)  # type: ignore[arg-type]
        assert said in str(error)
        assert isinstance(error, InvalidPath)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOTCONN, errno.ECONNRESET])
def test_a_mount_that_has_lost_its_server_is_to_be_mounted_again(number: int, disk: Path, contend: Contend) -> None:
    """The error alone would not say what to do."""
    contender = contend(disk / "l")
    plain = OSError(number, os.strerror(number), "elsewhere")
    assert with_hint(plain, contender.request, contender.env) is plain  # type: ignore[arg-type]
    contender.env.instead["may_block"] = lambda _path: True
    contender.env.instead["server_at"] = lambda _path: "the server of /mnt (kind, host)"
    error = with_hint(plain, contender.request, contender.env)  # type: ignore[arg-type]
    assert (type(error), error.errno) == (type(plain), number)  # type: ignore[attr-defined]
    assert f"{os.strerror(number)}; the server of /mnt (kind, host) fails" in str(error)
    assert "If it does and the error persists, mount it again" in str(error)
    contender.env.instead["reconnects"] = lambda _path: False  # 9p
    error = with_hint(plain, contender.request, contender.env)  # type: ignore[arg-type]
    assert "is lost for good, as this client does not reconnect: mount it again" in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_replacement_of_the_lock_file_during_a_look_is_not_read(kind: str, disk: Path, contend: Contend) -> None:
    """L6: a regular file when looked up, something else when opened: the descriptor is judged."""
    path = disk / "l"
    path.write_bytes(sema_record(1, 1))
    (disk / "target").write_bytes(sema_record(1, 1))
    contender = contend(path, stale="protocol")

    def replace() -> None:
        path.unlink()
        KINDS[kind](path)

    contender.env.once(contender.env.before, "open_existing", replace)
    with pytest.raises(InvalidPath, match="l") as caught:
        contender.run()
    assert caught.value.path == str(path)
    assert (disk / "target").read_bytes() == sema_record(1, 1)


def test_a_socket_or_device_at_the_path_is_not_opened(disk: Path, contend: Contend) -> None:
    """L6: an object that was no regular file to begin with is not even opened."""
    path = disk / "l"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    contender = contend(path)
    with pytest.raises(InvalidPath, match="socket"):
        contender.run()
    assert "open_existing" not in contender.env.steps


def test_a_file_that_vanishes_while_it_is_looked_at_is_no_error(disk: Path, contend: Contend) -> None:
    path = disk / "l"
    path.write_bytes(sema_record(os.getpid(), 9e9))
    contender = contend(path)
    contender.env.once(contender.env.before, "open_existing", path.unlink)
    assert contender.get().verify()


def test_a_half_refreshed_timestamp_does_not_cost_its_holder_the_lock(
    disk: Path, contend: Contend, dead_pid: int
) -> None:
    """L7: the record is read again under the guard, and left alone if a byte differs from the judged reading."""
    path = disk / "l"
    whole, torn = sema_record(dead_pid, "1799999999"), sema_record(dead_pid, "1099999999")
    path.write_bytes(torn)
    contender = contend(path)
    contender.env.instead["time"] = lambda: 1799999999.0
    judged = []

    def finish_writing(_path: str, *, write: bool) -> None:
        if write:
            judged.append(True)
            path.write_bytes(whole)

    contender.env.before["open_existing"] = finish_writing
    assert not isinstance(contender.run(), FileHold)
    assert judged == [True], "the torn record was not even called stale: this test tests nothing"
    assert path.read_bytes() == whole


def test_looking_again_does_not_open_the_file_again(disk: Path, contend: Contend) -> None:
    """Opening and closing a file wakes its watchers, so waiters would wake each other for ever."""
    contend(disk / "l").get()
    waiter = contend(disk / "l", timeout=None)
    waiter.step()
    opened = waiter.env.steps.count("open_existing")
    for _ in range(5):
        waiter.step()
    assert waiter.env.steps.count("open_existing") == opened == 1


def test_looking_changes_nothing(place: Path, contend: Contend) -> None:
    for name, content in (("free", None), ("foreign", sema_record(1, 1)), ("empty", b""), ("other", b'{"a": 1}\n')):
        path = place / name
        if content is not None:
            path.write_bytes(content)
            os.utime(path, (1, 1))
        contender = contend(path, stale="protocol")
        before = sorted(os.listdir(place))
        look(contender.env, contender.request)
        assert sorted(os.listdir(place)) == before
        if content is not None:
            assert (path.read_bytes(), path.stat().st_mtime) == (content, 1)
        assert not contender.env.open_descriptors()
