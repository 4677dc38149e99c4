"""Doctests are looked for in every module; those of the Flower apps need Flower to be imported."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["src/steppe/flower/*"]
