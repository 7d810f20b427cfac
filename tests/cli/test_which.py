"""`holdfast protocols`, and the page with the same table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.support import HOLDFAST, World
from holdfast import protocols
from holdfast.cli.which import CHOICES

PAGE = Path(__file__).parents[2] / "docs" / "which-protocol.md"


def test_the_page_has_the_table_of_the_command() -> None:
    rows = re.findall(r"^\| (.*?) \|(?: \[`([\w-]+)`\]\(\S+\))? \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert [(others, protocol, write.replace("`", "")) for others, protocol, write in rows] == [
        (one.others, one.protocol, one.write) for one in CHOICES
    ]


def test_every_protocol_has_a_row() -> None:
    assert {one.protocol for one in CHOICES} - {""} == set(protocols.names())


def test_each_recommended_option_selects_its_protocol() -> None:
    for one in CHOICES:
        given = re.match(r"-p ([\w-]+)", one.write)
        assert (given[1] if given else "sema") == (one.protocol or "sema")


def test_the_command_prints_the_table_as_text_and_as_json(world: World) -> None:
    shown = world.do("protocols").stdout
    for one in CHOICES:
        assert f"  {one.others}\n      {one.write}\n" in shown
    found = [json.loads(line) for line in world.do("protocols", "-j").stdout.splitlines()]
    assert [one["protocol"] for one in found] == protocols.names()
    assert all(one["lock"] and one["used_by"] for one in found)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_table_fits_any_terminal(world: World, columns: int) -> None:
    one = world.terminal(["sh", "-c", f'stty cols {columns}; exec "$@"', "sh", *HOLDFAST, "protocols"])
    shown = one.rest().replace("\r", "")
    assert one.wait() == 0
    assert max(map(len, shown.splitlines())) <= columns
    assert all("".join(row.others.split()) in "".join(shown.split()) for row in CHOICES)
