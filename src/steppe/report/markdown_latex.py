"""A report, and single tables, as Markdown or LaTeX."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment

from steppe.report import findings, report_tables
from steppe.report.comparison import Comparison
from steppe.report.environments import make_environment
from steppe.report.repeat import explain_repeat
from steppe.report.table import Table


def render_markdown(c: Comparison) -> str:
    """Write the answer, the tables, and how every run is repeated."""
    return _MARKDOWN.get_template("report.md.jinja").render(_collect(c))


def render_latex(c: Comparison) -> str:
    """Write a document that compiles as it is; its tables (booktabs) can be copied into another."""
    body = _LATEX.get_template("report.tex.jinja").render(_collect(c))
    return render_latex_document(findings.write_headline(c), [body])


def render_latex_document(title: str, body: Sequence[str]) -> str:
    """Write a document around paragraphs and tables that are LaTeX already."""
    return _LATEX.get_template("document.tex.jinja").render(title=title, body="\n\n".join(body))


def render_latex_table(table: Table) -> str:
    """Write a table that shrinks to the width of its column."""
    return _LATEX.get_template("table.tex.jinja").render(table=table)


_NUMBER = re.compile(r"\W*\d|\W*(failed|not run|not measured)?$")  # a cell that stands in a column of numbers


def render_markdown_table(table: Table) -> str:
    """Write a table with names and words on the left and numbers on the right.

    >>> print(render_markdown_table(Table("", ["arm", "chosen", "%"], [["a", "lr=1", "5.2"], ["b", "lr=2", ""]])))
    | arm | chosen | % |
    |:---|:---|---:|
    | a | lr=1 | 5.2 |
    | b | lr=2 |  |
    """
    rows = ["| " + " | ".join(map(escape_markdown, row)) + " |" for row in (table.columns, *table.rows)]
    sides = ["---:" if all(map(_NUMBER.match, column)) else ":---" for column in zip(*table.rows, strict=True)]
    rows.insert(1, "|" + "|".join([":---", *sides[1:]]) + "|")
    return "\n".join(rows)


def _collect(c: Comparison) -> dict[str, Any]:
    return {"headline": findings.write_headline(c), "summary": findings.write_summary(c),
            "setting": findings.describe_setting(c), "notes": findings.list_notes(c),
            "tables": report_tables.make_tables(c),
            "runs": [(g, r, explain_repeat(r)) for g in c.groups for r in g.runs]}  # fmt: skip


def escape_markdown(text: str) -> str:
    r"""Escape what Markdown would read as markup.

    >>> escape_markdown("a|b_c <d>")
    'a\\|b\\_c &lt;d&gt;'
    """
    return re.sub(r"([\\`*_|\[\]])", r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;")


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "`": r"\textasciigrave{}", '"': r"\textquotedbl{}", "|": r"\textbar{}",
    "[": "{[}", "]": "{]}", "*": "{*}",  # after \\, a bracket would be a length and a star an order
    "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "–": r"\textendash{}", "−": "$-$",
    "λ": r"$\lambda$", "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$", "ε": r"$\varepsilon$", "Σ": r"$\Sigma$",
    "…": r"\ldots{}", "‖": r"$\|$",
    "²": "$^2$", "’": "'", "\u00a0": "~",
    "α": r"$\alpha$", "β": r"$\beta$", "δ": r"$\delta$",
    "μ": r"$\mu$", "≤": r"$\le$", "≥": r"$\ge$", "✓": r"$\surd$", "✗": r"$\times$", "†": r"\dag{}",
}  # fmt: skip


def escape_latex(text: str) -> str:
    r"""Escape what LaTeX would read as markup; the result is ASCII.

    >>> escape_latex("λ1 of fed_sam: -3.2 ± 0.1 %")
    '$\\lambda_1$ of fed\\_sam: $-$3.2 $\\pm$ 0.1 \\%'
    >>> escape_latex("‖w_i − x‖, cos(g_u,g_p)")
    '$\\|$$w_i$ $-$ x$\\|$, cos($g_u$,$g_p$)'
    """
    text = re.sub(r"(?<!\S)-(?=\d)", "−", text)
    plain = "".join(_TEX.get(ch) or _spell_letter(ch) for ch in text)
    plain = re.sub(r"\$\\lambda\$(\d)", r"$\\lambda_\1$", plain)
    plain = re.sub(r"\b(w|L|g)\\_(i|p|u)\b", r"$\1_\2$", plain)  # symbols of the measures' names and notes
    return re.sub(r"(?<=[-,'])(?=[-,'])", "{}", plain)  # two of them would become one sign


def _spell_letter(ch: str) -> str:
    """Spell a letter in ASCII, which any engine reads: without its accent, or else by its number.

    >>> _spell_letter("ü"), _spell_letter("中")
    ('u', 'U+4E2D')
    """
    if ch.isascii():
        return ch if ch.isprintable() else " "
    base = unicodedata.normalize("NFKD", ch).encode("ascii", "ignore").decode()
    return "".join(_TEX.get(c, c) for c in base) or f"U+{ord(ch):04X}"


def _escape_command(text: str) -> str:
    """Escape a command; its quotes stay as a shell reads them."""
    return escape_latex(text).replace("'", r"\textquotesingle{}")


def make_markdown_environment(package: str) -> Environment:
    """Return an environment for a package's Markdown, with filters for sentences and tables."""
    return make_environment(package, {"markdown": escape_markdown, "markdown_table": render_markdown_table})


_MARKDOWN = make_markdown_environment("steppe.report")
_LATEX = make_environment(
    "steppe.report", {"latex": escape_latex, "latex_table": render_latex_table, "latex_command": _escape_command},
    block_start_string="<%", block_end_string="%>", variable_start_string="<<", variable_end_string=">>",
    comment_start_string="<#", comment_end_string="#>",
)  # fmt: skip
