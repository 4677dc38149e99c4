"""Transformers, adapters of peft and frozen bases: batched over clients they give what one after the other gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steppe
from steppe import models
from steppe.executors.captured import compile_step
from steppe.executors.client_conv import ClientConvolutions

FEW: dict[str, Any] = {"clients": 3, "per_round": 3, "rounds": 2, "epochs": 1, "batch": 5, "lr": 0.1,
                       "partition": [[*range(12)], [*range(12, 19)], [*range(19, 40)]], "workers": 0, "device": "cpu",
                       "dtype": "float64", "progress": False}  # fmt: skip
LAYERS = {"vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
          "intermediate_size": 24, "max_position_embeddings": 16}  # fmt: skip
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
Model = tuple[nn.Module, Any]  # a model and its data


def split(x: Any, y: Tensor, **options: Any) -> steppe.Data:
    halves = [{k: v[some] for k, v in x.items()} if isinstance(x, dict) else x[some]
              for some in (slice(40), slice(40, None))]  # fmt: skip
    return steppe.from_arrays(halves[0], y[:40], halves[1], y[40:], **options)


def sentences(shape: tuple[int, ...] = (6,)) -> steppe.Data:
    """Words with a padded end, and a mask that says so."""
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 12, (60, 6), generator=g)
    mask = torch.arange(6) < torch.randint(3, 7, (60, 1), generator=g)
    return split({"input_ids": ids * mask, "attention_mask": mask.view(60, *shape)}, ids[:, 0] % 2)


def words() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    ids = (torch.randint(0, 5, (60, 1), generator=g) + torch.arange(7)) % 5
    return ids[:, :-1], ids[:, 1:]


def images(size: int = 8) -> steppe.Data:
    return split(torch.randn(60, 3, size, size, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3)


def adapt(model: nn.Module, targets: list[str], **options: Any) -> nn.Module:
    peft = pytest.importorskip("peft")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a base without a name
        adapted: nn.Module = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets, **options))
    return adapted


def classifier() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    model: nn.Module = transformers.BertForSequenceClassification(transformers.BertConfig(**LAYERS, **QUIET))
    return model


def bert_lora() -> Model:
    return adapt(classifier(), ["query", "value"], task_type="SEQ_CLS"), sentences()


def bert_with_a_square_mask() -> Model:
    return adapt(classifier(), ["query", "value"], task_type="SEQ_CLS"), sentences((1, 1, 6))


def gpt2_lora() -> Model:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=5, n_positions=8, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
                                     use_cache=False)  # fmt: skip
    x, y = words()
    model = adapt(transformers.GPT2LMHeadModel(config), ["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    return model, split({"input_ids": x}, y)


def vit_lora() -> Model:
    transformers = pytest.importorskip("transformers")
    size = {k: v for k, v in LAYERS.items() if k not in ("vocab_size", "max_position_embeddings")}
    config = transformers.ViTConfig(**size, **QUIET, image_size=8, patch_size=4, num_labels=3)
    return adapt(transformers.ViTForImageClassification(config), ["q_proj", "v_proj"],
                 modules_to_save=["classifier"]), images()  # fmt: skip


def frozen_base() -> Model:
    base = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh()).requires_grad_(False)
    return nn.Sequential(base, nn.Linear(16, 3)), images()


def gpt() -> Model:
    x, y = words()
    return models.build("gpt", 5, (6,)), split(x, y, tokens=5)


def vit() -> Model:
    model: Any = models.build("vit", 3, (3, 8, 8))
    model.layers = model.layers[:1]
    return model, images()


KINDS: list[Callable[[], Model]] = [bert_lora, bert_with_a_square_mask, gpt2_lora, vit_lora, frozen_base, gpt, vit]
on_every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def train(kind: Callable[[], Model], algorithm: str, **options: Any) -> steppe.Result:
    torch.manual_seed(0)
    model, data = kind()
    return steppe.run(algorithm, model, data, **{**FEW, **options})


def check_same(found: steppe.Result, wanted: steppe.Result, tolerance: float) -> None:
    assert found.notes == []  # whatever falls back says so
    assert wanted.summary["executor"] == "sequential"
    assert torch.dist(wanted.x, wanted.experiment.task.x0) > 1e-3
    torch.testing.assert_close(found.x.cpu(), wanted.x, rtol=0, atol=tolerance)


@on_every_kind
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsol", "scaffold"])
def test_batched_equals_sequential(kind: Callable[[], Model], algorithm: str) -> None:
    wanted = train(kind, algorithm, executor="sequential")
    found = train(kind, algorithm, executor="batched")
    assert found.summary["executor"] == "batched"
    check_same(found, wanted, 1e-9)


def narrow_bert() -> Model:
    return adapt(classifier().to(torch.bfloat16), ["query", "value"], task_type="SEQ_CLS"), sentences()


def narrow_llama() -> Model:
    """Without layer norm, so that attention alone decides."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(**LAYERS | {"vocab_size": 5}, bos_token_id=0, eos_token_id=0)
    x, y = words()
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    return adapt(model, ["q_proj", "v_proj"], task_type="CAUSAL_LM"), split({"input_ids": x}, y)


def check_narrow(kind: Callable[[], Model], **options: Any) -> steppe.Result:
    """In bfloat16 the two round differently; they must still go the same way."""
    wanted = train(kind, "fedsam", executor="sequential", dtype="float32")
    found = train(kind, "fedsam", executor="batched", dtype="float32", **options)
    assert found.notes == []
    assert torch.dist(found.x.cpu(), wanted.x) < 0.1 * torch.dist(wanted.x, wanted.experiment.task.x0)
    return found


@pytest.mark.parametrize("kind", [narrow_bert, narrow_llama])
def test_a_base_of_a_narrow_type_is_batched_too(kind: Callable[[], Model]) -> None:
    assert check_narrow(kind).summary["executor"] == "batched"


def test_what_transformers_reads_is_left_out_of_a_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mask, its GPT-2 looks at positions, whose values a trace does not have."""
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    task = steppe.run("fedavg", *gpt2_lora(), **FEW).experiment.task

    def loss(rows: Tensor, ids: Tensor) -> Tensor:
        with ClientConvolutions(()):
            return torch.vmap(lambda w: task.forward(w, {"input_ids": ids}, {}, learning=True).logits.sum())(rows)

    given = torch.stack([task.x0, task.x0.cos()]), words()[0][:4]
    assert torch.equal(compile_step(loss, *given)(*given), loss(*given))
    assert not torch.compiler.is_compiling()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@on_every_kind
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_they_equal_the_cpu(kind: Callable[[], Model], compiled: bool) -> None:
    """Batched, and compiled and captured; in float64, where only the order of sums differs."""
    wanted = train(kind, "fedsol", executor="sequential")
    found = train(kind, "fedsol", executor="batched", device="cuda", compile=compiled)
    assert found.summary["executor"] == ("captured" if compiled else "batched")
    check_same(found, wanted, 1e-8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", [narrow_bert, narrow_llama])
def test_a_base_of_a_narrow_type_on_a_gpu(kind: Callable[[], Model], compiled: bool) -> None:
    found = check_narrow(kind, device="cuda", compile=compiled)
    assert found.summary["executor"] == ("captured" if compiled else "batched")
