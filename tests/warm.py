"""Python processes at the price of a fork, made by a process that has imported holdfast before.

    warm.popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, start_new_session=True)   # as subprocess.Popen

An interpreter that imports holdfast and a command takes 40 to 80 ms of a processor, a fork 5 to 10. So each process of
pytest keeps a server, which forks on request. To those who look at it and to itself, such a fork is a real process:

* W1. It has a session of its own, its words in `/proc/PID/cmdline`, its environment in `/proc/PID/environ`, and no
  descriptor but those that it was given. The answer is sent when all this is so: nobody meets it half made.
* W2. Its number is its own until it has been waited for: the server waits for a child only when it is told to.
* W3. It ends as an interpreter does: threads are waited for, `atexit` runs, the status says how. But nothing is taken
  down, so no `__del__` runs.
* W4. The server ends when the process that it serves does, however that ends, and ends what it has forked.
* W5. A request has a connection of its own, so that a test which gives up in the midst of one spoils no other.
* W6. Under `make coverage` it measures itself, from its first line to its end, if its environment says so. The server
  does not: what it has imported is measured in processes that are real.

More is imported in a fork than in a real process, so a module that forgets an import is not found out, nor are errors
while a command starts or is taken down; and its parent is the server. A test of any of this asks for a `real` process,
and `cli/test_commands.py` runs each command in one. A real process is also started for another program, with
`preexec_fn`, in the session of the caller, with other variables that Python reads when it starts, if the kernel cannot
do W1, and always with HOLDFAST_TEST_WARM=no.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import linecache
import marshal
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import BuiltinImporter, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, NoReturn

PATIENCE = 60.0
"""Seconds after which the server is believed never to answer."""
MEASUREMENT = "COVERAGE_PROCESS_CONFIG"
"""The variable by which coverage.py tells a new process to measure itself."""
_NOT_FOR_THE_SERVER = ("PYTHONUNBUFFERED", MEASUREMENT)
_LENGTH = struct.Struct("!I")

# -- The process that asks ---------------------------------------------------------------------------------------------


def popen(
    command: Iterable[object], *, real: bool = False, terminal: bool = False, **options: Any
) -> subprocess.Popen[Any]:
    """The process that `subprocess.Popen` would start, forked if that is the same. `terminal`: stdin is to be its
    terminal."""
    words = [word if isinstance(word, (str, bytes)) else os.fspath(word) for word in command]  # type: ignore[call-overload]
    if not real and _is_python(words) and {*options} <= _POSSIBLE and options.get("start_new_session"):
        server = _server_of_this_process()
        if server is not None and server.at_start == _at_start(options.get("env") or os.environ):
            return _Forked(words, server, terminal, **options)
    if terminal:
        options["preexec_fn"] = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    return subprocess.Popen(words, **options)


_POSSIBLE = {"stdin", "stdout", "stderr", "env", "cwd", "bufsize", "text", "pass_fds", "start_new_session"}


def _is_python(words: list[str | bytes]) -> bool:
    """Whether it is this Python, to run code, a module or a script."""
    if len(words) < 2 or os.fsdecode(words[0]) != sys.executable:
        return False
    what = os.fsdecode(words[1])
    return (what in ("-c", "-m") and len(words) > 2) or (what.endswith(".py") and not what.startswith("-"))


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that an interpreter reads only when it starts; PYTHONUNBUFFERED is heeded by `_stream`."""
    names = (name for name in environment if name.startswith(("PYTHON", "LC_", "LANG")) and name != "PYTHONUNBUFFERED")
    return {name: environment[name] for name in names}


class _Forked(subprocess.Popen[Any]):
    """A Popen in all but who forks and who waits. Its own `wait` looks again and again; this one is woken."""

    def __init__(self, words: list[str | bytes], server: _Server, terminal: bool, **options: Any) -> None:
        self._server = server
        self._terminal = terminal
        self._pidfd = -1
        super().__init__(words, **options)

    def _execute_child(self, *positional: Any) -> None:
        given = inspect.signature(subprocess.Popen._execute_child).bind(self, *positional).arguments  # type: ignore[attr-defined]
        try:
            streams = enumerate(given[name] for name in ("p2cread", "c2pwrite", "errwrite"))
            descriptors = {number: fd if fd >= 0 else number for number, fd in streams}
            descriptors |= {fd: fd for fd in given["pass_fds"]}
            environment = os.environ if given["env"] is None else given["env"]
            request = {
                "words": [*map(os.fsencode, given["args"])],
                "environment": {os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
                "directory": os.fsencode(given["cwd"] or os.getcwd()),
                "terminal": self._terminal,
            }
            self.pid = self._server.ask(request, descriptors)
            self._pidfd = os.pidfd_open(self.pid)
            self._child_created = True
        finally:
            ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(given[end] for end in ends))  # type: ignore[attr-defined]

    def _internal_poll(self, _deadstate: int | None = None, **_unused: Any) -> int | None:
        try:
            self._look(0)
        except OSError:
            if _deadstate is None:
                raise
            self.returncode = _deadstate  # this process ends, and its server has ended
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        self._look(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _look(self, timeout: float | None) -> None:
        if self.returncode is not None:
            return
        looking = select.poll()
        looking.register(self._pidfd, select.POLLIN)
        if looking.poll(None if timeout is None else 1000 * timeout):
            with self._waitpid_lock:  # type: ignore[attr-defined]
                if self.returncode is None:
                    self.returncode = self._server.ask({"wait": self.pid})
                    os.close(self._pidfd)


class _Server:
    """The server, as the process that asks sees it."""

    def __init__(self) -> None:
        self.at_start = _at_start(os.environ)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *(["measured"] if MEASUREMENT in os.environ else [])],
                env={name: value for name, value in os.environ.items() if name not in _NOT_FOR_THE_SERVER},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.able = self.ask({"able": "?"}) == 1

    def ask(self, request: dict[str, object], descriptors: dict[int, int] | None = None) -> int:
        """The answer to a request; `descriptors` as they are to be numbered there, and as they are numbered here."""
        numbers, fds = [*(descriptors or {})], [*(descriptors or {}).values()]
        data = marshal.dumps((request, numbers))
        connection, theirs = socket.socketpair()
        with connection:
            with theirs:
                socket.send_fds(self._socket, [b"?"], [theirs.fileno()])
            connection.settimeout(PATIENCE)
            socket.send_fds(connection, [_LENGTH.pack(len(data))], fds)
            connection.sendall(data)
            answer = marshal.loads(_message(connection))
        if isinstance(answer, str):
            raise OSError(f"no process was forked: {answer}")
        return int(answer)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


_server: _Server | None = None
_starting = threading.Lock()
"""Keeps two threads that ask for the first process from starting two servers, of which one is left."""


def _server_of_this_process() -> _Server | None:
    """The server, started at first use; None if there can be none."""
    global _server
    with _starting:
        if _server is None and os.environ.get("HOLDFAST_TEST_WARM") != "no":
            _server = _Server()
    return _server if _server is not None and _server.able else None


def descriptors() -> set[int]:
    """Descriptors that this process has open for its server."""
    return {_server.fileno()} if _server is not None else set()


def end() -> None:
    """End the server; its children that have not been reaped end with it."""
    global _server
    if _server is not None:
        _server.close()
        _server.process.wait(PATIENCE)
        _server = None


def _forget() -> None:
    """Forget the server (W4): a fork of the process that asks would keep it alive."""
    global _server
    if _server is not None:
        _server.close()
        _server.process.returncode = 0  # it is no child of this one
        _server = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _message(connection: socket.socket) -> bytes:
    return _exactly(connection, _LENGTH.unpack(_exactly(connection, _LENGTH.size))[0])


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise ConnectionError("the other end of a warm process has ended")
        found += more
    return found


# -- The server --------------------------------------------------------------------------------------------------------


def _main(number: int, *measured: str) -> None:
    asked = socket.socket(fileno=number)
    del sys.path[0]
    if measured:
        importlib.import_module("coverage")
    _import_holdfast()
    children: set[int] = set()
    while True:
        message, fds, _, _ = socket.recv_fds(asked, 1, 1)
        if not message:
            break  # W4
        with socket.socket(fileno=fds[0]) as connection:
            try:
                _serve(connection, children)
            except OSError:
                pass  # W5: the one that asked has given up
    for pid in children:
        for kill in (os.killpg, os.kill):
            try:
                kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _import_holdfast() -> None:
    """Import all of holdfast, except modules that need other packages or another system; and modules that commands and
    tests import at need."""
    import holdfast
    from holdfast.cli import parse

    _import_all_of(holdfast)
    for name in ("asyncio", "json", "logging", "random", "select", "tempfile", "textwrap", "unicodedata", "uuid"):
        importlib.import_module(name)
    parse(["status", "x"])  # which compiles argparse's expressions
    gc.collect()
    getattr(gc, "freeze", gc.collect)()


def _import_all_of(package: ModuleType) -> None:
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if found.name.rpartition(".")[2] not in ("__main__", "metrics", "testing", "tracing", *_OF_WINDOWS, *_ENGINES):
            module = importlib.import_module(found.name)
            if found.ispkg:
                _import_all_of(module)


_OF_WINDOWS = ("windows", "windows_console")
_ENGINES = {"postgresql": "psycopg", "etcd": "socket"}
"""Engines that are imported when they are first named, and the modules that they import last."""


def _import_engines(words: list[bytes]) -> None:
    for engine, library in _ENGINES.items():
        if any(f"{engine}://".encode() in word for word in words):
            _import_all_of(importlib.import_module(f"holdfast.engines.{engine}"))
            importlib.import_module(library)


def _serve(connection: socket.socket, children: set[int]) -> None:
    head, received, _, _ = socket.recv_fds(connection, _LENGTH.size, 64)
    try:
        if not head:
            return
        request, numbers = marshal.loads(_exactly(connection, *_LENGTH.unpack(head)))
        if "able" in request:
            _answer(connection, _show([b"words"], {b"name": b"value"}))
        elif "wait" in request:
            children.discard(request["wait"])
            _answer(connection, os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]))
        else:
            _import_engines(request["words"])
            pid = os.fork()
            if pid == 0:
                _be(request, dict(zip(numbers, received, strict=True)), connection)
            children.add(pid)
    except (ImportError, BlockingIOError) as error:
        _answer(connection, repr(error))
    finally:
        for fd in received:
            os.close(fd)


def _answer(connection: socket.socket, what: int | str) -> None:
    data = marshal.dumps(what)
    connection.sendall(_LENGTH.pack(len(data)) + data)


# -- A process that it has forked --------------------------------------------------------------------------------------


def _be(request: dict[str, Any], descriptors: dict[int, int], connection: socket.socket) -> NoReturn:
    above = 1 + max(*descriptors, 63)
    answer = socket.socket(fileno=fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, above))
    try:
        _keep_only(descriptors, answer.fileno())
        os.setsid()
        os.chdir(request["directory"])
        if request["terminal"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.environb.clear()
        os.environb.update(request["environment"])
        time.tzset()
        _show(request["words"], request["environment"])
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            stream = _stream(number, name)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        run = _program([*map(os.fsdecode, request["words"])])
        _measure()
        _answer(answer, os.getpid())
        answer.close()
    except BaseException as error:
        _answer(answer, f"{type(error).__name__}: {error}")
        os._exit(255)
    _run(run)


def _keep_only(descriptors: dict[int, int], answer: int) -> None:
    """Give each of these its number, and close all others but the one for the answer, which is above them."""
    copies = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, answer) for number, fd in descriptors.items()}
    last = -1
    for number, fd in [*sorted(copies.items()), (answer, answer), (1 << 20, answer)]:
        if last + 1 < number:  # of an empty range Python makes an endless one
            os.closerange(last + 1, number)
        if fd != answer:
            os.dup2(fd, number)
        last = number


def _measure() -> None:
    """Measure this process (W6): the result is saved in `os._exit`, with which `_run` and all forks of this process
    end; and before a signal by which it ends itself, as the command line does when its child was ended by one."""
    if MEASUREMENT not in os.environ:
        return
    coverage, kill = importlib.import_module("coverage"), os.kill
    coverage.process_startup(force=True)

    def save_and_kill(pid: int, number: int) -> None:
        measurement = coverage.Coverage.current()
        if pid == os.getpid() and signal.getsignal(number) is signal.SIG_DFL and measurement is not None:
            measurement.save()
        kill(pid, number)

    os.kill = save_and_kill


_shown: list[object] = []


def _show(words: list[bytes], environment: dict[bytes, bytes]) -> bool:
    """Tell the kernel where the words and the environment of this process are (prctl(2), PR_SET_MM_MAP); whether it
    could be told."""
    arguments = b"".join(word + b"\0" for word in words)
    variables = b"".join(name + b"=" + value + b"\0" for name, value in environment.items())
    memory = ctypes.create_string_buffer(arguments + variables)
    _shown.append(memory)  # for as long as the process lives
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    with open("/proc/self/stat", "rb", buffering=0) as file:
        fields = file.readall().rpartition(b")")[2].split()
    field = {number: int(fields[number - 3]) for number in (26, 27, 28, 45, 46, 47)}  # as they are numbered in proc(5)
    begin = ctypes.addressof(memory)
    middle = begin + len(arguments)
    table = struct.pack(
        "=11QQII",
        *(field[26], field[27], field[45], field[46], field[47], libc.sbrk(0), field[28]),
        *(begin, middle, middle, middle + len(variables)),
        *(0, 0, 0xFFFFFFFF),  # neither another auxiliary vector nor another program
    )
    PR_SET_MM, PR_SET_MM_MAP = 35, 14
    return bool(libc.prctl(PR_SET_MM, PR_SET_MM_MAP, table, ctypes.c_ulong(len(table)), ctypes.c_ulong(0)) == 0)


def _stream(number: int, name: str) -> Any:
    """The stream as an interpreter makes it (create_stdio in pylifecycle.c); None if the descriptor is closed."""
    try:
        os.fstat(number)
    except OSError:
        return None
    mode = "r" if number == 0 else "w"
    buffered = not os.environ.get("PYTHONUNBUFFERED")
    buffer = open(number, f"{mode}b", -1 if buffered or mode == "r" else 0, closefd=False)  # noqa: SIM115
    raw = getattr(buffer, "raw", buffer)
    raw.name = f"<{name}>"
    like = getattr(sys, f"__{name}__")
    lines = buffered and (raw.isatty() or number == 2)
    stream: Any = io.TextIOWrapper(buffer, like.encoding, like.errors, "\n", lines, not buffered)
    stream.mode = mode
    return stream


def _program(words: list[str]) -> Callable[[], object]:
    """The program that the words tell an interpreter to run."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __loader__=BuiltinImporter)
    sys.modules["__main__"] = main
    sys.orig_argv[:] = words
    what, rest = words[1], words[2:]
    if what == "-m":
        sys.argv[:] = ["-m", *rest[1:]]
        sys.path.insert(0, os.getcwd())
        return lambda: runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    if what == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        return lambda: exec(_code(rest[0]), main.__dict__)
    sys.argv[:] = words[1:]
    sys.path.insert(0, os.path.dirname(os.path.realpath(what)))
    main.__dict__.update(__file__=os.path.abspath(what), __cached__=None, __loader__=SourceFileLoader("__main__", what))

    def script() -> None:
        with open(what, "rb") as file:
            source = file.read()
        exec(compile(source, what, "exec", dont_inherit=True), main.__dict__)

    return script


def _code(source: str) -> CodeType:
    if sys.version_info >= (3, 13):  # a traceback shows it
        linecache.cache["<string>"] = (len(source), None, source.splitlines(keepends=True), "<string>")
    return compile(source, "<string>", "exec", dont_inherit=True)


def _run(run: Callable[[], object]) -> NoReturn:
    """Run the program, and end as an interpreter ends (W3)."""
    status, interrupted = 0, False
    try:
        run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, (int, type(None))):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        status, interrupted = 1, isinstance(error, KeyboardInterrupt)
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError) as error:
            status = 120
            where = f"in: {stream!r}" if sys.version_info < (3, 13) else f"on flushing sys.{name}:"
            print(f"Exception ignored {where}\n{type(error).__name__}: {error}", file=sys.stderr)
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    _main(int(sys.argv[1]), *sys.argv[2:])
