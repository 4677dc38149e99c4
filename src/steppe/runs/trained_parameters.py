"""What a run keeps of its model: what was trained. A frozen base is kept as a reference, its class and a hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steppe.core.errors import SteppeError, make_missing_error
from steppe.core.shared_copies import hash_tensors
from steppe.core.task import Task

ADAPTER = "adapter"  # folder with files that peft loads


def describe_base(task: Task) -> dict[str, Any]:
    """Describe what is frozen, for about.json; nothing if everything is trained."""
    if not task.frozen:
        return {}
    return {"base": {"tensors": len(task.frozen), "parameters": sum(task.constants[k].numel() for k in task.frozen),
                     "hash": task.base_hash}}  # fmt: skip


def save_adapter(module: nn.Module, where: Path) -> None:
    """Write peft's own files next to the run's if the model is one of peft's."""
    if hasattr(module, "peft_config") and hasattr(module, "save_pretrained"):
        module.save_pretrained(where / ADAPTER, save_embedding_layers=False)  # type: ignore[operator]  # asks no server


def put_together(model: nn.Module, state: dict[str, Tensor], about: dict[str, Any], dtype: torch.dtype,
                 where: Path) -> nn.Module:  # fmt: skip
    """Return the user's module with the trained tensors in it; refuse another base than the run's."""
    base = (about.get("model") or {}).get("base")
    if base is None or dtype == torch.float64:
        model = model.to(dtype)
    if base is not None:
        model = _add_adapter(model, where)
        frozen = {k: p for k, p in model.named_parameters() if k not in state}
        if len(frozen) != base["tensors"] or hash_tensors(frozen) != base["hash"]:
            raise SteppeError(f"The frozen parameters of this module are not those on which {where} was trained: pass "
                              "the same base, with the same parameters frozen.")  # fmt: skip
    try:
        absent, unknown = model.load_state_dict(state, strict=base is None)
        wrong = unknown or [k for k in absent if base is None or k in dict(model.named_buffers())]
        if wrong:
            raise RuntimeError(f"{', '.join(wrong[:5])} is in one of them and not in the other")
    except RuntimeError as error:
        raise SteppeError(f"The weights in {where} do not fit this module: {error}") from error
    return model.eval()


def _add_adapter(model: nn.Module, where: Path) -> nn.Module:
    """Return the model with the run's adapter if the bare base was given."""
    if not (where / ADAPTER).exists() or hasattr(model, "peft_config"):
        return model
    try:
        from peft import PeftModel
    except ImportError:
        raise make_missing_error(
            f"{where} trained an adapter of peft, which is not installed", "transformers"
        ) from None
    return PeftModel.from_pretrained(model, str(where / ADAPTER))
