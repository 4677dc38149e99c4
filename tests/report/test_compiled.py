"""What is written as LaTeX, compiled by a real one: every table on paper, nothing outside of its margins."""

from __future__ import annotations

import re
import shutil
import string
import subprocess
from pathlib import Path

import pytest

from steppe.report import report_tables
from steppe.report.markdown_latex import render_latex_table
from steppe.report.read_runs import read
from steppe.report.table import Table
from steppe.report.write import write

pytestmark = [pytest.mark.slow]
PACKAGES = ("booktabs.sty", "graphicx.sty", "geometry.sty")
TABLES = sorted((Path(__file__).parents[2] / "docs" / "reproductions").glob("*.tex"))


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory):
    """A function from a document to what the compiler said about it."""
    if not shutil.which("pdflatex"):
        pytest.skip("no pdflatex here (Debian: apt-get install --no-install-recommends texlive-latex-recommended)")
    missing = [p for p in PACKAGES if not subprocess.run(["kpsewhich", p], capture_output=True).stdout]
    if missing:
        pytest.skip(f"this LaTeX lacks {', '.join(missing)} (Debian: texlive-latex-recommended)")

    def compiled(text: str) -> str:
        where = tmp_path_factory.mktemp("tex")
        (where / "a.tex").write_text(text, "utf-8")
        said = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "a.tex"],
                              cwd=where, capture_output=True, timeout=300)  # fmt: skip
        log = (where / "a.log").read_text("latin-1")
        assert said.returncode == 0, "\n".join(line for line in log.splitlines() if line.startswith(("!", "l.")))
        assert (where / "a.pdf").read_bytes().startswith(b"%PDF")
        return log

    return compiled


def too_wide(log: str) -> list[float]:
    """How far lines reach into the margin, in points; a hair's breadth is nothing."""
    return [float(v) for v in re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", log) if float(v) > 1]


def test_a_report_compiles(pages, compared: Path, tmp_path: Path) -> None:
    write([compared], tmp_path / "r.tex")
    log = pages((tmp_path / "r.tex").read_text())
    assert too_wide(log) == []
    assert "undefined" not in log
    assert "multiply" not in log


def test_names_of_any_letters_compile(pages, compared: Path, tmp_path: Path) -> None:
    for name in (string.punctuation.replace("/", ""), "ü中λ – ‘a’ *[x]"):
        shutil.copytree(compared / "fedsam/seed-0", tmp_path / name / "seed-0")
        write([tmp_path / name], tmp_path / "r.tex")
        pages((tmp_path / "r.tex").read_text())


def test_a_table_can_be_copied_into_a_paper(pages, compared: Path) -> None:
    """Two columns, the packages that the documentation names, and nothing else."""
    tables = [*report_tables.make_tables(read([compared])), Table("Wide", ["a"] * 30, [["1.23 ± 0.45 %"] * 30])]
    paper = (
        "\\documentclass[twocolumn]{{article}}\\usepackage{{booktabs,graphicx}}\\begin{{document}}{}\\end{{document}}"
    )
    assert too_wide(pages(paper.format("\n\n".join(map(render_latex_table, tables))))) == []


@pytest.mark.parametrize("path", TABLES, ids=lambda p: p.stem)
def test_published_tables_compile(pages, path: Path) -> None:
    assert too_wide(pages(path.read_text())) == []


def test_an_error_is_seen(pages) -> None:
    """A check that cannot fail would be none."""
    with pytest.raises(AssertionError, match="Undefined control sequence"):
        pages("\\documentclass{article}\\begin{document}\\nosuchcommand\\end{document}")
    wide = "\\documentclass{article}\\begin{document}\\hbox to 20cm{wide}\\end{document}"
    assert too_wide(pages(wide.replace("\\hbox", "\\noindent\\hbox")))
