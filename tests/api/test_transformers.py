"""Models of transformers, with and without peft, built from configurations: nothing is downloaded."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steppe
from steppe.core.errors import SteppeError
from steppe.core.task import Task

transformers = pytest.importorskip("transformers")

FEW: dict[str, Any] = {"clients": 2, "per_round": 2, "rounds": 2, "epochs": 1, "batch": 10, "partition": "iid",
                       "workers": 0, "progress": False, "optimiser": "adamw", "lr": 0.01}  # fmt: skip
SMALL: dict[str, Any] = {"vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                         "intermediate_size": 24, "max_position_embeddings": 16}  # fmt: skip


def sentences(samples: int = 60) -> tuple[dict[str, Tensor], Tensor]:
    """Words with a padded end; a sentence belongs to the class of its first word."""
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 12, (samples, 6), generator=g)
    mask = (torch.arange(6) < torch.randint(3, 7, (samples, 1), generator=g)).long()
    return {"input_ids": ids * mask, "attention_mask": mask}, ids[:, 0] % 2


def classifier(seed: int = 0, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    config = transformers.BertConfig(**SMALL, num_labels=2, **options)
    return transformers.BertForSequenceClassification(config)


def split(x: dict[str, Tensor], y: Tensor, at: int = 40) -> Any:
    return steppe.from_arrays({k: v[:at] for k, v in x.items()}, y[:at], {k: v[at:] for k, v in x.items()}, y[at:])


def test_sequence_classification(tmp_path: Path) -> None:
    """Inputs by name, outputs with logits, dropout; a checkpointed model learns the same."""
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    data = split(*sentences())
    result = steppe.run("fedsam", classifier(**quiet), data, out=tmp_path / "run", **FEW)
    once = {**FEW, "clients": 1, "per_round": 1, "rounds": 1, "batch": 40, "optimiser": "sgd", "weight_decay": 0.0}
    step = steppe.run("fedavg", classifier(**quiet), data, **once)
    model = classifier(**quiet).train()
    nn.functional.cross_entropy(model(**data.train_inputs).logits, data.train_targets).backward()
    wanted = torch.cat([(p - once["lr"] * p.grad).flatten() for p in model.parameters()])  # type: ignore[operator]
    torch.testing.assert_close(step.x, wanted.detach(), rtol=0, atol=1e-6)
    saver = classifier(**quiet)
    saver.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert Task(saver).recomputes  # known before any pass
    saved = steppe.run("fedsam", saver, data, executor="batched", **FEW)
    torch.testing.assert_close(saved.x, result.x, rtol=0, atol=1e-4)
    assert any("one after the other, because" in note and "checkpointing" in note for note in saved.notes)
    back = steppe.load(tmp_path / "run", model=classifier(1, **quiet))
    with torch.no_grad():
        assert torch.equal(back.model(**sentences()[0]).logits, result.model(**sentences()[0]).logits)
    rough = steppe.run("fedsam", classifier(), data, precision="bf16", **FEW)  # with dropout
    assert rough.x.isfinite().all()


def test_causal_language_model_with_tied_embeddings() -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=5, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    x = (torch.randint(0, 5, (60, 1)) + torch.arange(7)) % 5
    inputs, targets = {"input_ids": x[:, :-1]}, x[:, 1:]
    result = steppe.run("fedavg", model, split(inputs, targets), **{**FEW, "rounds": 4, "lr": 0.02})
    assert len(result.x) == sum(p.numel() for p in model.parameters())  # the embedding and the head are one matrix
    trained: Any = result.model
    assert trained.lm_head.weight is trained.transformer.wte.weight
    assert result.history[-1]["loss"] < 0.8 * result.history[0]["loss"]


def lora(base: nn.Module) -> nn.Module:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], lora_dropout=0.0)
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.get_peft_model(base, config)


def test_lora_by_peft(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    data, x = split(*sentences()), sentences()[0]
    model = lora(classifier().to(torch.bfloat16))
    result = steppe.run("fedsam", model, data, out=tmp_path / "run", **FEW)
    names = result.experiment.task.layout.names
    assert names
    assert all("lora_" in name or "classifier" in name for name in names)
    assert result.experiment.cost.bytes_up == 4 * len(result.x) < 0.1 * 4 * sum(p.numel() for p in model.parameters())
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").exists()
    with torch.no_grad():
        mine = result.model.eval()(**x).logits
        # peft loads what the run wrote, and steppe puts it on the bare base
        theirs = peft.PeftModel.from_pretrained(classifier().to(torch.bfloat16), tmp_path / "run" / "adapter").eval()
        torch.testing.assert_close(theirs(**x).logits, mine, rtol=0, atol=2e-2)
        back = steppe.load(tmp_path / "run", model=classifier().to(torch.bfloat16))
        assert torch.equal(back.model(**x).logits, mine)
        again = steppe.load(tmp_path / "run", model=lora(classifier().to(torch.bfloat16)))
        assert torch.equal(again.model(**x).logits, mine)
    with pytest.raises(SteppeError, match="pass the same base"):
        steppe.load(tmp_path / "run", model=lora(classifier(seed=1).to(torch.bfloat16)))


@pytest.mark.parametrize(("name", "options", "batched"), [
    ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}, True),
    ("convnext_atto", {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}, True),
    ("resnet10t", {"channels": (8, 16, 24, 32), "stem_width": 8}, False),  # batch norm
])  # fmt: skip
def test_images_by_timm(name: str, options: dict[str, Any], batched: bool) -> None:
    timm = pytest.importorskip("timm", exc_type=ImportError, reason="timm is not installed, or its torchvision is not")
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=4, **options)
    x, y = torch.randn(40, 3, 32, 32), torch.arange(40) % 4
    one, several = (
        steppe.run("fedsam", model, (x[:30], y[:30], x[30:], y[30:]), executor=executor, **{**FEW, "optimiser": "sgd"})
        for executor in ("sequential", "batched")
    )
    assert not torch.equal(one.x, one.experiment.task.x0)
    torch.testing.assert_close(several.x, one.x, rtol=0, atol=1e-5)
    assert any("one after the other" in note for note in several.notes) != batched
