"""The tutorials' sources, and the step that makes pages of them. The build of the site executes them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

jupytext, nbformat = pytest.importorskip("jupytext"), pytest.importorskip("nbformat")
tutorials = pytest.importorskip("tools.docs.tutorials")

ROOT = Path(__file__).parents[1]


def test_every_tutorial_says_what_one_learns_and_ends_with_exercises() -> None:
    sources = tutorials.find_tutorials()
    assert [source.name[0] for source in sources] == list("12345678")
    listed = (ROOT / "docs/tutorials/index.md").read_text("utf-8")
    for number, source in enumerate(sources, 1):
        cells = jupytext.read(source).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        headings = re.findall("^#+ .*", text, re.MULTILINE)
        assert headings[0].startswith(f"# {number}. "), source
        assert "**You will learn**" in cells[0].source, source
        assert headings[-2:] == ["## Exercises", "## Where to go next"], source
        assert f"[{headings[0].removeprefix('# ')}]({source.stem}.md)" in listed, source
        assert any("check" in cell.metadata.get("tags", []) for cell in cells), source  # the text's claims
        assert not re.search(
            r"from steppe\.(?!testing)\S+ import|steppe\._|import steppe\.", source.read_text("utf-8")
        ), source


def test_a_page_has_pictures_in_the_page_s_colour_and_folded_messages() -> None:
    cell = nbformat.v4.new_code_cell("%%bash\nsteppe list", outputs=[
        nbformat.v4.new_output("stream", name="stderr", text="round 1\rround 2"),
        nbformat.v4.new_output("stream", name="stdout", text="\x1b[1ma <b>\x1b[0m\n\n/tmp/x/runs\n"),
        nbformat.v4.new_output("stream", name="stderr", text=" of 2\n"),
        nbformat.v4.new_output("display_data", {"image/svg+xml": (
            '<?xml version="1.0"?>\n<svg width="9pt" viewBox="0 0 72 36" xmlns="http://www.w3.org/2000/svg">'
            f"<metadata>who</metadata>\n<style>*{{stroke: red}}</style><path style='fill: {tutorials.INK}'/></svg>")}),
        nbformat.v4.new_output("execute_result", {"text/plain": "<Axes>"}),
    ])  # fmt: skip
    check = nbformat.v4.new_code_cell("assert claim", metadata={"tags": ["check"]})
    title = nbformat.v4.new_markdown_cell("# Title\n\nText.")
    notebook = nbformat.v4.new_notebook(cells=[title, cell, check], metadata={"folder": "/tmp/x"})
    page = tutorials.write_page(tutorials.tidy(notebook), "1-one")
    assert page.startswith("# Title\n")
    assert page.count("<details>") == 1
    shown = ["```bash\nsteppe list\n```", "<pre>a &lt;b&gt;&#10;&#10;./runs</pre>", "<pre>round 2 of 2</pre></details>"]
    for text in (*shown, 'href="1-one.ipynb"', 'href="1-one.py"', 'width="96"', "fill: currentColor"):
        assert text in page
    assert not any(word in page for word in ("metadata", "<style>", tutorials.INK, "\x1b", "claim", "Axes"))


@pytest.mark.slow  # two kernels
@pytest.mark.parametrize("cell", ["# %%\n1 / 0", '# %% language="bash"\n# steppe no-such-command'])
def test_a_cell_or_a_command_that_fails_ends_the_build(cell: str, tmp_path: Path) -> None:
    source = tmp_path / "1-broken.py"
    source.write_text(f"# %% [markdown]\n# # Broken\n\n{cell}\n")
    with pytest.raises(Exception, match=r"ZeroDivisionError|no-such-command"):
        asyncio.run(tutorials.execute(source))
