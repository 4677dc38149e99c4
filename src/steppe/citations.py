"""Return BibTeX for algorithms and parts: `steppe cite fedsmoo`."""

from __future__ import annotations

import re
from inspect import cleandoc, getdoc

from steppe import __version__
from steppe.algorithms import CATALOGUE
from steppe.core.errors import SteppeError, suggest_name, take_first_line
from steppe.registry import PARTS

SOFTWARE = f"""@software{{steppe,
  title = {{{{Steppe}}: flatness-aware federated learning}},
  author = {{{{The Steppe developers}}}},
  year = {{2026}}, version = {{{__version__}}}, license = {{Apache-2.0}}
}}"""

OUR_OWN = ("takyr",)  # published with the library


def cite(name: str) -> str:
    """Return the BibTeX of the library, of an algorithm with its parts, of a part, or of several joined by +.

    >>> cite("fedprox").splitlines()[0]
    '@inproceedings{fedprox,'
    """
    return "\n\n".join(
        dict.fromkeys(entry for one in name.split("+") for entry in _list_entries(one.partition(":")[0]))
    )


def _list_entries(name: str) -> list[str]:
    if name == "steppe":
        return [SOFTWARE]
    if name in CATALOGUE:
        entry = CATALOGUE[name]
        ours = [SOFTWARE] if name in OUR_OWN else []
        texts = [*ours, getattr(entry, "citation", ""), *(part.citation for part in entry())]
    elif name in PARTS:
        texts = [PARTS[name].citation]
    else:
        known = suggest_name(name, {*CATALOGUE, *PARTS, "steppe"})
        raise SteppeError(f"there is no algorithm or part {name!r} to cite{known}")
    entries = [paper for text in texts for paper in re.split(r"\n\s*\n", cleandoc(text)) if paper]
    if not entries:
        about = take_first_line(getdoc(CATALOGUE[name] if name in CATALOGUE else PARTS[name]))
        return [f"% {name} is not from a paper, so there is nothing to cite. {about}"]
    return entries
