"""Every method and part has a page that says everything, and says it truly."""

import contextlib
import functools
import io
import posixpath
import re
import warnings
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from tools.docs import catalogue_pages, docstrings, mathematics, method_pages, page_sections
from tools.docs.catalogue import list_methods, list_parts, trace
from tools.docs.compatibility import read_compatibility
from tools.docs.evidence import read_evidence
from tools.docs.sentences import capitalise

import steppe
from steppe.algorithms import CATALOGUE
from steppe.config import resolve
from steppe.core.ranges import read_hints
from steppe.registry import PARTS, list_settings, parse_addition
from tests.conformance.compatibility import NAMES, SHIFTS

METHOD = ["Equations", "Sent and kept", "Cost", "Settings", "Variants", "Use", "Limits and deviations", "Evidence",
          "Combinations", "Cite"]  # fmt: skip
PART = ["Equations", "Settings", "Hooks", "Use", "Used by", "Sent and kept", "Limits and deviations", "Evidence",
        "Combinations", "Cite"]  # fmt: skip
SITE = Path(__file__).parents[2] / "site"
THINGS = {**CATALOGUE, **list_parts()}


@pytest.fixture(scope="module")
def pages():
    return catalogue_pages.make_pages()


def test_every_method_and_part_has_a_page_with_all_sections(pages):
    assert set(CATALOGUE) == set(list_methods())
    assert set(PARTS) <= set(list_parts())
    for folder, names, sections in (("methods/", CATALOGUE, METHOD), ("methods/parts/", list_parts(), PART)):
        for name in names:
            text = pages[f"{folder}{name}.md"]
            bodies = dict(re.findall(r"^## (.+?)\n+(.*?)(?=^## |\Z)", text, re.M | re.S))
            assert list(bodies) == sections, name
            assert all(body.strip() for body in bodies.values()), name
            assert f"{name}.html" in pages["methods/index.md"] or f"({name}.md)" in pages["methods/parts/index.md"]


def test_links_between_pages_resolve(pages):
    """Links into the rest of docs/ are the build's to check, in strict mode."""
    for page, text in pages.items():
        for target in re.findall(r"\]\(([^)#]+\.md)\)", text):
            place = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            assert place in pages or not place.startswith("methods/") or place == "methods/notation.md", (page, target)


def test_pages_say_what_one_types_and_what_counts(pages):
    """Additions as `--add` takes them, what is already in a method, and the clients' own models where they count."""
    for name in CATALOGUE:
        text = pages[f"methods/{name}.md"]
        listed = re.findall(r"\[`([^`]+)`\]\(parts/(\w+)\.md\)", text.partition("These parts can be added")[2])
        for addition, page in listed:
            assert type(parse_addition(addition)) is list_parts()[page], (name, addition)
        assert listed, name
        assert ('result.summary["personal"]' in text) == (name in ("perfedavg", "fedbabu", "knnper", "local")), name
        assert "that code" not in text, name
    assert "[`man`](parts/man.md)" in pages["methods/fedsmoo.md"]
    assert "Already in it: [" in pages["methods/fedsmoo.md"]
    assert pages["methods/perfedavg.md"].count("about two passes") == 1


@pytest.mark.parametrize(("phrase", "sentence"), [
    ("a client's norm", "A client's norm"), ("d_i contains", "d_i contains"), ("ε of unit(g)", "ε of unit(g)"),
    ("k is rounded up", "k is rounded up"), ("x, y and mask", "x, y and mask"), ("unit(g) of", "unit(g) of"),
    ("max_steps of all", "max_steps of all"), ("δ that belongs", "δ that belongs"), ("", ""),
])  # fmt: skip
def test_symbols_and_code_stay_small(phrase, sentence):
    assert capitalise(phrase) == sentence


@pytest.mark.parametrize("name", THINGS)
def test_settings_have_a_meaning_and_a_source(name):
    thing = THINGS[name]
    document, settings = docstrings.describe(thing), set(list_settings(thing))
    choices = {c for h in read_hints(thing).values() if get_origin(h) is Literal for c in get_args(h)}
    assert set(document.items) - settings <= choices
    if isinstance(thing, type):
        assert set(page_sections.meanings_of(thing, document)) == settings
    else:
        assert settings <= set(method_pages.find_meanings(list_methods()[name]))
        assert set(document.defaults) == settings
    for word in re.findall(r"`([a-z_]+)`", " ".join(document.items.values())):
        known = (
            settings
            | choices
            | {k for thing in THINGS.values() for k in (*list_settings(thing), *docstrings.describe(thing).items)}
        )
        assert word in known | {"drift", "norm_bound"}, word


@pytest.mark.parametrize("name", list_parts())
def test_equations_parse(name):
    """Every part has them; braces balance, and every symbol is one that LaTeX knows or a letter."""
    rows = docstrings.describe(list_parts()[name]).rows
    assert rows
    for row in rows:
        for equation in row.equations:
            assert re.search("=|←|∼", equation), equation
            latex = mathematics.translate(equation, {"direction": "D(w)", "penalty": "R(w)"})
            assert latex.isascii()
            assert latex.count("{") == latex.count("}")
            assert len(re.findall(r"\\left(?!arrow)", latex)) == len(re.findall(r"\\right(?!arrow)", latex))
            assert r"\frac{}" not in latex


@pytest.mark.parametrize(("text", "latex"), [
    ("w ← w − η (m̂ / (√v̂ + ε) + λ w)",
     r"w \leftarrow w - \eta \left(\frac{\hat{m}}{\sqrt{\hat{v}} + \varepsilon} + \lambda w\right)"),
    ("c ← (1/N) Σ_{i∈S} ‖c_i⁺ − c‖²", r"c \leftarrow \frac{1}{N} \sum_{i \in S} \lVert c_i^{+} - c\rVert ^{2}"),
    ("d = −Δ_i / (K η), c = (a + b) (c + d)", r"d = - \frac{\Delta_i}{K \eta} , c = (a + b) (c + d)"),
    ("a = (b + c) / (d − e) − 1e-6", r"a = \frac{b + c}{d - e} - 10^{-6}"),
])  # fmt: skip
def test_translation(text, latex):
    assert mathematics.translate(text) == latex


@pytest.mark.parametrize("wrong", ["w ← w + nonsense", "a = (b", "a = b # c", "a = / b"])
def test_what_is_no_equation_is_refused(wrong):
    with pytest.raises(mathematics.NotMathematics):
        mathematics.translate(wrong)


def test_oracles_of_parts_are_chained():
    """SAM inside FedDyn's dual reads as one algorithm: the dual wraps what SAM made of the gradient."""
    text = method_pages._equations(list_methods()["fedspeed"].make())
    assert r"g_{1}(w) = g(w + \delta)" in text
    assert r"D(w) = g_{1}(w) - h_i + \alpha (w - w^{0})" in text


def test_equations_of_a_method_are_those_of_its_settings():
    """A part may have several rules: a page shows the one that its method uses, for every choice of every method."""

    def shown(name, **given):
        made = list_methods()[name].make(**given)
        rows = [row for p in made for row in page_sections.choose_rows(docstrings.describe(type(p)).rows, p)]
        return [e for row in rows for e in row.equations]

    assert "c ← c + γ mean_{i∈S}(c_i⁺ − c)" in shown("fedmoswa")
    assert "c ← c + (1/N) Σ_{i∈S} (c_i⁺ − c_i)" not in shown("fedmoswa")
    assert "c ← c + (1/N) Σ_{i∈S} (c_i⁺ − c_i)" in shown("scaffold")
    assert {"c_i⁺ = −Δ_i / (K η)", "h = Σ_{i∈S} p_i h_i"} <= set(shown("feddc"))
    assert "direction = g(w) − h_i" in shown("fedgmt")
    assert "direction = g(w) − h_i + (α/2) unit(w − w⁰)" in shown("fedspeed", variant="norm")
    for name, method in list_methods().items():
        for key, several in method.choices.items():
            for choice in several:
                left = [e.partition(" ")[0] for e in shown(name, **{key: choice})]
                assert left.count("direction") <= len(method.make(**{key: choice})), (name, key, choice)


def test_a_method_cites_its_own_paper_first():
    for name, method in list_methods().items():
        own, others = method.papers()
        assert bool(own) == bool(method.source), name
        assert not {p.key for p in own} & {p.key for p in others}


def test_what_is_sent_adds_up_to_the_cost():
    for name, method in list_methods().items():
        traced, cost = trace(method.make())
        assert sum(traced.down.values()) * 4 == cost.bytes_down, name
        assert sum(traced.up.values()) * 4 == cost.bytes_up
        assert sum(traced.kept.values()) * 4 == cost.bytes_kept


def test_compatibility_is_read_whole():
    found = read_compatibility()
    assert set(found.optimisers) == set(NAMES)
    assert len(found.pairs) == len(NAMES) * (len(NAMES) - 1) // 2
    assert set(SHIFTS) <= set(found.changes)
    assert set(found.refusals) >= {pair for pair, sign in found.pairs.items() if sign == "×"}


def test_evidence_is_that_of_the_committed_rows():
    found = read_evidence()
    assert {e.config.algorithm for e in found} <= set(CATALOGUE)
    rows = [e for e in found if "fedsol-table1" in e.page and e.config.algorithm == "fedprox"]
    assert {"inside", "outside"} & {e.verdict for e in rows}
    assert any(e.page == "survey.md" for e in found)


def _run_blocks(text, tmp_path, monkeypatch):
    """Run a page's Python as it stands, on a smaller federation; check its command without training."""
    small = {"clients": 6, "per_round": 6, "epochs": 1, "max_steps": 1, "progress": False}
    monkeypatch.setattr(steppe, "run", functools.partial(steppe.run, **small))
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        scope = {"__name__": "page"}
        exec(code, scope)
    assert scope["result"].history
    for command in re.findall(r"^\$ steppe run (.*)$", text, re.M):
        name, *words = command.split()
        assert name in CATALOGUE
        for option, word in zip(words[::2], words[1::2], strict=True):
            key, _, value = word.partition("=")
            if option == "--add":
                parse_addition(word)
            elif option == "--set":
                assert key in list_settings(CATALOGUE[name]) or resolve({key: value})


PAGES = [*(f"methods/{name}.md" for name in CATALOGUE), *(f"methods/parts/{name}.md" for name in list_parts())]
QUICK = PAGES[::8]


@pytest.mark.parametrize("page", [pytest.param(p, marks=() if p in QUICK else pytest.mark.slow) for p in PAGES])
def test_code_on_a_page_runs(page, pages, tmp_path, monkeypatch):
    _run_blocks(pages[page], tmp_path, monkeypatch)


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(not (SITE / "index.html").exists(), reason="there is no site yet: make docs")
def test_the_table_of_methods_filters(browser):
    browser.get((SITE / "methods" / "index.html").as_uri())
    for name in ("stateless", "bytes", "gradients"):
        browser.find_element("css selector", f".catalogue-filter [name={name}]").click()
    browser.find_element("css selector", ".catalogue-filter [name=year]").send_keys("2021")
    shown = browser.execute_script(
        "return [...document.querySelectorAll('table.catalogue tbody tr:not([hidden]) a')].map(a => a.textContent)"
    )
    base = trace(())[1]
    wanted = []
    for method in list_methods().values():
        found = trace(method.make())[1]
        lean = found.bytes_down + found.bytes_up <= 1.004 * (base.bytes_down + base.bytes_up)
        if round(found.kept, 2) == 0 and found.gradients == 1 and lean and int(method.year or 0) >= 2021:
            wanted.append(method.title)
    assert shown == wanted
    assert 0 < len(wanted) < len(CATALOGUE)
