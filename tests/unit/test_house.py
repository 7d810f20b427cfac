"""The rules of the house: who may import whom, who may touch the system, and size limits."""

from __future__ import annotations

import ast
import functools
import graphlib
import inspect
import pickle
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import protocols
from holdfast._core.options import Options
from holdfast.cli import options as cli_options

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
FILES = sorted(SOURCE.rglob("*.py"))
NAMES = {path: path.relative_to(SOURCE).as_posix() for path in FILES}
FACES = ("sema", "semats", "sidecar", "beads")

# From the top of the house to its ground. An arrow points down, or stays in its room; `TYPE_CHECKING` imports and those
# inside functions are arrows as well.
LAYERS = (
    "__main__",
    "cli",
    "testing",
    "pytest",
    "",
    "face",  # sema, semats, sidecar, beads
    "aio",
    "several",
    "lock",
    "_admin",
    "engines",
    "_drivers",
    "metrics",
    "tracing",
    "_core",
    "protocols",
    "events",
    "plugins",
    "_platform",
    "errors",
    "model",
    "liveness",
)
# Rooms that are below, but must not be imported either.
CLOSED = {
    "_platform": {"plugins", "events", "protocols"},
    "protocols": {"_platform", "events"},
    "_core": {"plugins"},
}

# Standard modules that can reach the world or wait, and the harmless names in them that `_core` may use.
OUTSIDE = {
    "os": {"path", "fsdecode", "fsencode", "PathLike", "getcwd"},
    "time": {"strftime", "localtime"},  # what a moment is called, not what time it is
    "_thread": {"RLock", "_local"},
    "threading": set(),
    "select": set(),
    "socket": set(),
    "subprocess": set(),
    "random": set(),
    "secrets": set(),
    "uuid": set(),
    "io": set(),
    "pathlib": set(),
    "shutil": set(),
    "tempfile": set(),
    "signal": set(),
    "asyncio": set(),
    "datetime": {"UTC", "datetime", "timedelta", "timezone"},  # the calendar: not `datetime.now`
}
# Links are followed where a lock is made, for which there is no environment yet; os.path.realpath would do the same.
ALLOWED = {
    "engines/file/paths.py": {
        "os": {
            *("path", "PathLike", "fsdecode", "fsencode", "getcwd", "open", "close", "fstat", "lstat", "readlink"),
            *("geteuid", "sep", "stat_result", "O_PATH", "O_NOFOLLOW", "O_CLOEXEC"),
        }
    }
}


PURE = ("_core/", "_admin/", "engines/file/", "protocols/")


def module_of(path: Path) -> str:
    return NAMES[path].removesuffix(".py").replace("/", ".").removesuffix("__init__").removesuffix(".")


def layer_of(module: str) -> str:
    top = module.split(".")[0]
    return "face" if top.split("_")[0] in FACES else top


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> list[tuple[int, str]]:
    """(line, module) of each import; holdfast's own as `holdfast` or `holdfast.x.y`."""
    return [*_imports(path)]


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    package = ["holdfast", *NAMES[path].split("/")[:-1]]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{name}.{alias.name}"
                is_module = inner.removeprefix("holdfast.").replace(".", "/")
                found = (SOURCE / f"{is_module}.py").exists() or (SOURCE / is_module / "__init__.py").exists()
                yield node.lineno, inner if name.split(".")[0] == "holdfast" and found else name


@functools.cache
def code_without_docstrings(path: Path) -> str:
    """The module as the compiler sees it: no comments, no docstrings."""
    tree = ast.parse(path.read_text())  # its own, as it is changed
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def each_of(files: list[Path]) -> Callable[[Callable[[Path], None]], object]:
    """One test for each room of the house, which checks each file in it: hundreds of tests would cost seconds."""
    rooms: dict[str, list[Path]] = {}
    for path in files:
        rooms.setdefault(NAMES[path].split("/")[0], []).append(path)

    def test_of(check: Callable[[Path], None]) -> object:
        @pytest.mark.parametrize("room", rooms)
        def test(room: str) -> None:
            for path in rooms[room]:
                check(path)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return test_of


@each_of(FILES)
def test_every_import_points_down(path: Path) -> None:
    layer = layer_of(module_of(path))
    assert layer in LAYERS, f"{NAMES[path]} belongs to no layer: add it to LAYERS where it stands"
    reach = {layer, *LAYERS[LAYERS.index(layer) + 1 :]} - CLOSED.get(layer, set())
    wrong = [
        f"{NAMES[path]}:{line} imports {name}"
        for line, name in imports(path)
        if name.split(".")[0] == "holdfast" and layer_of(name.removeprefix("holdfast").removeprefix(".")) not in reach
    ]
    assert not wrong


def test_no_imports_form_a_circle() -> None:
    """Including imports for type checkers only, and imports inside functions."""
    arrows = {}
    for path in FILES:
        here = f"holdfast.{module_of(path)}".removesuffix(".")
        arrows[here] = {name for _, name in imports(path) if name.split(".")[0] == "holdfast"} - {here}
    try:
        tuple(graphlib.TopologicalSorter(arrows).static_order())
    except graphlib.CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


@each_of([p for p in FILES if p.name == "__init__.py"])
def test_no_module_replaces_what_its_package_defines(path: Path) -> None:
    """Importing `a.b` binds `b` in `a`, over any earlier value."""
    defined = {getattr(node, "name", "") for node in parsed(path).body}
    assert not defined & {other.stem for other in path.parent.iterdir()}


@each_of([p for p in FILES if not NAMES[p].startswith("testing/")])
def test_production_does_not_import_the_simulation(path: Path) -> None:
    assert not [name for _, name in imports(path) if name.startswith("holdfast.testing")]


@each_of(
    [
        p
        for p in FILES
        if NAMES[p].startswith(("_core/", "_admin/", "engines/file/", "protocols/")) or NAMES[p] == "model.py"
    ]
)
def test_an_engine_reaches_the_world_only_through_its_environment(path: Path) -> None:
    tree = parsed(path)
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.add((node.value.id, node.attr))
        elif isinstance(node, ast.ImportFrom) and node.module in OUTSIDE and not node.level:
            used.update((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "input", "print", "exec", "eval"), (
                f"line {node.lineno}: {node.func.id}()"
            )
    allowed = {**OUTSIDE, **ALLOWED.get(NAMES[path], {})}
    wrong = sorted(f"{module}.{name}" for module, name in used if name not in allowed.get(module, {name}))
    assert not wrong


@each_of([p for p in FILES if not NAMES[p].startswith("_platform/")])
def test_only_platform_knows_which_system_it_is(path: Path) -> None:
    words = re.findall(r"sys\.platform|\bfcntl\b|\bctypes\b|/proc\b|\bos\.uname\b", code_without_docstrings(path))
    assert not words


# Names of the standard library that have no public equivalent, and the documented ones of a named tuple.
NO_OTHER_NAME = {
    "_thread._local",
    "os._exit",
    "sys._getframe",
    "threading._shutdown",
    "atexit._run_exitfuncs",
    "_fields",
    "_replace",
}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names(tree: ast.AST) -> set[str]:
    """Names that a module defines itself, also in its classes: there, one object may use another's."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
        if isinstance(node, ast.ClassDef):
            names = [part for line in node.body if not isinstance(line, ast.FunctionDef) for part in ast.walk(line)]
            found |= {part.id for part in names if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
            found |= {part.value for part in names if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return found


@each_of(FILES)
def test_no_module_uses_another_ones_underscore_names(path: Path) -> None:
    tree = parsed(path)
    mine = own_names(tree)
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in mine | NO_OTHER_NAME:
            whole = ast.unparse(node)
            if whole.rpartition(".")[0] not in ("self", "cls") and whole not in NO_OTHER_NAME:
                wrong.append(f"{NAMES[path]}:{node.lineno} {whole}")
        elif isinstance(node, ast.ImportFrom) and node.level:
            rooms = {"_admin", "_core", "_drivers", "_platform"}
            wrong += [
                f"{NAMES[path]}:{node.lineno} {a.name}"
                for a in node.names
                if _is_private(a.name) and a.name not in rooms
            ]
    assert not wrong


# The conformance kit waits for the processes that it starts, as the command line does. Windows refuses steps for a
# moment on a file that another program has open, so they may have to be tried again.
WAITING = ("_drivers/", "cli/", "testing/", "_platform/windows.py")


@each_of([p for p in FILES if not NAMES[p].startswith(WAITING)])
def test_only_drivers_wait(path: Path) -> None:
    code = code_without_docstrings(path)
    code = code.replace(".poll(0)", "").replace("select.poll()", "")  # a question, not a wait
    waits = re.findall(r"\bsleep\(|\.poll\(|\bselect\.select\(|\bepoll\(|\.join\(timeout|\bsigwait", code)
    assert not waits


@each_of(FILES)
def test_no_function_is_longer_than_its_limit(path: Path) -> None:
    long = [
        f"{node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(parsed(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > 60
    ]
    assert not long, "find the second subject"


def test_the_public_surface_stays_small_and_is_fully_listed() -> None:
    assert len(holdfast.__all__) <= 25
    assert sorted(holdfast.__all__) == holdfast.__all__
    visible = {
        name
        for name, value in vars(holdfast).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name not in holdfast.__all__
    }
    assert not visible, "public by accident"


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_has_a_docstring(name: str) -> None:
    thing = getattr(holdfast, name)
    assert (thing.__doc__ or "").strip(), f"{name} has no docstring"
    if not inspect.isclass(thing) or thing.__module__ == "holdfast.errors":
        return
    silent = [
        method
        for method, value in vars(thing).items()
        if not method.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property))
        and not value.__doc__
    ]
    # Fields and codec methods of plain values are explained by the class.
    assert not silent or thing.__module__ == "holdfast.model"


def test_the_version_has_one_source() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in whole["project"]
    assert whole["tool"]["hatch"]["version"]["path"] == "src/holdfast/__init__.py"


def test_the_places_of_decisions_on_the_architecture_page_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("## Where each decision is made")[2].partition("\n## ")[0]
    places = re.findall(r"`([\w/]+\.py)` `(\w+)`", table)
    assert len(places) > 20
    for file, name in places:
        assert re.search(rf"\b(def|class) {name}\b", (SOURCE / file).read_text()), (file, name)


@pytest.mark.parametrize("option", sorted(Options.__annotations__))
def test_every_option_is_explained_in_the_docstring_of_lock(option: str) -> None:
    assert f"- `{option}`:" in (inspect.getdoc(holdfast.Lock) or "")


def test_every_explained_option_exists() -> None:
    with_hint = set(re.findall(r"^- `(\w+)`:", inspect.getdoc(holdfast.Lock) or "", re.MULTILINE))
    assert with_hint == set(Options.__annotations__)


def _options_of(kind: type) -> dict[str, tuple[object, object]]:
    """The type and the default of each option by name, as an editor shows them."""
    wanted = inspect.signature(kind).parameters.values()
    return {one.name: (one.annotation, one.default) for one in wanted if one.kind is one.KEYWORD_ONLY}


def test_every_built_in_protocol_is_named_where_people_choose_one() -> None:
    """In the signatures, for editors, and in the command line's help."""
    for kind in (holdfast.Lock, holdfast.Semaphore):
        shown = str(inspect.signature(kind).parameters["protocol"].annotation)
        assert set(re.findall(r"""["']([\w-]+)["']""", shown)) == set(protocols._BUILT_IN)
    assert set(cli_options.PROTOCOLS) == set(protocols._BUILT_IN)


@pytest.mark.parametrize("name", ["AsyncLock", "Semaphore", "AsyncSemaphore"])
def test_every_kind_of_lock_has_the_options_of_lock_with_their_types_and_defaults(name: str) -> None:
    assert _options_of(getattr(holdfast, name)) == _options_of(holdfast.Lock)


def test_the_options_of_lock_are_those_that_the_engines_know() -> None:
    assert _options_of(holdfast.Lock).keys() == Options.__annotations__.keys()


@pytest.mark.parametrize("name", ["Lock", "AsyncLock", "Semaphore", "AsyncSemaphore"])
def test_a_mistyped_option_is_reported_by_public_names_only(name: str) -> None:
    kind = getattr(holdfast, name)
    with pytest.raises(TypeError) as raised:
        kind("x", *([2] if "Semaphore" in name else []), tmeout=1)
    assert str(raised.value).removeprefix("Async") in {
        f"{public}.__init__() got an unexpected keyword argument 'tmeout'" + hint
        for public in ("Lock", "Semaphore")
        for hint in ("", ". Did you mean 'timeout'?")
    }


@pytest.mark.parametrize("name", ["Lock", "AsyncLock", "Semaphore", "AsyncSemaphore"])
def test_a_mistyped_argument_is_reported_without_the_name_of_a_base(name: str) -> None:
    kind = getattr(holdfast, name)
    first = name.replace("Semaphore", "Lock")  # what both have is the lock's
    for method in ("acquire", "try_acquire", "wait", "status"):
        with pytest.raises(TypeError, match=rf"^({name}|{first})\.{method}\(\) "):
            getattr(kind, method)(None, tmeout=1)


@pytest.mark.parametrize("name", ["Lock", "AsyncLock", "Semaphore", "AsyncSemaphore"])
@pytest.mark.parametrize("method", ["acquire", "try_acquire", "wait", "status"])
def test_a_method_can_be_sent_to_another_process(name: str, method: str) -> None:
    """As `map(Lock.wait, locks)` of a pool of processes does."""
    function = getattr(getattr(holdfast, name), method)
    assert pickle.loads(pickle.dumps(function)) is function


def invariants() -> dict[str, str]:
    """Each numbered invariant in the head of a module, and where it is (tests of the command line cover its own)."""
    found: dict[str, str] = {}
    for path in FILES:
        if NAMES[path].startswith(("cli/", "testing/")):
            continue
        for name in re.findall(r"^([A-Z]{1,2}\d+) +\S", ast.get_docstring(parsed(path)) or "", re.MULTILINE):
            assert name not in found, f"{name} stands in {found[name]} and in {NAMES[path]}"
            found[name] = NAMES[path]
    return found


def test_every_invariant_has_a_test_that_names_it() -> None:
    named: set[str] = set()
    tests = Path(__file__).parents[1]
    rooms = ("unit", "process", "engines", "platforms")
    for path in [path for room in rooms for path in tests.glob(f"{room}/**/test_*.py")]:
        for node in ast.walk(parsed(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                named.update(re.findall(r"\b[A-Z]{1,2}\d+\b", ast.get_docstring(node) or ""))
    wanted = invariants()
    assert len(wanted) > 30, "the pattern finds no invariants any more"
    missing = {name: where for name, where in wanted.items() if name not in named}
    assert not missing
