"""Everything that can be run can be cited, and the bibliography is well formed."""

import re

import pytest

from steppe.algorithms import CATALOGUE
from steppe.citations import SHARED, bibliography, cite
from steppe.core.errors import SteppeError
from steppe.registry import PARTS


@pytest.mark.parametrize("name", [*CATALOGUE, *PARTS])
def test_everything_has_a_citation(name):
    assert cite(name).startswith("@")


def test_entries_are_well_formed():
    for key, entry in bibliography().items():
        assert entry.count("{") == entry.count("}"), key
        assert re.search(r"year = \{20\d\d\}", entry), key
        assert "title = {" in entry, key


def test_nothing_stale():
    assert set(SHARED) <= {*CATALOGUE, *PARTS}


def test_unknown_name():
    with pytest.raises(SteppeError, match="did you mean 'fedprox'"):
        cite("fedprix")
