"""Jinja's environments, for the templates of this package and of others: HTML, Markdown, LaTeX and plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader


def make_environment(package: str, filters: Mapping[str, Any] | None = None, html: bool = False,
                     **delimiters: str) -> Environment:  # fmt: skip
    """Return an environment for the templates of a package; only those of HTML escape by themselves."""
    made = Environment(loader=PackageLoader(package), trim_blocks=True, lstrip_blocks=True, autoescape=html,
                       keep_trailing_newline=not html, **delimiters)  # type: ignore[arg-type]  # fmt: skip
    made.filters |= filters or {}
    return made
