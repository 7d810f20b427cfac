"""The list of code that no test reaches fits the source; and the complaints of `make coverage`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reach import named, report

CODE = """\
import os

class Hub:
    def read(self):
        if self.fd:
            return None
        if self.other:
            return None

        def inner():
            return 1
        return inner
"""


def test_every_name_in_the_list_of_unreached_code_is_in_the_source() -> None:
    assert list(named.leading_nowhere(named.modules())) == []


def test_everything_is_named_once_and_with_a_reason() -> None:
    names = [name for group in named.groups() for name in group.names]
    assert all(group.reason.strip() for group in named.groups())
    assert len(set(names)) == len(names)


def test_every_module_is_in_a_part_of_the_table_and_every_part_has_one() -> None:
    assert {report.part_of(file) for file in named.modules()} == set(report.PARTS)


@pytest.mark.parametrize(
    ("place", "names"),
    [
        (1, ["m.py | - | import os", "m.py | -"]),
        (4, ["m.py | - | def read(self):", "m.py | -"]),
        (6, ["m.py | Hub.read | return None #1", "m.py | Hub.read", "m.py | Hub"]),
        (8, ["m.py | Hub.read | return None #2", "m.py | Hub.read", "m.py | Hub"]),
        (11, ["m.py | Hub.read.inner | return 1", "m.py | Hub.read.inner", "m.py | Hub.read", "m.py | Hub"]),
        ((7, 10), ["m.py | Hub.read | if self.other: -> def inner():", "m.py | Hub.read", "m.py | Hub"]),
        ((7, -4), ["m.py | Hub.read | if self.other: -> exit", "m.py | Hub.read", "m.py | Hub"]),
    ],
)
def test_a_name_does_not_depend_on_the_number_of_a_line(place: named.Place, names: list[str]) -> None:
    for above in (0, 3):
        module = named.Module("m.py", "\n" * above + CODE)
        moved = (
            place + above if isinstance(place, int) else (place[0] + above, place[1] + (above if place[1] > 0 else 0))
        )
        assert module.names(moved) == names
        assert all(module.has(name) for name in names)


@pytest.mark.parametrize(
    "name",
    [
        "m.py | Hub.write",
        "m.py | Hub.re",
        "m.py | Hub.read | return 1",
        "m.py | Hub.read | return None",
        "m.py | Hub.read | return None #3",
        "m.py | Hub.read | if self.fd: -> return 2",
    ],
)
def test_a_name_without_code_is_not_found_in_the_source(name: str) -> None:
    assert not named.Module("m.py", CODE).has(name)


class Case:
    """A measurement of one module, and the names listed as unreached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[named.Group] = []
        self.lines: list[int] = []
        self.branches: list[tuple[int, int]] = []
        self.reached = 100
        monkeypatch.setattr(named, "modules", lambda: {"_core/m.py": named.Module("_core/m.py", CODE)})
        monkeypatch.setattr(named, "groups", lambda: self.groups)

    def name(self, *names: str, sometimes: bool = False) -> None:
        self.groups.append(named.Group("a reason", [f"_core/m.py | {name}" for name in names], sometimes))

    def complaints(self) -> list[str]:
        summary = {"num_branches": 100, "missing_branches": 100 - self.reached, "num_statements": 9, "missing_lines": 0}
        file = {"missing_lines": self.lines, "missing_branches": self.branches, "summary": summary}
        return report.complaints(report.Measured({str(named.SOURCE / "_core/m.py"): file}))


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    return Case(monkeypatch)


def test_a_line_is_reached_or_named(case: Case) -> None:
    case.lines = [6]
    assert case.complaints() == ["neither reached nor named: _core/m.py | Hub.read | return None #1"]
    case.name("Hub.read | return None #1")
    assert case.complaints() == []


def test_a_branch_is_reached_or_named(case: Case) -> None:
    case.branches = [(7, 10)]
    assert case.complaints() == ["neither reached nor named: _core/m.py | Hub.read | if self.other: -> def inner():"]
    case.name("Hub.read | if self.other: -> def inner():")
    assert case.complaints() == []


def test_a_branch_need_not_be_named_beside_the_line_it_leads_to(case: Case) -> None:
    case.lines, case.branches = [6], [(5, 6), (6, -4)]
    case.name("Hub.read | return None #1")
    assert case.complaints() == []


def test_a_whole_function_need_not_be_named_line_by_line(case: Case) -> None:
    case.lines = [5, 6, 7, 8, 10, 11, 12]
    case.name("Hub.read")
    assert case.complaints() == []


def test_a_line_that_is_reached_is_not_named(case: Case) -> None:
    case.name("Hub.read | return None #1")
    assert case.complaints() == ["named, but reached: _core/m.py | Hub.read | return None #1"]
    case.groups.clear()
    case.name("Hub.read | return None #1", sometimes=True)
    assert case.complaints() == []


def test_a_name_does_not_outlive_its_line(case: Case) -> None:
    case.name("Hub.write", sometimes=True)
    assert case.complaints() == ["named, but not in the source: _core/m.py | Hub.write"]


def test_too_few_reached_branches_are_a_complaint(case: Case) -> None:
    case.reached = 97
    assert case.complaints() == []
    case.reached = 96
    assert case.complaints() == ["96.0 % of the branches of the engine on files are reached, not 97"]
