"""Return BibTeX for algorithms and parts: `steppe cite fedsmoo`."""

from __future__ import annotations

import re
from inspect import cleandoc, getdoc

from steppe import __version__
from steppe.algorithms import CATALOGUE
from steppe.core.algorithm import Algorithm
from steppe.core.errors import SteppeError, quote, suggest_name, take_first_line
from steppe.references import ALGORITHMS, locate
from steppe.references import PARTS as PARTS_OF_PACKAGES
from steppe.registry import PARTS, call_with_settings, check_parts, find_entry, find_part
from steppe.settings import parse_assignment, split, split_algorithm, split_name

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
    algorithm, settings, add = split_algorithm(name)
    named = [(algorithm, settings), *((one, split(rest, ",")) for one, rest in map(split_name, add))]
    return "\n\n".join(dict.fromkeys(entry for one, own in named for entry in _list_entries(one, own)))


def _list_entries(name: str, settings: list[str]) -> list[str]:
    if name == "steppe":
        return [SOFTWARE]
    if name in CATALOGUE:
        entry = CATALOGUE[name]
        ours = [SOFTWARE] if name in OUR_OWN else []
        texts = [*ours, getattr(entry, "citation", ""), *(part.citation for part in entry())]
        about = take_first_line(getdoc(entry))
    elif name in PARTS:
        texts, about = [PARTS[name].citation], take_first_line(getdoc(PARTS[name]))
    else:
        texts, about = _find_own(name, settings), "Its part has no text `citation`."
    entries = [paper for text in texts for paper in re.split(r"\n\s*\n", cleandoc(text)) if paper]
    return entries or [f"% {name} is not from a paper, so there is nothing to cite. {about}"]


def _find_own(name: str, settings: list[str]) -> list[str]:
    """Return the citations of the user's own algorithm and its parts, or of a part."""
    if not any(locate(name, group) for group in (ALGORITHMS, PARTS_OF_PACKAGES)):
        known = suggest_name(name, {*CATALOGUE, *PARTS, "steppe"})
        raise SteppeError(f"there is no algorithm or part {quote(name)} to cite{known}")
    find = find_entry if locate(name, ALGORITHMS) else find_part
    function = find(name)
    found = call_with_settings(function, f"algorithm {name!r}", dict(map(parse_assignment, settings)))
    parts = check_parts(found.parts if isinstance(found, Algorithm) else found)
    return [str(getattr(function, "citation", "")), *(part.citation for part in parts)]
