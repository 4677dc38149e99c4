"""FedSoL (Lee et al., CVPR 2024, arXiv:2308.12532): ascend along a proximal loss, then descend on the local one.

    ε = ρ λ ⊙ g_p / (‖g_p‖ + 1e-12),   g_p = ∇L_p(w)
    direction = g(w + ε)
    λ = |w − x| / ‖w − x‖               `adaptive`: for each tensor, over axis 0 (the outputs), as in the released code
    λ = |w − x| / ‖w − x‖               `layer`: for each tensor, over all of it, as printed (Eq. 11); √fan-in smaller
    λ = 1                               `fixed`:

L_p is the term of any other part: its penalty, or what it adds to the oracle; a factor on it cancels.

`rho`     ρ, the radius of the ascent.
`of`      the part whose term is L_p.
`on`      all, head or body: what is moved, and over which ‖g_p‖ is taken. The head alone needs one pass of the body.
`radius`  the rule for λ: adaptive, layer or fixed.
`first_step`  safe: no ascent where g_p is rounding noise, that is, in a round's first step if the term is flat at x
          (distillation), and below a norm of 1e-6 (1e-12 in float64). official: as released, noise becomes an ascent.

Deviations: ρ = 1 with the adaptive radius is the released configuration; Table 4 has ρ = 2. It does not give the
paper's accuracy (docs/reproductions/fedsol-table1.md); the head alone with ρ = 1.5 does in most columns. Terms other
than KL are in the paper's Table 7 but not in the code: here they are the gradient that the method itself adds.

Limits: with FedDyn's term nothing pulls a client back, so its h_i grows by α‖Δ_i‖ per round. The model and the mean of
the h_i stay bounded, but h_i soon outweighs α(w − x): the ascent hardly changes any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core.part import Part, unit
from steppe.core.ranges import Amount
from steppe.core.scopes import LocalStep, Oracle
from steppe.core.task import Outputs


@dataclass(frozen=True)
class ProximalAscent(Part):
    name = "proximal_ascent"
    citation = """@inproceedings{fedsol,
      title = {{FedSOL}: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning},
      author = {Lee, Gihun and Jeong, Minchan and Kim, Sangmook and Oh, Jaehoon and Yun, Se-Young},
      booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
      year = {2024}, eprint = {2308.12532}, archiveprefix = {arXiv}
    }"""
    rho: Amount
    of: Part
    on: Literal["all", "head", "body"] = "all"
    radius: Literal["adaptive", "layer", "fixed"] = "adaptive"
    first_step: Literal["safe", "official"] = "safe"

    @property
    def sensitive(self) -> bool:
        """Return whether rounding errors could become a full-length ascent: a fixed radius near a penalty's minimum.

        The other radii shrink with w − x, so that a step near x moves nothing.
        """
        return self.of.has("penalty") and self.radius == "fixed"

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        if self._reuses_features and s.innermost:
            return grad(w, head=lambda v, features: self.ascent(self.proximal(v, s, features), v, s))
        return grad(w + self.ascent(self.proximal(w, s), w, s))

    def proximal(self, w: Tensor, s: LocalStep, features: Tensor | None = None) -> Tensor:
        """Return g_p: what the term adds to an oracle that returns 0, and the gradient of its penalty."""

        def term(v: Tensor, out: Outputs) -> Tensor:
            return self.of.penalty(v, out, s)

        g = torch.zeros_like(w)
        if self.of.has("gradient"):
            g = self.of.gradient(lambda v, **_: torch.zeros_like(v), w, s) + s.decay.pop(self.of.name, 0.0) * w
        if self.of.has("penalty"):
            g = g + (s.gradient_of(term, w) if features is None else s.head_gradient_of(term, w, features))
        return g

    def ascent(self, g: Tensor, w: Tensor, s: LocalStep) -> Tensor:
        """ε"""
        floor = 0.0
        if self.first_step == "safe":
            floor = 1e-12 if w.dtype == torch.float64 else 1e-6
            if getattr(self.of, "flat_at_x", False):
                g = torch.where(s.index == 0, 0.0, g)
        if self.on != "all":
            g = g * s.layout.mask(self.on, w.device)
        e = self.rho * unit(g, 1e-12, floor)
        return e if self.radius == "fixed" else e * s.layout.join(map(self._share, s.layout.pieces(w - s.x)))

    def _share(self, moved: Tensor) -> Tensor:
        """Return λ of one tensor."""
        moved = moved if moved.ndim else moved[None]
        axes = 0 if self.radius == "adaptive" else tuple(range(moved.ndim))
        length: Tensor = torch.linalg.vector_norm(moved, dim=axes, keepdim=True)
        return moved.abs() / length.clamp(min=1e-12)

    @property
    def _reuses_features(self) -> bool:
        return self.on == "head" and self.of.has("penalty") and self.of.needs <= {"logits", "features"}

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return self.of.needs | ({"features"} if self._reuses_features else frozenset())

    def has(self, hook: str) -> bool:
        return hook == "gradient" or (hook != "penalty" and self.of.has(hook))


def _take_from_term(name: str) -> property:
    return property(lambda self: getattr(self.of, name))


# Everything else is delegated to the term; its penalty is not added to the loss.
for _name in ("server_state", "client_state", "round_state", "prepare", "send", "start", "observe", "finish",
              "receive", "shrink", "server", "settle", "evaluated", "objection", "stride", "down", "reduction", "times",
              "once", "alters_update", "needs_plain_steps"):  # fmt: skip
    setattr(ProximalAscent, _name, _take_from_term(_name))


@dataclass(frozen=True)
class ProximalAblation(ProximalAscent):
    """Ablations by the authors that are not compositions of parts (Lee et al., CVPR 2024, Table 6).

        direction = g(w) + β g_p(w + ε)                   `a2`:
        direction = g(w + ε_c) + β g_p(w + ε_c),   ε_c = ρ unit(g(w) + g_p(w))        `a4`:
        direction = g(w + ε) + β g_p(w)                   `a6`:

    `kind`   which of the three.
    `beta`   β, the weight of the proximal gradient.
    """

    kind: Literal["a2", "a4", "a6"] = "a2"
    beta: Amount = 1.0

    @property
    def asks(self) -> int:  # type: ignore[override]
        return 2 if self.kind == "a4" else 1

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        g = self.proximal(w, s)
        if self.kind == "a4":
            there = w + self.rho * unit(grad(w) + g)
            return grad(there) + self.beta * self.proximal(there, s)
        there = w + self.ascent(g, w, s)
        if self.kind == "a2":
            return grad(w) + self.beta * self.proximal(there, s)
        return grad(there) + self.beta * g
