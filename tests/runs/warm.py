"""Imported by the server that children are forked from: what torch loads at its first use is then there already."""

from tests.scene import launch

launch(rounds=1)
launch(rounds=1, executor="batched")
