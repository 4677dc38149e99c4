"""Rows of joined gradients begin at round addresses, and have the same numbers."""

import torch
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from steppe.executors import align_gradients as ours
from tests.executors.test_client_conv import rand


def test_rows_are_round_and_the_same(monkeypatch):
    monkeypatch.setattr(ours, "LEAST", 10)
    w = rand(3, 13)

    def step(w):
        def value(v):
            first, second = torch.split(v, [6, 7])
            return first.pow(3).sum() + second.sin().sum()

        return vmap(grad(value))(w) + w

    graph = make_fx(step)(w)
    before = graph(w)
    assert ours.align_gradients(graph.graph, 13) == 0  # its rows are round already
    assert ours.align_gradients(graph.graph, 8) == 1
    graph.graph.lint()
    graph.recompile()
    assert torch.equal(graph(w), before)
    joins = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor)
    seen = {}

    class Watched(torch.fx.Interpreter):
        def run_node(self, n):
            return seen.setdefault(n, super().run_node(n))

    Watched(graph).run(w)
    assert [seen[n].stride() for n in joins] == [(16, 1)]
