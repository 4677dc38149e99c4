"""Write docs/how-to/examples.md: what each script of examples/ shows, its code, and what it printed.

python -m tools.examples_page            # run all of them, and write the page
python -m tools.examples_page lora.py    # run these; the others keep their output
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.docs.catalogue_pages import link_pages

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "examples.md"
HEAD = """# Examples

Each is a short script of [`examples/`](../../examples) that downloads nothing. `make test-all` runs all of them,
`make test` the quick ones. `python -m tools.examples_page` writes this page.
"""


def find_examples() -> list[Path]:
    return sorted((ROOT / "examples").glob("*.py"))


def run_example(path: Path) -> str:
    """Return what a script prints. It runs in its own folder."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, path], cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{path.name} failed:\n{done.stderr}")
        shown = done.stdout.replace(str(Path(folder).resolve()), ".").replace(folder, ".")
        return shown.rstrip()


def read_outputs(page: str) -> dict[str, str]:
    """Return the part of the page about each script, by its name."""
    parts = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    return {
        found[1]: f"## {part.rstrip()}\n"
        for part in parts
        if (found := re.search(r"\(\.\./\.\./examples/(\S+)\)", part))
    }


def write_section(path: Path) -> str:
    print(path.name, flush=True)
    output = run_example(path)
    title, _, rest = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")
    rest = link_pages(rest, "../")
    text = f"{rest.strip()}\n\n" if rest.strip() else ""
    return (f"## {title.rstrip('.')}\n\n[`examples/{path.name}`](../../examples/{path.name})\n\n{text}"
            f"It prints:\n\n```text\n{output}\n```\n")  # fmt: skip


def main(names: list[str]) -> None:
    known = read_outputs(PAGE.read_text("utf-8")) if PAGE.exists() and names else {}
    sections = [known[path.name] if names and path.name not in names and path.name in known else write_section(path)
                for path in find_examples()]  # fmt: skip
    PAGE.write_text("\n".join([HEAD, *sections]), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
