"""Everything that can be run can be cited, and every BibTeX entry is well formed."""

import re
from pathlib import Path

import pytest

import steppe
from steppe.algorithms import CATALOGUE
from steppe.citations import cite
from steppe.core.errors import SteppeError
from steppe.registry import PARTS


def keys(text):
    return re.findall(r"^@\w+\{(\w+),$", text, re.M)


@pytest.mark.parametrize("name", [*CATALOGUE, *PARTS, "steppe"])
def test_everything_has_a_well_formed_citation(name):
    text = cite(name)
    if name == "local":  # a baseline of nobody's
        assert text.startswith("% local is not from a paper")
        return
    assert keys(text)
    assert len(keys(text)) == len(set(keys(text))), "a paper twice"
    for entry in text.split("\n\n"):
        assert entry.count("{") == entry.count("}"), entry
        assert re.search(r"year = \{20\d\d\}", entry), entry
        assert "title = {" in entry, entry
        assert entry.endswith("\n}"), entry


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("fedavg", ["fedavg"]),
        ("fedyogi", ["fedadam"]),
        ("fedsam", ["fedsam", "fedasam", "sam"]),
        ("fedasam", ["fedasam", "asam"]),
        ("mofedsam", ["fedsam", "sam", "fedcm"]),
        ("fedlesam_s", ["fedlesam", "scaffold"]),
        ("fedsmoo", ["fedsmoo", "feddyn"]),
        ("fedspeed", ["fedspeed", "sam", "feddyn"]),
        ("local", []),
        ("fedsmoo+man:weight=0.1", ["fedsmoo", "feddyn", "man"]),
        ("ema", ["swa"]),
        ("latest_mean", ["man"]),
        ("trimmed_mean", ["median"]),
    ],
)
def test_an_entry_cites_its_own_paper_and_those_of_its_parts(name, want):
    assert keys(cite(name)) == want


def test_the_library_itself():
    """The facts of CITATION.cff, which only a checkout has."""
    file = (Path(__file__).parent.parent / "CITATION.cff").read_text()
    facts = dict(re.findall(r'^[ -]*([\w-]+): "?(.*?)"?$', file, re.M))
    text = cite("steppe").replace("{Steppe}", "Steppe")
    for key in ("title", "name", "version", "license"):
        assert "{" + facts[key] + "}" in text, key
    assert f"year = {{{facts['date-released'][:4]}}}" in text
    assert facts["version"] == steppe.__version__


def test_unknown_name():
    with pytest.raises(SteppeError, match="did you mean 'fedprox'"):
        cite("fedprix")
