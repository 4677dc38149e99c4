"""Write tensors to a file; a full disk is an OSError, as it is for every other file."""

from __future__ import annotations

import os
import re
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor


def save_file(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file with the same permissions as the run's other files.

    Its library makes the file private, refuses tensors that share memory, as a part's state may with the model, and has
    an error of its own, with the system's number in the text.
    """
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    path.touch()
    mode = path.stat().st_mode
    try:
        safetensors.torch.save_file(own, path)
        path.chmod(mode)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
