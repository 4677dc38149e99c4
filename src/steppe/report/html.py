"""One page with everything in it: opens offline, on a phone, in print, light and dark.

The page forbids itself to load anything (Content-Security-Policy), so what works here works without a network. Our own
`javascript/` draws the figures: it is 25 kB where a library for all figures would be 4.8 MB.
"""

from __future__ import annotations

import json
import re
from functools import cache, partial
from importlib.metadata import version
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment

from steppe.report import charts, findings, layers, report_tables, spectra
from steppe.report.charts import SCALE, VIRIDIS, Panel
from steppe.report.comparison import Comparison, Group
from steppe.report.environments import make_environment
from steppe.report.formats import pluralize
from steppe.report.landscapes import TITLES, draw_landscapes
from steppe.report.repeat import describe_idea, explain_repeat
from steppe.report.table import Table
from steppe.runs.curves import COLOURS

# The same hues as COLOURS, lighter, for a dark page.
ON_DARK = ["#5aa9e6", "#f28c4e", "#3cc79b", "#e39ac4", "#f2c14e", "#a9dcf7", "#e6e6e6", "#c9a08f"]
SCRIPTS = ("axes", "tooltip", "lines", "maps", "surface", "page")
DASHES = ["", "6 4", "1.5 3", "6 3 1.5 3"]


class Folded(NamedTuple):
    """Tables that are shown on request."""

    summary: str
    tables: list[Table]


class Section(NamedTuple):
    id: str
    title: str
    blocks: list[Table | Panel | Folded | Group | str]  # a string is a heading


def render_page(c: Comparison) -> str:
    """Write the whole document."""
    sections = make_sections(c)
    drawn = [chart for s in sections for block in s.blocks if isinstance(block, Panel) for chart in block.charts]
    for number, chart in enumerate(drawn):
        chart.number = number
    data = [{"traces": chart.traces, "layout": chart.layout, "height": chart.height} for chart in drawn]
    here = files("steppe.report")
    return _make_environment().get_template("page.html.jinja").render(
        headline=findings.write_headline(c), summary=findings.write_summary(c), setting=findings.describe_setting(c),
        notes=findings.list_notes(c), sections=sections, has_winner=len(c.groups) > 1 and findings.has_winner(c),
        places={g.label: place for place, g in enumerate(c.groups)}, dashes=DASHES, scale=SCALE, colours=COLOURS,
        colours_on_dark=ON_DARK, version=version("steppe"), viridis=json.dumps(VIRIDIS),
        charts=json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        css=(here / "page.css").read_text("utf-8"),
        javascript="\n".join((here / "javascript" / f"{name}.js").read_text("utf-8") for name in SCRIPTS),
    )  # fmt: skip


def make_sections(c: Comparison) -> list[Section]:
    """Collect what the page shows, in its order; what has no data is left out."""
    profiles, blocks = report_tables.make_profiles(c), spectra.draw_block_densities(c)
    content: list[tuple[str, str, list[Any]]] = [
        ("results", "Results", [report_tables.make_results(c), report_tables.make_personal(c)]),
        ("curves", "Over the rounds", [charts.draw_curves(c)]),
        ("cost", "Cost", [charts.draw_costs(c), report_tables.make_run_costs(c), report_tables.make_round_costs(c)]),
        ("flatness", "Flatness", [*report_tables.make_flatness(c), charts.draw_measures(c),
                                  report_tables.make_during_training(c), layers.draw_client_eigenvalues(c)]),
        ("layers", "Layer by layer", [layers.draw_profiles(c), Folded("The numbers", profiles) if profiles else None]),
        ("density", "Spectrum of the Hessian", [spectra.draw_density(c), blocks and "Layer by layer", blocks]),
        ("landscapes", "Loss landscapes", [block for name, panels in draw_landscapes(c).items()
                                           for block in (TITLES[name], *panels)]),
        ("classes", "Class by class", [charts.draw_classes(c)]),
        ("partition", "Partition", [charts.draw_partitions(c)]),
        ("runs", "Every run", list(c.groups)),
    ]  # fmt: skip
    sections = [Section(id_, title, [b for b in blocks if b and (not isinstance(b, Panel) or b.charts)])
                for id_, title, blocks in content]  # fmt: skip
    return [section for section in sections if section.blocks]


@cache
def _make_environment() -> Environment:
    filters = {"typeset": typeset, "pluralize": pluralize, "describe_idea": describe_idea,
               "explain_repeat": explain_repeat, "as_json": partial(json.dumps, ensure_ascii=False)}  # fmt: skip
    return make_environment("steppe.report", filters, html=True)


def typeset(text: str) -> str:
    """Write a minus as wide as a plus, and keep numbers together with their errors and units."""
    text = re.sub(r"(?<!\S)-(?=\d)", "−", text)
    return re.sub(r" (?=[±%])|(?<=±) ", "\u00a0", text)
