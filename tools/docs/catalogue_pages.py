"""All pages of methods and parts, by their paths."""

from __future__ import annotations

from functools import cache

from tools.docs import method_pages, part_pages
from tools.docs.catalogue import list_methods, list_parts
from tools.docs.compatibility import read_compatibility
from tools.docs.evidence import read_evidence


@cache
def make_pages() -> dict[str, str]:
    """Return a page per method and per part, and the two tables of them."""
    evidence, compatibility = read_evidence(), read_compatibility()
    methods = {f"methods/{name}.md": method_pages.make_page(method, evidence, compatibility)
               for name, method in list_methods().items()}  # fmt: skip
    parts = {f"methods/parts/{name}.md": part_pages.make_page(kind, evidence, compatibility)
             for name, kind in list_parts().items()}  # fmt: skip
    return methods | parts | {
        "methods/index.md": method_pages.make_index(),
        "methods/parts/index.md": part_pages.make_index(),
    }  # fmt: skip
