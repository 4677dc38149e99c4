"""The laboratory's tests talk to the command line as others do."""

from tests.cli.conftest import steppe

__all__ = ["steppe"]
