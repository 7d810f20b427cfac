"""Code as users write it: two type checkers look at it in `make check` (`typed/`); here it runs, and is complete."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from pathlib import Path

import jedi
import pytest

import holdfast

TYPED = Path(__file__).parent / "typed"


@pytest.mark.needs("flock")
def test_the_code_that_the_type_checkers_accept_runs(disk: Path) -> None:
    spec = importlib.util.spec_from_file_location("user_code", TYPED / "user_code.py")
    assert spec is not None
    assert spec.loader is not None
    user_code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(user_code)
    user_code.main(disk)
    # Files that are meant to stay: kernel locks, and the counter of tokens.
    assert {path.name for path in disk.iterdir()} == {"flock", "shared", "a.lock.token"}


def test_every_public_name_is_in_code_whose_types_are_checked() -> None:
    tree = ast.parse((TYPED / "user_code.py").read_text())
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert set(holdfast.__all__) <= used


def test_every_mistake_is_expected_from_both_checkers() -> None:
    """Each such line expects an error of each; `make check` reports an expectation that is not met."""
    lines = (TYPED / "wrong_uses.py").read_text().splitlines()
    mistakes = [line for line in lines if "ignore" in line and line.startswith("    ")]
    assert len(mistakes) > 30
    one_sided = [line for line in mistakes if not re.search(r"# type: ignore\[.+\] # pyright: ignore\[.+\]$", line)]
    assert not one_sided


@pytest.mark.parametrize("name", ["Lock", "AsyncLock", "Semaphore", "AsyncSemaphore"])
def test_an_editor_shows_and_completes_every_option(name: str) -> None:
    """By jedi; pyright reads the same signatures."""
    here = jedi.InterpreterEnvironment()  # which starts no process
    options = {
        one.name
        for one in inspect.signature(getattr(holdfast, name)).parameters.values()
        if one.default is not one.empty
    }
    call = f"import holdfast\nholdfast.{name}('x', "
    (shown,) = jedi.Script(call, environment=here).get_signatures()
    assert options <= {one.name for one in shown.params}
    assert f"{min(options)}=" in {one.name for one in jedi.Script(call + min(options)[:3], environment=here).complete()}
