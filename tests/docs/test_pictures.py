"""The pictures of the documentation are what their scripts draw, and every one of them is on a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.pictures import executors, league, oracle, partitions
from tools.pictures.drawing import PICTURES

from tests.docs.code_blocks import ROOT, find_pages

DRAWN = [oracle.draw_composition, oracle.draw_geometry, oracle.draw_round, executors.draw, league.draw]


@pytest.mark.parametrize("draw", DRAWN, ids=lambda draw: f"{draw.__module__}.{draw.__name__}")
def test_a_picture_says_what_its_script_says(draw, tmp_path: Path) -> None:
    fresh = draw(tmp_path)
    assert read_texts(fresh) == read_texts(PICTURES / fresh.name), f"python -m {draw.__module__}"


def read_texts(path: Path) -> list[str]:
    """Return the words of a picture; the paths' digits may differ between versions of matplotlib."""
    found = re.findall(r"<text [^>]*>([^<]*)</text>|<tspan [^>]*>([^<]*)</tspan>", path.read_text("utf-8"))
    assert found
    return ["".join(one) for one in found]


def test_the_round_has_every_hook() -> None:
    """A hook that is added to `Part` must be drawn, or be named here as one that describes the part."""
    drawn = {hook for _, hooks in oracle.ROUND for hook in hooks}
    describing = {"server_state", "client_state", "round_state", "objection", "caution", "has"}
    describing |= {"local_steps", "counted", "stride"}
    hooks = {name for name, thing in vars(oracle.Part).items() if callable(thing) and not name.startswith("_")}
    assert hooks == drawn | describing


def test_the_table_of_partitions_is_that_of_the_picture() -> None:
    found = {name: rule() for name, rule in partitions.RULES.items()}
    page = partitions.PAGE.read_text("utf-8")
    assert partitions.renew_table(page, found) == page, "python -m tools.pictures.partitions"


def test_every_picture_is_used() -> None:
    pages = "\n".join(path.read_text("utf-8") for path in find_pages())
    unused = [path.name for path in PICTURES.iterdir() if f"pictures/{path.name}" not in pages]
    assert not unused, f"no page shows {unused}; remove {PICTURES.relative_to(ROOT)}/…"
