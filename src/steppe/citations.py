"""BibTeX for what a user has run: `steppe cite fedsmoo`."""

from __future__ import annotations

from importlib.resources import files

from steppe.core.errors import SteppeError, nearest

# Entries and parts that share a paper, and papers that build on another's idea.
SHARED = {
    "fedyogi": ["fedadam"], "fedadagrad": ["fedadam"], "fedsam": ["fedsam", "fedasam", "sam"],
    "fedasam": ["fedasam", "asam"], "mofedsam": ["fedsam"], "fedlesam_s": ["fedlesam", "scaffold"],
    "fedlesam_d": ["fedlesam", "feddyn"], "local": ["fedsol"], "fedspeed": ["fedspeed"],
    **{f"fedsol_a{i}": ["fedsol"] for i in range(7)},
    "ema": ["swa"], "latest_mean": ["man"], "proximal": ["fedprox"], "control_variates": ["scaffold"],
    "dynamic_regularisation": ["feddyn"], "client_momentum": ["fedcm"], "consistent_sam": ["fedsmoo"],
    "contrast": ["moon"], "distillation": ["fedntd", "fedsol"], "geometric_bias": ["fedscar"],
    "global_ascent": ["fedgloss"], "locally_estimated_sam": ["fedlesam"], "nesterov_sam": ["fednsam"],
    "nesterov_start": ["fednsam"], "server_adaptive": ["fedadam"], "server_momentum": ["fedavgm"],
    "trajectory_teacher": ["fedgmt"], "trimmed_mean": ["median"], "mixed_ascent": ["fedgf"],
    "rate_cycle": ["fedswa"], "fedmoswa": ["fedswa", "scaffold"], "momentum_sam": ["fedwmsam"],
}  # fmt: skip


def bibliography() -> dict[str, str]:
    """Every entry of our bibliography by its key."""
    text = (files("steppe") / "citations.bib").read_text(encoding="utf-8")
    entries = ["@" + piece.strip() for piece in text.split("@") if piece.strip()]
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in entries}


def cite(name: str) -> str:
    """The BibTeX of an algorithm or part, and of the ideas that it is made of.

    >>> cite("fedprox").splitlines()[0]
    '@inproceedings{fedprox,'
    """
    known = bibliography()
    keys = SHARED.get(name, [name])
    if not set(keys) <= set(known):
        raise SteppeError(f"there is no algorithm or part {name!r} to cite{nearest(name, {*known, *SHARED})}")
    return "\n\n".join(known[key] for key in keys)
