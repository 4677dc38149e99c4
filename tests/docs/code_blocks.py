"""The code blocks of README.md and of the pages in docs/: where they are, and how each is checked.

A fenced block names its language. `<!-- not run: REASON -->` on the line before it keeps a block from being executed;
it is still parsed, and its names are looked up. In an indented block, lines that begin with `steppe` are commands.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
GENERATED = ("reproductions/", "decisions/")  # results and history; their commands and numbers have tests of their own
FENCE = re.compile(r"^( *)```+ *([\w-]*)[^\n]*\n(.*?)^\1```+ *$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*$")
SHELL = ("bash", "console", "sh")


class Block(NamedTuple):
    page: str
    line: int  # of its first line of code
    language: str
    code: str
    not_run: str  # the reason, or ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    def parse(self) -> ast.Module:
        """Parse Python so that errors name its line on the page."""
        return ast.increment_lineno(ast.parse(self.code, self.page), self.line - 1)


def find_pages() -> list[Path]:
    """Return README.md, CONTRIBUTING.md and every page that people write."""
    written = (p for p in sorted((ROOT / "docs").rglob("*.md"))
               if not p.relative_to(ROOT / "docs").as_posix().startswith(GENERATED))  # fmt: skip
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *written]


def name_page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def read_blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a page, and its indented ones under the language "indented"."""
    text = path.read_text("utf-8")
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()].rstrip()
        reason = NOT_RUN.search(before.rpartition("\n")[2])
        code = "".join(line.removeprefix(match[1]) for line in match[3].splitlines(keepends=True))
        found.append(Block(name_page(path), text.count("\n", 0, match.start()) + 2, match[2], code,
                           reason[1] if reason else ""))  # fmt: skip
    rest = FENCE.sub(lambda m: "\n" * m[0].count("\n"), text)
    for match in re.finditer(r"(?<=\n\n)(?:    .*\n+)+", rest):
        number = rest.count("\n", 0, match.start()) + 1
        found.append(Block(name_page(path), number, "indented", re.sub("^    ", "", match[0], flags=re.MULTILINE), ""))
    return found


def read_commands(block: Block) -> Iterator[tuple[int, list[str]]]:
    """Return the words of every command of a shell block, or of every `steppe` line of an indented one."""
    joined = re.sub(r"\\\n", lambda m: "\\", block.code)
    line = block.line
    for text in joined.split("\n"):
        plain = text.replace("\\", "").removeprefix("$ ").strip()
        if plain and not plain.startswith("#") and (block.language in SHELL or plain.startswith("steppe ")):
            words = shlex.split(plain, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):  # settings of the environment
                words.pop(0)
            if words:
                yield line, words
        line += 1 + text.count("\\")


def find_steppe(words: list[str]) -> list[str] | None:
    """Return what follows `steppe`, `python -m steppe` or `torchrun … -m steppe`; None for another program."""
    if words[0] == "steppe":
        return words[1:]
    if words[0] in ("python", "torchrun") and "steppe" in words and words[words.index("steppe") - 1] == "-m":
        return words[words.index("steppe") + 1 :]
    return None
