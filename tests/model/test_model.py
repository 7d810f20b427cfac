"""The smallest of the models is searched, and the page about them fits the engine (docs/simulation.md)."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "src" / "holdfast" / "engines" / "file"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("model_check", ROOT / "model" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


check = _load()
needs_spin = pytest.mark.skipif(bool(check.missing()), reason=check.missing() or "spin is there")


@needs_spin
def test_the_smallest_model_keeps_its_promises_and_two_mutants_break_them() -> None:
    words = [sys.executable, str(ROOT / "model" / "check.py"), "--only", "smallest", "barging", "early-marker"]
    done = subprocess.run(words, capture_output=True, text=True)
    results = dict(re.findall(r"^([a-z-]+) .*\d  (.*)$", done.stdout, re.MULTILINE))
    assert results == {"smallest": "holds, and ends", "barging": "order", "early-marker": "exclusion"}, done.stderr
    assert done.returncode == 0


@needs_spin
@pytest.mark.parametrize(
    ("options", "breaks"),
    [
        pytest.param("N=2", "P1", id="a mutant that does no harm"),
        pytest.param("N=2 REPLACES=true", "", id="a configuration that breaks a promise"),
        pytest.param("N=2 CRASHES=nothing", "P1", id="a model that cannot be built"),
    ],
)
def test_an_unexpected_outcome_is_reported(options: str, breaks: str) -> None:
    case = check.Case("odd", check.LOCK, options, breaks)
    reported: list[object] = []
    assert [outcome.case for outcome in check.check([case], reported.append)] == [case]
    assert len(reported) == 1


@needs_spin
def test_a_run_that_breaks_a_promise_is_shown_step_by_step() -> None:
    steps = list(check.trace(check.Case("replacing", check.LOCK, "N=2 REPLACES=true", "P1")))
    assert steps.count("contender 1  Link") == steps.count("contender 2  Link") == 1
    assert "assertion violated" in steps[-2]


def _invariants(*modules: str) -> dict[str, str]:
    heads = {name: ast.get_docstring(ast.parse((ENGINE / f"{name}.py").read_text())) or "" for name in modules}
    pattern = re.compile(r"^([A-Z]{1,2}\d+)  ?\S", re.MULTILINE)
    return {found: name for name, head in heads.items() for found in pattern.findall(head)}


def test_each_mutant_breaks_an_invariant_that_exists() -> None:
    known = _invariants("queue", "publish", "takeover", "remove", "hold", "watched")
    assert {case.breaks for case in check.MUTANTS} <= known.keys()


def test_the_page_has_a_mutant_or_a_reason_for_each_invariant() -> None:
    page = (ROOT / "docs" / "simulation.md").read_text()
    rows = re.findall(r"^\| ([A-Z]+\d+) \| `([\w-]+)` \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert [row[:3] for row in rows] == [(case.breaks, case.name, case.what) for case in check.MUTANTS]
    unmodelled = page.partition("### What is modelled, and what is not")[2]
    named = {case.breaks for case in check.MUTANTS} | set(re.findall(r"\b[QPT]\d+\b", unmodelled))
    assert not _invariants("queue", "publish", "takeover").keys() - named


def test_the_page_lists_each_configuration_with_its_options() -> None:
    page = (ROOT / "docs" / "simulation.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| `([^`]*)` \|", page, re.MULTILINE)
    assert rows == [(case.name, case.options) for case in check.CONFIGURATIONS]
