"""All pages of methods and parts, by their paths."""

from __future__ import annotations

import re
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
    pages = methods | parts | {
        "methods/index.md": method_pages.make_index(),
        "methods/parts/index.md": part_pages.make_index(),
    }  # fmt: skip
    return {path: link_pages(text, "../" * path.count("/")) for path, text in pages.items()}


def link_pages(text: str, to_docs: str) -> str:
    """Write the pages that docstrings name by their paths as links, where `to_docs` leads to docs/.

    >>> link_pages("less (docs/reproductions/fedsol-table1.md)", "../")
    'less ([fedsol-table1](../reproductions/fedsol-table1.md))'
    """
    return re.sub(r"(?<![\w/])docs/([\w/-]*?([\w-]+)\.md)", rf"[\2]({to_docs}\1)", text)
