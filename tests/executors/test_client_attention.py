"""Attention of all clients at once, against `F.scaled_dot_product_attention` client by client."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from steppe.executors import client_attention as ours
from steppe.executors.client_conv import ClientConvolutions
from tests.executors.test_client_conv import near, nodes, rand

FUSED = [
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
]


def value(q, k, v, devices=("cpu",), **how):
    with ClientConvolutions(devices):
        return F.scaled_dot_product_attention(q, k, v, **how).pow(3).sum()


def plain(q, k, v, **how):
    return F.scaled_dot_product_attention(q, k, v, **how).pow(3).sum()


def by_turns(tensors, **how):
    """The gradients of one client after the other."""
    leaves = [t.clone().requires_grad_() for t in tensors]
    return torch.autograd.grad(sum(plain(*each, **how) for each in zip(*leaves, strict=True)), leaves)


@pytest.mark.parametrize("how", [{}, {"is_causal": True}, {"scale": 0.3}], ids=str)
def test_one_call_for_all_clients_and_the_same_gradients(how):
    given = [rand(3, 2, 2, 7, 8, seed=i) for i in range(3)]
    all_ = vmap(grad(lambda *t: value(*t, **how), argnums=(0, 1, 2)))
    for mine, theirs in zip(all_(*given), by_turns(given, **how), strict=True):
        near(mine, theirs)
    seen = nodes(all_, *given)
    assert [seen.count(name) for name in FUSED] == [1, 1]
    assert not [name for name in seen if "softmax" in name or "bmm" in name]


def test_partly_batched_and_nested():
    q, k, v = rand(3, 2, 2, 7, 8), rand(2, 2, 7, 8, seed=1), rand(2, 3, 2, 7, 8, seed=2)
    mine = vmap(grad(value, argnums=(0, 1, 2)), in_dims=(0, None, 1))(q, k, v)
    for ours_, theirs in zip(mine, by_turns([q, k.expand_as(q), v.movedim(1, 0)]), strict=True):
        near(ours_, theirs)
    nested = vmap(vmap(grad(value)))(*(torch.stack([t, t.sin()]) for t in (q, q, q)))
    near(nested[1], by_turns([q.sin()] * 3)[0])


def test_what_the_kernels_cannot_take_is_computed_by_products():
    given = [rand(3, 2, 2, 7, 8, seed=i) for i in range(3)]
    mask = rand(7, 7)
    for how, devices in (({"attn_mask": mask}, ("cpu",)), ({}, ("cuda",))):
        all_ = vmap(grad(lambda *t, how=how, devices=devices: value(*t, devices=devices, **how)))
        near(all_(*given), by_turns(given, **how)[0])
        assert not set(FUSED) & set(nodes(all_, *given))
    q = given[0][0]
    assert ours.suits(q, q, q)
    for wrong in ({"mask": mask}, {"dropout": 0.1}, {"gqa": True}):
        assert not ours.suits(q, q, q, **wrong)
    assert not ours.suits(q, q[:, :, :5], q[:, :, :5], causal=True)
    assert not ours.suits(q, q[:, :1], q[:, :1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_of_a_gpu_get_the_arguments_they_want(dtype):
    """Tensors without data take the same branch as those on a GPU."""
    q, k, v = (torch.empty(3, 2, 2, 64, 8, dtype=dtype, device="meta") for _ in range(3))
    found = vmap(grad(lambda *t: ours.attend(*t, True).sum(), argnums=(0, 1, 2)))(q, k, v)
    assert [(t.shape, t.dtype) for t in found] == [(q.shape, dtype)] * 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [65, 128])
def test_kernels_on_a_gpu(dtype, tokens):
    given = [rand(3, 2, 2, tokens, 64, dtype=dtype, seed=i).double() for i in range(3)]
    theirs = by_turns(given, is_causal=True)
    all_ = vmap(grad(lambda *t: value(*t, devices=("cuda",), is_causal=True), argnums=(0, 1, 2)))
    for mine, right in zip(all_(*(t.to("cuda", dtype) for t in given)), theirs, strict=True):
        near(mine.cpu().double(), right, 1e-3 if dtype == torch.float32 else 5e-2)
