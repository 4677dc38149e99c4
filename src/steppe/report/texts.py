"""The tables of a report as Markdown or LaTeX."""

from __future__ import annotations

import re
import unicodedata

from steppe.report import findings, report_tables
from steppe.report.comparison import Comparison
from steppe.report.report_tables import Table


def markdown(c: Comparison) -> str:
    """The answer, the tables, and the commands."""
    parts = [f"# {md(findings.headline(c))}", md(" ".join(findings.lead(c))), md(findings.setting(c))]
    parts += [f"> {md(note)}" for note in findings.notes(c)]
    for table in report_tables.tables(c).values():
        parts += [f"## {table.title}", markdown_table(table), md(table.note)]
    commands = [f"# {g.label}, seed {r.seed}\n{findings.command(r)}" for g in c.groups for r in g.runs]
    fence = "`" * 3
    return "\n\n".join([*parts, "## Every run", f"{fence}sh\n" + "\n".join(commands) + f"\n{fence}"]) + "\n"


def latex(c: Comparison) -> str:
    """A document that compiles as it is; its tables (booktabs) can be copied into another."""
    body = [tex(" ".join(findings.lead(c))), tex(findings.setting(c)) + "."]
    body += [tex(note) for note in findings.notes(c)]
    body += [tabular(table) for table in report_tables.tables(c).values()]
    commands = [tex(findings.command(r)).replace("'", r"\textquotesingle{}") for r in c.runs]  # as a shell reads it
    body.append(
        "\\clearpage\n\\section*{Every run}\n{\\small\\ttfamily\\raggedright\n"
        + "\n\n\\medskip\n".join(commands)
        + "\\par}"
    )
    return document(findings.headline(c), body)


def document(title: str, body: list[str]) -> str:
    return "\n".join([
        "\\documentclass{article}", "\\usepackage[T1]{fontenc}", "\\usepackage{booktabs,graphicx,textcomp}",
        "\\IfFileExists{lmodern.sty}{\\usepackage{lmodern}}{}",  # without it, T1 may mean letters made of pixels
        "\\usepackage[margin=2.5cm]{geometry}", "\\setlength{\\parindent}{0pt}\\setlength{\\parskip}{1ex}",
        "\\begin{document}", f"{{\\large\\bfseries\\raggedright {tex(title)}\\par}}", "\n\n".join(body),
        "\\end{document}", "",
    ])  # fmt: skip


def markdown_table(table: Table) -> str:
    rows = ["| " + " | ".join(map(md, row)) + " |" for row in (table.columns, *table.rows)]
    rows.insert(1, "|" + "|".join([":---", *["---:"] * (len(table.columns) - 1)]) + "|")
    return "\n".join(rows)


def tabular(table: Table) -> str:
    rows = [" & ".join(map(tex, row)) + " \\\\" for row in (table.columns, *table.rows)]
    rows[1:1] = ["\\midrule"]
    columns = "l" + "r" * (len(table.columns) - 1)
    return "\n".join([
        "\\begin{table}[!ht]\\centering", f"\\caption{{{tex(table.title)}. {tex(table.note)}}}\\smallskip",
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
        f"\\begin{{tabular}}{{{columns}}}", "\\toprule", *rows, "\\bottomrule", "\\end{tabular}}", "\\end{table}",
    ])  # fmt: skip


def md(text: str) -> str:
    r"""
    >>> md("a|b_c <d>")
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


def tex(text: str) -> str:
    r"""
    >>> tex("λ1 of fed_sam: -3.2 ± 0.1 %")
    '$\\lambda$1 of fed\\_sam: $-$3.2 $\\pm$ 0.1 \\%'
    """
    text = re.sub(r"(?<!\S)-(?=\d)", "−", text)
    plain = "".join(_TEX.get(ch) or _letter(ch) for ch in text)
    return re.sub(r"(?<=[-,'])(?=[-,'])", "{}", plain)  # two of them would become one sign


def _letter(ch: str) -> str:
    """What any engine reads: of a letter that ASCII lacks, its base and accent gone, or else its number.

    >>> _letter("ü"), _letter("中")
    ('u', 'U+4E2D')
    """
    if ch.isascii():
        return ch if ch.isprintable() else " "
    base = unicodedata.normalize("NFKD", ch).encode("ascii", "ignore").decode()
    return "".join(_TEX.get(c, c) for c in base) or f"U+{ord(ch):04X}"
