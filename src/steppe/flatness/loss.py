"""The loss on a sample as a function of the flat vector w: its value, its gradient, products with its Hessian.

    f(w) = (1/n) Σ ℓ(model(w, input), target)

There is no weight decay, and the model is in evaluation mode (dropout off, running statistics fixed). A product with
the Hessian is computed in one of two ways:

    H v = ∇ (g(w)ᵀ v)      by differentiating the gradient g again, which works for every layer. The graph of g is
                           kept if memory allows. On a CPU, a product is then 2.2 times as fast as by forward mode,
                           and takes only six convolutions per convolution of the model. The sample is split into
                           pieces that fit into a cache, and each thread takes its own pieces.
    H v = ∂/∂t g(w + t v)  by forward mode, which on an H200 is 1.7 times as fast, and 2.6 times for several v at once.
                           PyTorch lacks it for some layers and was wrong for others. It is therefore used only on a
                           GPU, and only if both ways agree on a few examples.

(Speeds were measured with the FedAvg-CNN.)
On a GPU, the reduced precision that PyTorch allows for convolutions, and a run for matrix products, is switched off,
because its error of 1e-3 would be larger than the reported residuals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from math import ceil, inf
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from steppe.core.errors import SteppeError
from steppe.core.inputs import Inputs, cast, split
from steppe.core.layout import Tensors
from steppe.core.losses import reduce_to_examples
from steppe.core.metric import Each
from steppe.core.task import Task
from steppe.core.widest_float import find_widest, widen
from steppe.flatness import free_memory
from steppe.flatness.blocks import block
from steppe.flatness.estimate import Estimate
from steppe.flatness.random_vectors import PROBE, rademacher
from steppe.flatness.sample import Sample, of_training_data
from steppe.flatness.threads import run_in_threads

# Bytes of the graph of one piece on a CPU, and the fewest examples per piece. For the FedAvg-CNN, a piece is 125
# images, which takes 0.86 of the time of pieces of 500.
PIECE, FEWEST = 128 << 20, 50

MOST_MEMORY = 16 << 30  # more gives no speed-up, and other programs may need the GPU


class Loss:
    """f(w) on a sample. `each` replaces the task's loss: (outputs, targets) -> one value per example.

    The sample is split into equal chunks of at most `chunk` examples, or fewer if their graph would need more than
    `memory_limit` bytes. For a model that normalises by batch statistics, the chunks are part of the definition.
    """

    def __init__(self, task: Task, sample: Sample, buffers: Tensors | None = None, each: Each | None = None,
                 chunk: int = 500, memory_limit: int | None = None) -> None:  # fmt: skip
        self.task, self.sample, self.layout = task, sample, task.layout
        self.buffers = task.buffers if buffers is None else buffers
        self.loss_each = each or task.loss_each
        self.chunk = chunk
        self.device = sample.targets.device
        self.memory_limit = (
            min(free_memory.find_free_memory(self.device) // 4, MOST_MEMORY) if memory_limit is None else memory_limit
        )
        norms = [m for m in task.judge.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self.by_batch = any(m.running_mean is None for m in norms)

    @classmethod
    def of(cls, result: Any, count: int = 5000, seed: int = 0) -> Loss:
        """Return the loss on a sample of the training data of a run's result, whose model is `result.x`."""
        experiment = result.experiment
        return cls(experiment.task, of_training_data(experiment.federation, count, seed), result.buffers)

    def outputs(self, w: Tensor) -> Tensor:
        """Return the model's outputs for the whole sample."""
        with torch.no_grad(), _compute_exactly():
            return torch.cat([self._forward(w, x) for x, _ in self._chunk(w, self.chunk)])

    def each(self, w: Tensor) -> Tensor:
        """Return one loss per example, (n,)."""
        with torch.no_grad(), _compute_exactly():
            return torch.cat([self._score_each(self._forward(w, x), y) for x, y in self._chunk(w, self.chunk)])

    def value(self, w: Tensor) -> float:
        """Return f(w)."""
        return float(widen(self.each(w)).mean())

    def estimate(self, w: Tensor) -> Estimate:
        """Return f(w) as an estimate of the expected loss, with the standard error over examples."""
        return Estimate.of(self.each(w))

    def values(self, points: Tensor) -> Tensor:
        """Return f at many points (m, P) as float64 (m,). On a GPU they are evaluated in parallel."""
        if points.device.type == "cpu":  # vmap makes grouped convolutions, which are slow on a CPU
            return torch.tensor([self.value(w) for w in points], dtype=torch.float64)
        self._check(points)
        total = torch.zeros(len(points), dtype=find_widest(points.device), device=points.device)
        side_by_side = max(1, min(len(points), self.memory_limit // (self._measure_bytes(points[0]) * self._size)))
        with torch.no_grad(), _compute_exactly():
            for x, y in self._chunk(points[0], self.chunk):
                total += torch.func.vmap(self._add_up, (0, None, None), chunk_size=side_by_side)(points, x, y)
        return total.cpu().double()

    def gradient(self, w: Tensor) -> Tensor:
        """Return ∇f(w)."""
        total = torch.zeros_like(w)
        with _compute_exactly():
            for x, y in self._chunk(w, self._choose_chunk(w)):
                total += self._differentiate(w, x, y, create_graph=False)[1]
        return _check_finite(total, "The gradient")

    def split(self, parts: int) -> list[Loss]:
        """Return the same loss on equal, consecutive parts of the sample."""
        of = self.sample
        pieces = zip(split(of.inputs, parts), of.targets.tensor_split(parts), strict=True)
        return [self.with_sample(replace(of, name=f"{of.name}, part {i + 1} of {parts}", inputs=x, targets=y))
                for i, (x, y) in enumerate(pieces)]  # fmt: skip

    def with_sample(self, sample: Sample, each: Each | None = None) -> Loss:
        """Return the same loss, or another one per example, on another sample."""
        return Loss(self.task, sample, self.buffers, each or self.loss_each, self.chunk, self.memory_limit)

    def hessian(self, w: Tensor, on: str = "all") -> Hessian:
        """Return the Hessian at w; `on` restricts it to the head, the body, or a module or tensor by name."""
        return Hessian(self, w, on)

    def hvp(self, w: Tensor, v: Tensor) -> Tensor:
        """Return one product H v; for several products at the same w, `hessian` is faster."""
        return self.hessian(w)(v)

    def _forward(self, w: Tensor, x: Inputs) -> Tensor:
        return self.task.forward(w, x, self.buffers, learning=False).logits

    def _differentiate(self, w: Tensor, x: Inputs, y: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
        """Return a leaf at w, and the gradient of this chunk's part of f there."""
        with torch.enable_grad():
            leaf = w.detach().requires_grad_()
            return leaf, torch.autograd.grad(self._add_up(leaf, x, y), leaf, create_graph=create_graph)[0]

    def _add_up(self, w: Tensor, x: Inputs, y: Tensor) -> Tensor:
        """Return what this chunk adds to f."""
        return self._score_each(self._forward(w, x), y).sum() / len(self.sample)

    def _score_each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return one value per example, whose mean is f: where tokens are counted, its share of their mean."""
        sums, weights = reduce_to_examples(self.loss_each(outputs, y))
        return sums if weights is None else sums / self._weight

    @cached_property
    def _weight(self) -> float:
        """Return the mean weight of an example, such as its number of tokens; it does not depend on the model."""
        w = self.task.x0
        with torch.no_grad():
            each = (self.loss_each(self._forward(w, x), y) for x, y in self._chunk(w, self.chunk))
            total = sum(
                float(widen(weights).sum()) for _, weights in map(reduce_to_examples, each) if weights is not None
            )
        return (total or 1.0) / len(self.sample)

    def _chunk(self, w: Tensor, size: int) -> Iterator[tuple[Inputs, Tensor]]:
        self._check(w)
        pieces = ceil(len(self.sample) / size)
        parts = zip(split(self.sample.inputs, pieces), self.sample.targets.tensor_split(pieces), strict=True)
        for inputs, targets in parts:
            yield cast(self.sample.plain(inputs), w.dtype), cast(targets, w.dtype)

    def _check(self, w: Tensor) -> None:
        if w.shape[-1] != self.layout.size:
            raise SteppeError(f"The vector has {w.shape[-1]} numbers, but the model has {self.layout.size} parameters.")
        _check_finite(w, "The model")

    @cached_property
    def _size(self) -> int:
        return min(self.chunk, len(self.sample))

    def _choose_chunk(self, w: Tensor) -> int:
        """Return a chunk size that suits the cache of a CPU, halved until the graph of a gradient fits into memory."""
        size = self._size
        if self.device.type == "cpu" and not self.by_batch:
            size = min(size, max(PIECE // self._measure_bytes(w), FEWEST))
        while size > 1 and size * self._measure_bytes(w) > self.memory_limit:
            if self.by_batch:
                raise SteppeError(f"A chunk of {self.chunk} examples does not fit into memory, and it cannot be split "
                                  "because this model uses batch statistics: choose a smaller chunk.")  # fmt: skip
            size = (size + 1) // 2
        free_memory.require(size * self._measure_bytes(w), self.device,
                            f"A gradient's graph of {size} example{'s'[: size > 1]}",
                            "use a larger machine")  # fmt: skip
        return size

    def _measure_bytes(self, w: Tensor) -> int:
        """Measure the bytes per example of a gradient's graph, with working memory of the same size.

        Four examples save as much more than two as two examples need: one share for the graph, one for the work.
        """
        if not hasattr(self, "_measured"):
            saved: list[int] = []
            for count in (2, 4):
                store: dict[int, int] = {}

                def seen(t: Tensor, store: dict[int, int] = store) -> Tensor:
                    store[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
                    return t

                same = self.sample.take([0] * count)
                small = Loss(self.task, same, self.buffers, self.loss_each, memory_limit=0)
                with torch.autograd.graph.saved_tensors_hooks(seen, lambda t: t), _compute_exactly():
                    graphs = [small._differentiate(w, x, y, create_graph=True) for x, y in small._chunk(w, count)]
                saved.append(sum(store.values()))
                del graphs
            self._measured = max(saved[1] - saved[0], 1)
        return self._measured


class Hessian:
    """The map v ↦ ∇²f(w) v for vectors (n,) or rows (k, n), where n is the size of the selected block."""

    def __init__(self, loss: Loss, w: Tensor, on: str = "all") -> None:
        self.loss, self.w, self.on = loss, w.detach(), on
        mask = block(loss.layout, on)
        self.keep = None if bool(mask.all()) else torch.nonzero(mask).flatten().to(w.device)
        self.size = loss.layout.size if self.keep is None else len(self.keep)
        self.products, self.seconds = 0, 0.0  # number of products so far, and their time
        self._kept: dict[int, list[tuple[Tensor, Tensor]]] = {}  # the graphs of each thread's pieces
        self._one_at_a_time = Lock()  # threads share the model, whose parameters are replaced during a forward pass
        _check_finite(w, "The model")

    def __call__(self, v: Tensor) -> Tensor:
        began, rows = time.perf_counter(), v if v.ndim == 2 else v[None]  # (k, n)
        if self.keep is not None:
            full = torch.zeros(len(rows), self.loss.layout.size, dtype=v.dtype, device=v.device)
            rows = full.index_copy(1, self.keep, rows)
        total = self.by_forward_mode(rows) if self._forward_mode else self.by_two_backwards(rows)
        total = _check_finite(total if self.keep is None else total[:, self.keep], "A product with the Hessian")
        self.products += len(rows)
        self.seconds += time.perf_counter() - began  # a GPU has finished, because `_check_finite` has read its result
        return total if v.ndim == 2 else total[0]

    def by_two_backwards(self, rows: Tensor) -> Tensor:
        """Compute products by differentiating the gradient, in several threads on a CPU."""

        def share(i: int) -> Tensor:
            total = torch.zeros_like(rows)
            for leaf, g in self._get_graphs(i):
                if g.requires_grad:  # a loss that is linear in w has zero curvature and no graph
                    for row, sum_ in zip(rows, total, strict=True):
                        sum_ += torch.autograd.grad(g, leaf, row, retain_graph=True, materialize_grads=True)[0]
            return total

        with _compute_exactly():
            first, *others = run_in_threads(share, self._threads)
        for total in others:
            first += total
        return first

    def by_forward_mode(self, rows: Tensor) -> Tensor:
        """Compute products by forward-mode differentiation of the gradient."""
        total, size = torch.zeros_like(rows), self.loss._choose_chunk(self.w)
        at_once = max(1, self.loss.memory_limit // (size * self.loss._measure_bytes(self.w)))
        with _compute_exactly():
            for x, y in self.loss._chunk(self.w, size):
                slope = torch.func.grad(partial(self.loss._add_up, x=x, y=y))

                def product(row: Tensor, slope: Callable[[Tensor], Tensor] = slope) -> Tensor:
                    tangent: Tensor = torch.func.jvp(slope, (self.w,), (row,))[1]
                    return tangent

                if len(rows) == 1:
                    total += product(rows[0])
                else:
                    total += torch.func.vmap(product, chunk_size=at_once)(rows)
        return total

    @cached_property
    def _forward_mode(self) -> bool:
        return self.w.device.type == "cuda" and self.forward_mode_agrees()

    def forward_mode_agrees(self) -> bool:
        """Return whether both ways agree on a few examples."""
        loss = self.loss
        small = Hessian(Loss(loss.task, loss.sample.take(slice(8)), loss.buffers, loss.loss_each), self.w)
        rows = torch.stack([rademacher(self.w, len(self.w), PROBE, i) for i in range(2)])
        try:
            found = torch.cat([small.by_forward_mode(rows), small.by_forward_mode(rows[:1])])  # batched, and single
        except (RuntimeError, NotImplementedError):
            return False
        wanted = small.by_two_backwards(torch.cat([rows, rows[:1]]))
        return bool(torch.linalg.vector_norm(found - wanted) <= 1e-3 * torch.linalg.vector_norm(wanted))

    def _get_graphs(self, share: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the graphs of one thread's pieces, kept if they fit into memory."""
        if not self._fits:
            return self._make_graphs(share)
        if share not in self._kept:
            self._kept[share] = list(self._make_graphs(share))
        return iter(self._kept[share])

    def _make_graphs(self, share: int) -> Iterator[tuple[Tensor, Tensor]]:
        chunks = self.loss._chunk(self.w, self.loss._choose_chunk(self.w))
        for x, y in islice(chunks, share, None, self._threads):
            with self._one_at_a_time:
                graph = self.loss._differentiate(self.w, x, y, create_graph=True)
            yield graph

    @cached_property
    def _threads(self) -> int:
        """Return the number of threads: on a CPU those of PyTorch, limited by the pieces and the memory."""
        if self.w.device.type != "cpu":
            return 1
        size, fits = self.loss._choose_chunk(self.w), self._fits
        room = self.loss.memory_limit // (size * self.loss._measure_bytes(self.w)) if not fits else inf
        return int(max(1, min(torch.get_num_threads(), ceil(len(self.loss.sample) / size), room)))

    @cached_property
    def _fits(self) -> bool:
        """Return whether all graphs fit into memory.

        All pieces keep what they saved. Only the pieces in work, one per thread, need the same amount again.
        """
        loss, size = self.loss, self.loss._choose_chunk(self.w)
        in_work = size * (torch.get_num_threads() if self.w.device.type == "cpu" else 1)
        return (len(loss.sample) + in_work) * loss._measure_bytes(self.w) // 2 <= loss.memory_limit


def _check_finite(t: Tensor, what: str) -> Tensor:
    if not bool(t.isfinite().all()):
        raise SteppeError(f"{what} has values that are not finite, so nothing can be measured. The run diverged: "
                          "train again with a smaller learning rate or with clipping.")  # fmt: skip
    return t


@contextmanager
def _compute_exactly() -> Iterator[None]:
    """Use full float32 precision, deterministic algorithms, and attention that can be differentiated twice."""
    products = torch.backends.cuda.matmul  # a run may have allowed tensor cores for these
    before, products.allow_tf32 = products.allow_tf32, False
    try:
        exact = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
        with exact, sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        products.allow_tf32 = before
