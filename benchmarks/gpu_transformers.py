"""Transformers of ten clients at once, against a tuned hand-written loop that trains one client after the other.

The jobs are ViT-tiny on images of CIFAR-100's shape, a language model (4 layers, 256 wide, 128 tokens), LoRA adapters
for that one, and `gpt2-peft`: GPT-2 of `transformers` in the same size with adapters by `peft`, if both are installed.
Inputs are random; the time does not depend on them. The loop is tuned as one would do it without a framework: data on
the GPU, the whole step compiled and captured as one CUDA graph, PyTorch's fused attention and fused SGD, the same
precision. A round is the local training of all clients and the mean of their models, without an evaluation. All
programs take turns in one process, one of them the library without batching; the target is 0.35 of the loop's time.

A row also says how the library ran the clients (`path`), the operations that vmap ran for one client after the other
(`looped`), and how far the models of both executors are apart after a round of a small version in float64
(`difference`, relative to how far a model went).

    python -m benchmarks.gpu_transformers --out benchmarks/results/gpu-transformers.json
    python -m benchmarks.gpu_transformers --device cpu --tiny          a quick check, on any machine
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.turns import clocked
from steppe.config import resolve
from steppe.core.server import Server
from steppe.data import Data, from_arrays
from steppe.engine.build import build_experiment
from steppe.engine.choose_executor import choose_executor
from steppe.engine.play_round import play_round
from steppe.engine.resources import make_store
from steppe.executors.batched import Batched
from steppe.executors.captured import Captured
from steppe.models import build
from steppe.models.gpt import GPT
from steppe.runs.provenance import find_versions

TARGET = 0.35
CLIENTS, STEPS, ROUNDS = 10, 10, 5
LR, MOMENTUM, DECAY = 0.01, 0.9, 1e-5
TOKENS, LENGTH, RANK = 256, 128, 8
JOBS = {f"{model} {precision}": (model, precision) for model in ("gpt", "vit", "gpt-lora", "gpt2-peft")
        for precision in ("tf32", "bf16")}  # fmt: skip
NEEDS = {"gpt2-peft": ("transformers", "peft")}
OURS, ONE_BY_ONE = "ours", "ours, one by one"


class LoRA(nn.Module):
    """A frozen linear layer with a trained product of two thin matrices (Hu et al., ICLR 2022)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


def make(model: str, tiny: bool) -> tuple[nn.Module, Data, int]:
    """Return a model, its data and the batch size."""
    torch.manual_seed(0)
    rng, batch = np.random.default_rng(0), 4 if tiny else 50 if model == "vit" else 32
    samples = batch * STEPS * CLIENTS
    if model == "vit":
        images, labels = rng.integers(256, size=(samples, 3, 32, 32), dtype=np.uint8), rng.integers(100, size=samples)
        net = build("vit", 100, (3, 32, 32))
        if tiny:
            net.layers = net.layers[:1]
        return net, from_arrays(images, labels, images[:10], labels[:10], classes=100), batch
    ids = rng.integers(TOKENS, size=(samples, LENGTH + 1))
    width, heads, layers = (32, 2, 1) if tiny else (256, 4, 4)
    net = adapt_gpt2(width, heads, layers) if model == "gpt2-peft" else GPT(TOKENS, LENGTH, width, heads, layers)
    if model == "gpt-lora":
        net.requires_grad_(False)
        for block in list(net.body)[:-1]:
            block.attention.qkv, block.mlp[0] = LoRA(block.attention.qkv), LoRA(block.mlp[0])
    return net, from_arrays(ids[:, :-1], ids[:, 1:], ids[:10, :-1], ids[:10, 1:], tokens=TOKENS), batch


def adapt_gpt2(width: int, heads: int, layers: int) -> nn.Module:
    """Return GPT-2 with untrained weights and LoRA adapters on the same layers as `LoRA`."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    size = {"n_positions": LENGTH, "n_embd": width, "n_head": heads, "n_layer": layers}
    no_dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    base = GPT2LMHeadModel(
        GPT2Config(vocab_size=TOKENS, use_cache=False, bos_token_id=None, eos_token_id=None, **size, **no_dropout)
    )
    adapters = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a base without a name
        adapted: nn.Module = get_peft_model(base, adapters)
    return adapted


class Loop:
    """The hand-written loop; nothing comes from the library except the arrays and the network."""

    def __init__(self, model: nn.Module, data: Data, batch: int, precision: str, device: str, compiled: bool) -> None:
        self.model, self.precision, self.device = model.to(device), precision, device
        self.inputs, self.targets = data.train_inputs.to(device), data.train_targets.to(device)
        self.params = [p for p in model.parameters() if p.requires_grad]
        cuda = device.startswith("cuda")
        self.optimiser = torch.optim.SGD(self.params, lr=LR, momentum=MOMENTUM, weight_decay=DECAY, fused=cuda)
        self.batch, self.index = batch, torch.zeros(batch, dtype=torch.int64, device=device)
        self.total = torch.zeros((), device=device)
        self.run = torch.compile(self._loss) if compiled and cuda else self._loss
        self.start = [p.detach().clone() for p in self.params]
        self._switch()
        self.step = self._captured() if cuda else self._step

    def _switch(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        if x.dtype == torch.uint8:
            x = x.float() / 255
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.precision == "bf16"):
            output = self.model(x)
            logits: Tensor = getattr(output, "logits", output)
        return F.cross_entropy(logits.float().flatten(0, -2), y.flatten())

    def _step(self) -> None:
        loss = self.run(self.inputs[self.index], self.targets[self.index])
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.total.add_(loss.detach())

    def _captured(self) -> Callable[[], None]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph.replay

    def round(self) -> float:
        """Train all clients and average their models; return the mean loss of the batches."""
        self._switch()
        samples = len(self.targets) // CLIENTS
        mean = [torch.zeros_like(p) for p in self.params]
        self.total.zero_()
        for client in range(CLIENTS):
            with torch.no_grad():
                torch._foreach_copy_(self.params, self.start)
                for state in self.optimiser.state.values():
                    if state.get("momentum_buffer") is not None:
                        state["momentum_buffer"].zero_()
            order = client * samples + torch.randperm(samples, device=self.device)
            for index in order.split(self.batch):
                self.index.copy_(index)
                self.step()
            with torch.no_grad():
                torch._foreach_add_(mean, self.params, alpha=1 / CLIENTS)
        self.start = mean
        return float(self.total) / (CLIENTS * STEPS)


class Ours:
    """The same job by this library, one round per call."""

    def __init__(self, model: nn.Module, data: Data, batch: int, precision: str, device: str, lanes: int,
                 executor: str = "batched", dtype: str = "float32") -> None:  # fmt: skip
        config = resolve({
            "algorithm": "fedavg", "partition": "iid", "clients": CLIENTS, "per_round": CLIENTS, "rounds": 1000,
            "batch": batch, "epochs": 1, "lr": LR, "lr_schedule": "constant", "momentum": MOMENTUM,
            "weight_decay": DECAY, "augmentation": "none", "precision": precision, "device": device,
            "executor": executor, "clip": None, "chunk": lanes, "workers": 0, "dtype": dtype,
        })  # fmt: skip
        self.experiment = build_experiment(config, model=model, data=data)
        self.flags = torch.backends.cuda.matmul.allow_tf32
        self.executor, self.store = choose_executor(self.experiment), make_store(self.experiment, None)
        x0 = self.experiment.task.x0
        self.server = Server(x0, self.experiment.algorithm.server_state(x0), self.experiment.task.buffers)
        self.t = 0

    def round(self) -> float:
        """Play a round; return the clients' mean loss."""
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.flags
        e, t = self.experiment, self.t
        played = play_round(e, self.server, self.store, self.executor, t, e.sample(t), e.lr(t))
        self.server, self.t = played.after, t + 1
        return sum(row[0] for row in played.losses) / CLIENTS

    def path(self) -> str:
        """Say how the clients were trained, once a round has been played."""
        words = "batched" if isinstance(self.executor, Batched) else "one client after the other"
        if isinstance(self.executor, Captured):
            words += ", compiled" if self.executor.compiled else ", not compiled"
            uncaptured = any("captured as a graph" in note for note in self.experiment.notes)
            words += ", no CUDA graph" if uncaptured or not self.executor.graphs else ", CUDA graph"
        return "; ".join([words, *self.experiment.notes])


def find_looped(play: Callable[[], Any]) -> list[str]:
    """Play a round, and return the operations that vmap ran for one client after the other."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        play()
    found = (re.search(r"batching rule for (\S+?)\.? ", str(w.message)) for w in caught)
    return sorted({match[1] for match in found if match})


@cache  # the precision of a job makes no difference
def compare_executors(model: str, device: str) -> dict[str, Any]:
    """Train a small version in float64, batched and one by one; return how far the results are apart."""
    ways = [Ours(*make(model, tiny=True), "fp32", device, CLIENTS, way, "float64") for way in ("batched", "sequential")]
    for way in ways:
        way.round()
    batched, one_by_one = (way.server.x for way in ways)
    moved = (one_by_one - ways[1].experiment.task.x0).norm()
    return {"path": ways[0].path(), "difference": float((batched - one_by_one).norm() / moved)}


def measure(name: str, device: str, tiny: bool, lanes: int = CLIENTS) -> dict[str, Any]:
    """Time the rounds of one job by all programs, in turns."""
    model, precision = JOBS[name]
    if missing := [package for package in NEEDS.get(model, ()) if importlib.util.find_spec(package) is None]:
        return {"skipped": f"not installed: {', '.join(missing)}"}
    programs: dict[str, Callable[[], Any]] = {}
    row: dict[str, Any] = {"lanes": lanes, "programs": {}}
    contenders: dict[str, Callable[..., Any]] = {
        OURS: lambda *given: Ours(*given, precision, device, lanes),
        ONE_BY_ONE: lambda *given: Ours(*given, precision, device, lanes, "sequential"),
        "loop, graph": lambda *given: Loop(*given, precision, device, compiled=False),
        "loop, compiled graph": lambda *given: Loop(*given, precision, device, compiled=True),
    }
    for program, start in contenders.items():
        began = time.perf_counter()
        try:
            made = start(*make(model, tiny))
            programs[program] = clocked(made.round)
            looped = find_looped(programs[program])
        except Exception as error:  # a compiler may fail on one of them
            row["programs"][program] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
            programs.pop(program, None)
            continue
        row["programs"][program] = {"first_round": time.perf_counter() - began, "times": []}
        if isinstance(made, Ours):
            row["programs"][program]["path"] = made.path()
        if program == OURS:
            row |= {"looped": looped, "parameters": made.experiment.task.layout.size}
    for _ in range(1 if tiny else ROUNDS):
        for program, turn in programs.items():
            seconds, loss = turn()
            row["programs"][program]["times"].append(seconds)
            row["programs"][program]["loss"] = loss
    best = {p: min(r["times"]) for p, r in row["programs"].items() if r.get("times")}
    loops = [seconds for p, seconds in best.items() if p.startswith("loop")]
    row |= {"best": best, "ratio": best[OURS] / min(loops) if OURS in best and loops else None}
    try:
        row["float64"] = compare_executors(model, device)
    except Exception as error:
        row["float64"] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    return row


def measure_all(names: list[str], device: str, seconds: float, tiny: bool = False, lanes: int = CLIENTS,
                keep: Callable[[dict[str, Any]], None] = lambda _: None) -> dict[str, Any]:  # fmt: skip
    """Time the jobs, but start none after this many seconds; `keep` gets the rows so far."""
    began, rows = time.perf_counter(), dict[str, Any]()
    for name in names:
        if time.perf_counter() - began > seconds:
            rows[name] = {"skipped": "no time left"}
            continue
        rows[name] = row = measure(name, device, tiny, lanes)
        print(describe(name, row), flush=True)
        keep(rows)
        if device.startswith("cuda"):
            torch._dynamo.reset()
            torch.cuda.empty_cache()
    return rows


def describe(name: str, row: dict[str, Any]) -> str:
    """Return the lines on a job."""
    if "skipped" in row:
        return f"{name:15} skipped: {row['skipped']}"
    cells = [f"{p} {1e3 * s:.1f} ms" for p, s in row["best"].items()]
    cells += [f"{p} failed: {r['failed']}" for p, r in row["programs"].items() if "failed" in r]
    ratio = "" if row["ratio"] is None else f"  ratio {row['ratio']:.3f} (target {TARGET})"
    first = ", ".join(f"{r['first_round']:.1f}" for r in row["programs"].values() if "first_round" in r)
    losses = ", ".join(f"{r['loss']:.3f}" for r in row["programs"].values() if "loss" in r)
    lines = [f"{name:15} " + "; ".join(cells) + f"{ratio}  first rounds {first} s  losses {losses}"]
    lines += [f"    {p}: {r['path']}" for p, r in row["programs"].items() if "path" in r]
    lines += [f"    vmap ran one client after the other: {', '.join(row['looped'])}"] if row.get("looped") else []
    exact = row["float64"]
    lines.append("    in float64, " + (f"failed: {exact['failed']}" if "failed" in exact else
                 f"{exact['path']}: {exact['difference']:.1e} from one by one"))  # fmt: skip
    return "\n".join(lines)


def estimate_bound(roofs: dict[str, float]) -> list[str]:
    """Return a table of the least time of the language model's round by these roofs: an estimate, not a measurement.

    Passes are tensors of the model's width that are read or written: two layer norms, the bias of q, k and v, GELU and
    two sums forward (27 per layer), the same backward with the sums for biases and norms and the joined gradients of
    q, k and v (48), and ten outside the layers. The update passes nine times over all parameters.
    """
    layers, width, sequences = 4, 256, 32 * CLIENTS
    weights = layers * 12 * width**2 + width * TOKENS
    tokens = sequences * LENGTH
    flops = {
        f"products: 6 × {weights / 1e6:.2f} M weights × {tokens:,} tokens": 6 * weights * tokens,
        # Scores and their use, and 2.5 times that backward; half of the pairs are masked.
        "attention, forward and backward, causal": 3.5 * 4 * LENGTH * tokens * width * layers / 2,
    }
    passes = layers * (27 + 48) + 10
    size = 4 * tokens * width
    update = 9 * 4 * CLIENTS * 3_323_648
    precisions = ("tf32", "bf16")
    rows = {what: [STEPS * f / roofs[f"{p}_TFLOPs"] / 1e9 for p in precisions] for what, f in flops.items()}
    rows[f"{passes} passes over {size / 1e6:.0f} MB of activations (half in bf16)"] = [
        STEPS * passes * size * share / roofs["copy_TBs"] / 1e9 for share in (1.0, 0.5)]  # fmt: skip
    rows["gradients joined, momentum and update: 9 passes"] = [STEPS * update / roofs["copy_TBs"] / 1e9] * 2
    rows["together"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    return ["Least time of the language model's round with today's fusions, by the roofs of the table at the top: an "
            "estimate on paper, not a measurement.", "", f"| ms per round of {STEPS} steps | TF32 | bf16 |",
            "|---" * 3 + "|",
            *(f"| {what} | {tf32:.1f} | {bf16:.1f} |" for what, (tf32, bf16) in rows.items())]  # fmt: skip


def markdown(report: dict[str, Any], roofs: dict[str, float] | None = None) -> str:
    """Return the tables of docs/performance.md; `roofs` are those that `make bench-gpu` measured."""
    about = report["versions"]
    columns = (OURS, ONE_BY_ONE, "loop, graph", "loop, compiled graph")
    lines = [f"{about['hardware']}, torch {about['torch']}; commit {(about['commit'] or 'unknown')[:10]}.", "",
             "| job | trained parameters | ours, ms per round | ours, one client after the other | loop, CUDA graph | "
             "loop, compiled and CUDA graph | of the faster loop | how ours ran | from one by one, in float64 |",
             "|---" * 9 + "|"]  # fmt: skip
    reasons: list[str] = []
    for name, row in report["rows"].items():
        if row.get("ratio") is None:
            continue
        cells = [f"{1e3 * row['best'][p]:.1f}" if p in row["best"] else
                 "failed" if p in row["programs"] else "not measured" for p in columns]  # fmt: skip
        missed = "" if row["ratio"] <= TARGET else f" (target {TARGET}: missed)"
        path, _, why = row["programs"][OURS].get("path", "not recorded").partition("; ")
        reasons += [f"{name}: {why.partition(' - ')[0]} …"] if why else []  # the file has the whole message
        exact = row.get("float64", {})
        apart = f"{exact['difference']:.0e}" if "difference" in exact else "failed" if exact else "not measured"
        lines.append(f"| {name} | {row['parameters']:,} | {' | '.join(cells)} | {row['ratio']:.2f}{missed} | {path} | "
                     f"{apart} |")  # fmt: skip
    for reason in reasons:
        lines += ["", reason]
    return "\n".join([*lines, *(["", *estimate_bound(roofs)] if roofs else [])])


def main() -> None:
    """Measure the jobs, write the JSON file and print a line per job."""
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_transformers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--jobs", nargs="*", choices=JOBS, default=list(JOBS), help="default: all")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and batches")
    parser.add_argument("--seconds", type=float, default=600, help="start no further job after this many seconds")
    parser.add_argument("--lanes", type=int, default=CLIENTS,
                        help="clients trained at once; the activations of few stay in the L2 cache")  # fmt: skip
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    versions = find_versions(torch.device(given.device))

    def keep(rows: dict[str, Any]) -> None:
        if given.out:
            given.out.write_text(
                json.dumps({"versions": versions, "kind": "transformers", "rows": rows}, indent=1) + "\n"
            )

    keep(measure_all(given.jobs, given.device, given.seconds, given.tiny, given.lanes, keep))


if __name__ == "__main__":
    main()
