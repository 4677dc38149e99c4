"""docs/compatibility.md says what is measured. Renew it with: python -m tests.conformance.compatibility"""

import pytest

from steppe.core.part import Part
from tests.conformance.compatibility import CONSENSUS, NAMES, PAGE, PAIRS, SIGNS, coverage, page, verdict

SOME = [("control_variates", "norm_bound"), ("dynamic_regularisation", "ema"), ("control_variates", "sam")]


def every_part():
    def below(kind):
        return {kind}.union(*map(below, kind.__subclasses__()))

    return {c for c in below(Part) if c.__module__.startswith("steppe.parts.")}


def test_every_part_is_on_the_page():
    """Except optimisers, a rate that belongs to Per-FedAvg, and variants that share a part's name."""
    assert {c.name for c in every_part()} - {"sgd", "adamw", "own_optimiser", "fixed_rate"} == set(NAMES)


def test_the_page_says_so():
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line[2:3].isdigit()]
    found = {(NAMES[j], row[1]): row[2 + j] for row in rows for j in range(int(row[0]) - 1)}
    assert sorted(found) == sorted(PAIRS)
    cheap = [pair for pair in PAIRS if not set(pair) & set(CONSENSUS)]
    for pair in (*cheap, *SOME):
        assert found[pair] == SIGNS[verdict(pair)[0]], pair


def test_the_page_counts_the_drawn_compositions():
    told = "\n".join(coverage())
    assert told in PAGE.read_text()
    least = int(told.split("| together |")[1].split("|")[2])
    assert least >= 1000


@pytest.mark.slow
def test_the_page_is_what_is_measured():
    assert PAGE.read_text() == page()
