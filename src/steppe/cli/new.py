"""The command that writes a working part or algorithm, with its test, to start from."""

from __future__ import annotations

import keyword
import time
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from steppe.cli import terminal
from steppe.cli.options import Debug, app
from steppe.core.errors import SteppeError, quote, suggest_name

KINDS = ("part", "algorithm")


@app.command()
def new(kind: Annotated[str, typer.Argument(help="What to write: part or algorithm.")],
        name: Annotated[str, typer.Argument(help="Name, such as look_back; the file is look_back.py.")],
        out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")] = Path(),
        debug: Debug = False) -> None:  # fmt: skip
    """Write NAME.py, a working part or algorithm, and test_NAME.py, which runs the conformance suite on it."""
    if kind not in KINDS:
        raise SteppeError(f"steppe new cannot write {quote(kind)}{suggest_name(kind, KINDS)}")
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise SteppeError(f"{quote(name)} cannot be the name of a Python file: use letters, digits and _, such as "
                          "look_back.")  # fmt: skip
    title = "".join(word[:1].upper() + word[1:] for word in name.split("_"))
    title = title if title != name else f"{title}Part"
    paths = {out / f"{name}.py": kind, out / f"test_{name}.py": f"test_{kind}"}
    for path in paths:
        if path.exists():
            raise SteppeError(f"{path} already exists: choose another name, or another folder with --out.")
    out.mkdir(parents=True, exist_ok=True)
    for path, draft in paths.items():
        text = (files("steppe.cli") / "drafts" / f"{draft}.txt").read_text("utf-8")
        path.write_text(text.format(name=name, title=title, year=time.strftime("%Y")), "utf-8")
    first, test = paths
    command = f"steppe run fedsam --add {first}:{title}" if kind == "part" else f"steppe run {first}:{name}"
    terminal.show(f"wrote {first} and {test}\nrun it:  {command}\ntest it: pytest {test}")
