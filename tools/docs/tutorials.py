"""Execute the tutorials of docs/tutorials/*.py, and give each to MkDocs as a page and as a notebook.

    python -m tools.docs.tutorials                       # execute those that have changed; no site
    python -m tools.docs.tutorials 5-reading-flatness    # one of them
    STEPPE_TUTORIALS=plain make docs                     # a quick site: pages without outputs, which say so

A source is a script in jupytext's percent format. It runs in its own kernel, in an empty folder, on one thread. A
cell that raises, or a command that fails, ends the build. Executed notebooks are kept in build/tutorials by a hash of
everything that they depend on. Cells tagged `check` assert what the text claims; they run, and are not shown.

Pictures are SVG inside the page, and their ink is the page's text colour, so that they can be read in dark mode too.
Standard error (progress, messages) is folded.
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import os
import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from jupyter_client.manager import AsyncKernelManager
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "docs" / "tutorials"
KEPT = ROOT / "build" / "tutorials"
INK = "#010203"  # stands for the page's text colour: no plot has it by itself
ON_WHITE = "#777777"  # in a notebook, whose page may be white or black

SETUP = f"""
import os
for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR"):  # a kernel sets these for its commands
    os.environ.pop(name, None)
%matplotlib inline
%config InlineBackend.figure_formats = ["svg"]
import matplotlib
matplotlib.rcParams.update({{
    **{{name: "{INK}" for name in ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")}},
    "figure.facecolor": "none", "axes.facecolor": "none", "legend.facecolor": "none", "legend.edgecolor": "none",
    "savefig.transparent": True, "font.size": 10, "svg.hashsalt": "steppe", "figure.dpi": 150,
    "figure.figsize": (7.5, 3.2),
}})
"""


# With the commands that it waited for.
TIMES = "import os, time; time.process_time() + os.times().children_user + os.times().children_system"


def find_tutorials() -> list[Path]:
    return sorted(SOURCES.glob("[0-9]*.py"))


def hash_dependencies(source: Path) -> str:
    """Return sixteen digits of the tutorial, of the library, and of what computes the numbers."""
    library = [p for folder in ("src", "results") for p in (ROOT / folder).rglob("*") if p.is_file()]
    files = [source, *sorted(p for p in library if p.suffix != ".pyc")]
    versions = [
        SETUP,
        sys.version,
        *(version(name) for name in ("torch", "numpy", "matplotlib", "jupytext", "nbclient")),
    ]
    digest = hashlib.sha256(repr(versions).encode())
    for path in files:
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


async def execute(source: Path) -> Any:
    """Return the executed notebook of a tutorial; raise if a cell fails."""
    notebook = jupytext.read(source)
    notebook.cells = [nbformat.v4.new_code_cell(SETUP), *notebook.cells, nbformat.v4.new_code_cell(TIMES)]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as commands:
        command = Path(commands) / "steppe"  # the library of this checkout, whatever is installed
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m steppe "$@"\n')
        command.chmod(0o755)
        environment = os.environ | {
            "PYTHONPATH": str(ROOT / "src"), "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg",
        }  # fmt: skip
        manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{commands}/kernel")
        client = NotebookClient(notebook, km=manager, timeout=600, resources={"metadata": {"path": folder}})
        try:
            await client.async_execute(env=environment)
        finally:
            if manager.has_kernel:
                await manager.shutdown_kernel(now=True)
        seconds = float(notebook.cells[-1].outputs[0].data["text/plain"])
    notebook.cells, notebook.metadata["folder"] = notebook.cells[1:-1], str(Path(folder).resolve())
    print(f"tutorial {source.stem}: {seconds:.0f} s of CPU time", flush=True)
    return notebook


def tidy(notebook: Any) -> Any:
    """Leave out the checks, times of the day and the folder's place; and outputs that are of no use on a page."""
    folder = notebook.metadata.pop("folder", "")
    notebook.cells = [cell for cell in notebook.cells if "check" not in cell.metadata.get("tags", [])]
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = tidy_outputs(cell.outputs, folder)
    return notebook


def tidy_outputs(given: list[Any], folder: str) -> list[Any]:
    """Join messages and pieces of text; leave out colours, overwritten lines, and the axes that a plot returns."""
    outputs: list[Any] = []
    for output in given:
        name = output.get("name")
        same = [o for o in (outputs if name == "stderr" else outputs[-1:]) if o.get("name") == name]
        if name is not None and same:
            same[0].text += output.text
        else:
            outputs.append(output)
    for output in outputs:
        if output.output_type == "stream":
            text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.text)
            text = "\n".join(line.split("\r")[-1].rstrip() for line in text.split("\n"))
            output.text = text.replace(folder, ".") if folder else text
    drawn = any("image/svg+xml" in output.get("data", {}) for output in outputs)
    return [o for o in outputs if not (drawn and o.output_type == "execute_result" and list(o.data) == ["text/plain"])]


def write_page(notebook: Any, name: str, plain: bool = False) -> str:
    """Return a notebook as Markdown, with its outputs."""
    head, *rest = [write_cell(cell) for cell in notebook.cells]
    title, _, text = head.partition("\n")
    said = "This page was built without its outputs." if plain else "All outputs here were computed by the build."
    downloads = (f'<p class="tutorial-downloads">{said} <a href="{name}.ipynb" download>Download the notebook</a> or '
                 f'<a href="{name}.py" download>the script</a>, and run it yourself.</p>')  # fmt: skip
    return "\n\n".join([title, downloads, text.strip(), *rest]) + "\n"


def write_cell(cell: Any) -> str:
    if cell.cell_type == "markdown":
        return str(cell.source)
    code, language = cell.source, "python"
    if code.startswith("%%bash"):
        code, language = code.removeprefix("%%bash").lstrip("\n"), "bash"
    hidden = "hide-code" in cell.metadata.get("tags", [])  # such as the code of a drawing, which teaches nothing
    return "\n\n".join(["" if hidden else f"```{language}\n{code}\n```", *map(write_output, cell.outputs)])


def write_output(output: Any) -> str:
    """Return an output as HTML: a picture, a table, text, or folded messages."""
    if output.output_type == "stream":
        text = f"<pre>{html.escape(output.text.strip(chr(10)))}</pre>"
        folded = f"<details><summary>messages</summary>{text}</details>"
        return wrap(folded if output.name == "stderr" else text, output.name)
    data = output.data
    if "image/svg+xml" in data:
        return wrap(write_picture(data["image/svg+xml"]), "picture")
    if "text/html" in data:
        return wrap(data["text/html"], "table")
    return wrap(f"<pre>{html.escape(data['text/plain'])}</pre>", "result")


def wrap(content: str, kind: str) -> str:
    """Return a block of HTML in which Markdown finds no line to change."""
    content = content.replace("\n", "&#10;") if "<pre>" in content else content.replace("\n", " ")
    return f'<div class="tutorial-output tutorial-{kind}">{content}</div>'


def write_picture(svg: str) -> str:
    """Return a picture without head, metadata and rules for the whole page, in the page's colour."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', lambda m: _open(m[1]), svg, count=1)
    return svg.replace(INK, "currentColor")


def _open(box: str) -> str:
    width = float(box.split()[2])
    return (f'<svg viewBox="{box}" width="{width * 4 / 3:.0f}" role="img" xmlns="http://www.w3.org/2000/svg" '
            'xmlns:xlink="http://www.w3.org/1999/xlink" stroke-linejoin="round">')  # fmt: skip


async def build(sources: list[Path]) -> dict[str, Any]:
    """Return the executed notebooks by name; those that are not kept run now, two at a time."""
    KEPT.mkdir(parents=True, exist_ok=True)
    turn = asyncio.Semaphore(min(2, os.cpu_count() or 1))

    async def one(source: Path) -> Any:
        kept = KEPT / f"{source.stem}-{hash_dependencies(source)}.ipynb"
        if not kept.exists():
            async with turn:
                notebook = await execute(source)
            for old in KEPT.glob(f"{source.stem}-*.ipynb"):
                old.unlink()
            kept.write_text(nbformat.writes(notebook), "utf-8")
        return nbformat.read(kept, as_version=4)

    notebooks = await asyncio.gather(*map(one, sources), return_exceptions=True)  # what has succeeded is kept
    for failed in (found for found in notebooks if isinstance(found, BaseException)):
        raise failed
    return {source.stem: notebook for source, notebook in zip(sources, notebooks, strict=True)}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page and a notebook per tutorial (a hook of MkDocs)."""
    sources = find_tutorials()
    plain = os.environ.get("STEPPE_TUTORIALS") == "plain"
    notebooks = {s.stem: jupytext.read(s) for s in sources} if plain else asyncio.run(build(sources))
    for name, notebook in ((name, tidy(notebook)) for name, notebook in notebooks.items()):
        files.append(File.generated(config, f"tutorials/{name}.md", content=write_page(notebook, name, plain)))
        content = nbformat.writes(notebook).replace(INK, ON_WHITE)
        files.append(File.generated(config, f"tutorials/{name}.ipynb", content=content))
    return files


if __name__ == "__main__":
    asyncio.run(build([source for source in find_tutorials() if not sys.argv[1:] or source.stem in sys.argv[1:]]))
