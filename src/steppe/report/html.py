"""One page with everything in it: opens offline, on a phone, in print, light and dark.

The page forbids itself to load anything (Content-Security-Policy), so what works here works without a network.
"""

from __future__ import annotations

import json
import re
from html import escape
from importlib.metadata import version
from importlib.resources import files

from steppe.core.errors import missing
from steppe.report import charts, findings, layers, report_tables, spectra
from steppe.report.charts import VIRIDIS, Panel
from steppe.report.comparison import Comparison, Group
from steppe.report.figures import COLOURS
from steppe.report.landscapes import TITLES, landscapes
from steppe.report.report_tables import Table

# The same hues as COLOURS, lighter, for a dark page.
ON_DARK = ["#5aa9e6", "#f28c4e", "#3cc79b", "#e39ac4", "#f2c14e", "#a9dcf7", "#e6e6e6", "#c9a08f"]
DASHES = ["", "6 4", "1.5 3", "6 3 1.5 3"]
RULES = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def page(c: Comparison) -> str:
    """The whole document."""
    return _Page(c).document()


def plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise missing("An HTML report needs plotly", "report", ", or choose --format md.") from None
    return str(get_plotlyjs())


class _Page:
    def __init__(self, c: Comparison) -> None:
        self.c = c
        self.place = {g.label: i for i, g in enumerate(c.groups)}
        self.drawn: list[dict[str, object]] = []
        self.sections: list[tuple[str, str, str]] = []  # id, name, body

    def document(self) -> str:
        library = plotly_js()
        self._sections()
        title = findings.headline(self.c)
        links = "".join(f'<a href="#{id_}">{escape(name)}</a>' for id_, name, _ in self.sections)
        body = "".join(f'<section id="{id_}"><h2>{escape(name)}</h2>{text}</section>\n'
                       for id_, name, text in self.sections)  # fmt: skip
        notes = "".join(f"<li>{escape(n)}</li>" for n in findings.notes(self.c))
        hues = [":root {" + " ".join(f"--c{i}: {hue};" for i, hue in enumerate(COLOURS)) + "}",
                "@media screen and (prefers-color-scheme: dark) { :root:not(.paper) {"
                + " ".join(f"--c{i}: {hue};" for i, hue in enumerate(ON_DARK)) + "} }"]  # fmt: skip
        data = json.dumps(self.drawn, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        here, made_by = files("steppe.report"), version("steppe")
        return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{RULES}">
<meta name="generator" content="steppe {made_by}">
<title>{escape(title)}</title>
<style>
{chr(10).join(hues)}
{(here / "page.css").read_text("utf-8")}</style>
</head>
<body>
<main>
<header>
<p class="kind">Steppe report</p>
<h1>{_text(title)}</h1>
<p>{_text(" ".join(findings.lead(self.c)))}</p>
<p class="setting">{escape(findings.setting(self.c))}</p>
{f'<ul class="notes">{notes}</ul>' if notes else ""}
<nav aria-label="Sections">{links}</nav>
</header>
<noscript><p class="notes">The figures need JavaScript; the captions and tables say the same in words.</p></noscript>
{body}<footer class="small">Made by steppe {made_by}. This file needs no network.</footer>
</main>
<script type="application/json" id="charts">{data}</script>
<script>{library}</script>
<script>
{(here / "page.js").read_text("utf-8")}</script>
</body>
</html>
"""

    def _sections(self) -> None:
        c, tables = self.c, report_tables.tables(self.c)
        self._add("results", "Results", self._table(tables["results"]), self._table(tables.get("personal"), True))
        self._add("curves", "Over the rounds", self._panel(charts.curves(c)))
        self._add("cost", "For the same cost", self._panel(charts.budgets(c)), self._table(tables["total"], True),
                  self._table(tables["round"], True))  # fmt: skip
        self._add("flatness", "Flatness", *(self._table(t, True) for t in report_tables.flatness(c)),
                  self._panel(charts.measured(c)), self._table(tables.get("during"), True),
                  self._panel(layers.clients(c)))  # fmt: skip
        self._add("layers", "Layer by layer", self._panel(layers.profiles(c)),
                  self._folded("the numbers", report_tables.profiles(c)))  # fmt: skip
        self._add("density", "Spectrum of the Hessian", self._panel(spectra.density(c)),
                  self._titled("Layer by layer", self._panel(spectra.of_blocks(c))))  # fmt: skip
        land = [f"<h3>{TITLES[name]}</h3>" + "".join(map(self._panel, panels))
                for name, panels in landscapes(c).items()]  # fmt: skip
        self._add("landscapes", "Loss landscapes", *land)
        self._add("classes", "Class by class", self._panel(charts.classes(c)))
        self._add("partition", "Who holds what", self._panel(charts.partition(c)))
        self._add("runs", "Every run", "".join(map(self._runs, c.groups)))

    def _add(self, id_: str, name: str, *parts: str) -> None:
        if any(parts):
            self.sections.append((id_, name, "".join(parts)))

    def _titled(self, title: str, body: str) -> str:
        return f"<h3>{title}</h3>{body}" if body else ""

    def _panel(self, panel: Panel | None) -> str:
        if panel is None or not panel.charts:
            return ""
        places = []
        for chart in panel.charts:
            i = len(self.drawn)
            self.drawn.append({"traces": chart.traces, "layout": chart.layout, "height": chart.height})
            title = f"<h4>{escape(chart.title)}</h4>" if chart.title else ""
            places.append(f'<div class="chart">{title}<div class="plot" id="plot-{i}" role="img" '
                          f'aria-label="{_text(chart.words)}"></div></div>')  # fmt: skip
        columns = panel.across
        above = (self._legend(panel) if panel.legend else "") + _bar(panel, f"scale-{len(self.drawn)}")
        return (f'<figure{" class=screen" if panel.screen_only else ""}>{above}'
                f'<div class="charts columns-{columns}" style="--columns: {columns}">{"".join(places)}</div>'
                f"<figcaption>{_text(panel.caption)}</figcaption></figure>")  # fmt: skip

    def _legend(self, panel: Panel) -> str:
        shown = {trace["meta"]["series"] for chart in panel.charts for trace in chart.traces}
        labels = [g.label for place, g in enumerate(self.c.groups) if place in shown]
        items = "".join(f"<li>{self._key(label)}{escape(label)}</li>" for label in labels)
        return f'<ul class="legend">{items}</ul>'

    def _key(self, label: str) -> str:
        """A short line in the algorithm's colour and dashes."""
        place = self.place[label]
        dash = DASHES[place // 8 % len(DASHES)]
        return (f'<svg class="key" viewBox="0 0 24 10" aria-hidden="true"><line x1="0" y1="5" x2="24" y2="5" '
                f'stroke="var(--c{place % 8})" stroke-width="3" stroke-dasharray="{dash}"/></svg>')  # fmt: skip

    def _table(self, table: Table | None, titled: bool = False) -> str:
        if table is None:
            return ""
        head = "".join(
            f'<th scope="col">{self._key(t) if not table.series and t in self.place else ""}{escape(t)}</th>'
            for t in table.columns
        )
        rows = []
        for first, *rest in table.rows:
            key = self._key(first) if table.series else ""
            cells = "".join(f"<td>{_text(v)}</td>" for v in rest)
            rows.append(f'<tr><th scope="row">{key}{escape(first)}</th>{cells}</tr>')
        title = f"<h3>{escape(table.title)}</h3>" if titled else ""
        kind = (
            ' class="results"' if table.title == "Results" and len(table.rows) > 1 and findings.decided(self.c) else ""
        )
        return (f'{title}<div class="scroll" role="region" aria-label="{escape(table.title)}" tabindex="0">'
                f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
                f'<p class="note">{_text(table.note)}</p>')  # fmt: skip

    def _folded(self, name: str, tables: list[Table]) -> str:
        inside = "".join(self._table(t, True) for t in tables)
        return f"<details><summary>{name}</summary>{inside}</details>" if inside else ""

    def _runs(self, group: Group) -> str:
        parts = []
        for run in group.runs:
            told = (findings.command(run) if not findings.is_own(run)
                    else f"# made in Python, with a model or parts of its own; its keys:\n"
                         f"{findings.command(run)}")  # fmt: skip
            made = ", ".join(f"{k} {v}" for k, v in run.versions.items() if v is not None)
            parts.append(f'<h3>seed {run.seed}</h3><pre>{escape(told)}</pre>'
                         f'<p class="small">{escape(str(run.folder))}<br>{escape(made)}</p>')  # fmt: skip
        run = group.runs[0]
        config = json.dumps(run.config, indent=1, ensure_ascii=False)
        made_of = json.dumps(run.about.get("parts", []), ensure_ascii=False)
        return (f"<details><summary>{self._key(group.label)}{escape(group.label)}, {group.seeds} "
                f"run{'s' if group.seeds > 1 else ''}</summary><p class='small'>{escape(findings.idea(run))}</p>"
                f"{''.join(parts)}<h3>configuration{f', of seed {run.seed}' if group.seeds > 1 else ''}</h3>"
                f'<pre class="config">{escape(config)}</pre>'
                f"<h3>parts, innermost first</h3><pre>{escape(made_of)}</pre></details>")  # fmt: skip


def _bar(panel: Panel, name: str) -> str:
    """The colour scale of all charts of a panel, drawn once."""
    if not panel.bar:
        return ""
    stops = "".join(
        f'<stop offset="{i / (len(VIRIDIS) - 1):.3f}" stop-color="{hue}"/>' for i, hue in enumerate(VIRIDIS)
    )
    ticks = "".join(f"<li>{escape(text)}</li>" for _, text in panel.bar)
    gradient = f'<defs><linearGradient id="{name}">{stops}</linearGradient></defs>'
    return (f'<div class="bar"><span>{escape(panel.bar_name)}</span>'
            f'<svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">{gradient}'
            f'<rect width="100" height="4" fill="url(#{name})"/></svg><ol>{ticks}</ol></div>')  # fmt: skip


def _text(text: str) -> str:
    """Escaped, with a minus as wide as a plus, and numbers kept together with their errors and units."""
    text = re.sub(r"(?<!\S)-(?=\d)", "−", text)
    return escape(re.sub(r" (?=[±%])|(?<=±) ", "\u00a0", text))
