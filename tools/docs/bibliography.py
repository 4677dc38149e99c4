"""Format papers for readers, from the BibTeX of methods and parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from inspect import cleandoc

ACCENTED = {r"{\"u}": "ü", r"{\v{c}}": "č", r"{\'y}": "ý", r"{\'e}": "é", r"{\"o}": "ö"}


@dataclass(frozen=True)
class Paper:
    """One entry of BibTeX."""

    key: str
    fields: dict[str, str]
    bibtex: str

    @property
    def authors(self) -> list[str]:
        """Return the last names."""
        people = self.fields.get("author", "").split(" and ")
        return [name.partition(",")[0].strip() for name in people if name]

    @property
    def link(self) -> str:
        return f"https://arxiv.org/abs/{self.fields['eprint']}" if "eprint" in self.fields else ""

    def __str__(self) -> str:
        names = self.authors
        who = " & ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
        venue = self.fields.get("booktitle") or self.fields.get("journal") or ""
        where = ", ".join(filter(None, [venue, self.fields.get("year")]))
        link = f" [arXiv:{self.fields['eprint']}]({self.link})" if self.link else ""
        return f"{who + ': ' if who else ''}*{self.fields['title']}*. {where}.{link}"


def read_papers(bibtex: str) -> list[Paper]:
    """Return the entries of a text, without comments (%).

    >>> str(read_papers("@misc{a, title = {{FedX}: a {B}}, author = {Li, C. and Wu, D.}, year = {2021}}")[0])
    'Li & Wu: *FedX: a B*. 2021.'
    """
    texts = [t for t in re.split(r"\n\s*\n", cleandoc(bibtex)) if t.strip() and not t.startswith("%")]
    return [Paper(re.match(r"@\w+\{([^,]+),", t)[1], _fields(t), t) for t in texts]  # type: ignore[index]


def _fields(entry: str) -> dict[str, str]:
    found = {}
    for start in re.finditer(r"(\w+)\s*=\s*\{", entry):
        depth, at = 1, start.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(entry[at], 0)
            at += 1
        text = entry[start.end() : at - 1]
        for code, letter in ACCENTED.items():
            text = text.replace(code, letter)
        found[start[1]] = re.sub(r"\s+", " ", text.replace("{", "").replace("}", ""))
    return found
