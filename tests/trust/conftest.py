"""The command line, as others talk to it."""

from tests.cli.conftest import steppe

__all__ = ["steppe"]
