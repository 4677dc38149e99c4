"""Triton's interpreter, which runs kernels on a CPU."""

import importlib.util
import os
import subprocess
import sys

import pytest

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None,
                                  reason="needs Triton, which PyTorch brings where it has CUDA")  # fmt: skip
# NumPy 2.4 no longer makes an int of an array with one element.
BEGIN = """
import triton.runtime.interpreter as interpreter
before = interpreter._patch_lang_tensor
def patched(tensor, scope):
    before(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())
interpreter._patch_lang_tensor = patched
import torch
from steppe.executors import client_conv_kernels as ours
"""


def interpret(program: str) -> None:
    """Run a program in a process of its own, because Triton reads the switch when a kernel is defined."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    code = f"{BEGIN}\n{program}\nprint('all near')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.endswith("all near\n"), done.stderr
