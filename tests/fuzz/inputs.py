"""What people and programs may write where a setting belongs: sensible, nearly sensible, and absurd."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args, get_origin

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st

from steppe.algorithms import CATALOGUE
from steppe.config import Config
from steppe.core.errors import SteppeError
from steppe.data import AUGMENTATIONS
from steppe.measures.during_training import MEASURES
from steppe.models import MODELS
from steppe.registry import PARTS, list_settings

SEED = int(os.environ.get("STEPPE_FUZZ_SEED", 0))
EXAMPLES = int(os.environ.get("STEPPE_FUZZ_EXAMPLES", 300))


def fuzz(share: float = 1.0) -> Callable[[Any], Any]:
    """Try a share of the budget, from the seed that make prints."""
    limits = settings(max_examples=max(int(EXAMPLES * share), 1), database=None, deadline=None, print_blob=False,
                      suppress_health_check=list(HealthCheck))  # fmt: skip
    return lambda test: seed(SEED)(limits(test))


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail an input that takes longer."""

    def stop(*_: Any) -> None:
        raise AssertionError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def is_sentence(error: SteppeError) -> None:
    text = str(error)
    assert len(text) > 15
    assert len(text) < 3000
    assert " " in text


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


NUMBERS = st.one_of(
    st.integers(-3, 30), st.integers(), st.floats(), st.floats(0, 1),
    st.sampled_from([2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, 10**4000, 1e308,
                     1e-308, 5e-324, -0.0, float("inf"), float("-inf"), float("nan")]),
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", " ", "\0", "\n", "a\nb", "\ud800", "ａ", "🙂", "é" * 300, "x" * 5000, "..", "/", "/dev/full",
                     "/dev/zero", "/dev/null", "/proc/self/mem", "~", "-", "--", "=", "a=b", "[", "[1", "{", "{}", "'",
                     '"', "#", "%s", "{0}", "[bold]", "none", "None", "true", "nan", "inf", "-inf", "1e999", "0x10",
                     "1_000", "9" * 10000, "1,2", "1e5", "lda(0.1)", "lda(", "lda()", "lda(nan)", "lda(1e400)",
                     "lda(1,2,3,4)", "lda(0)", "sharding(1e9)", "sharding(2.5)", "longtail(1,2)", "longtail(1e-9)",
                     "pathological(3)", "dirichlet(1e-300)", "dirichlet(0.1, 1e9)", "iid", "iid(1)", "((((", "a(b(c))",
                     "uniform(1,2)", "uniform(2)", "lognormal(1e9)", "constant(0)", "1.5x", "0x", "-1x", "nanx",
                     "cuda:99", "cuda:-1", "meta", "mps", "cpu:3", "digits", "folder:", "folder:/dev", "folder:\0",
                     "hub:", "hub:a/b", "x.npz", ".npz", "own:me.Model", "fedavg+", "fedsam:rho", "fedsam:rho=1+man"]),
)  # fmt: skip
WILD = st.one_of(
    NUMBERS, TEXTS, st.booleans(), st.none(),
    st.recursive(st.one_of(NUMBERS, TEXTS, st.none()), lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)), max_leaves=5),
    st.sampled_from([nested(50), nested(300), [], {}, [[]], b"bytes", 1j, object, (1, 2), {1, 2}, range(3)]),
)  # fmt: skip


@st.composite
def named(draw: Any, makers: dict[str, Any], fine: bool = False) -> str:
    """A name with settings, each with a number or anything else."""
    name = draw(st.sampled_from(sorted(makers)))
    keys = draw(st.lists(st.sampled_from([*list_settings(makers[name]), "rho", "x"]), max_size=2, unique=True))
    values = [draw(st.floats(0, 1) if fine else st.one_of(NUMBERS, TEXTS)) for _ in keys]
    return name + ":" * bool(keys) + ",".join(f"{k}={v}" for k, v in zip(keys, values, strict=True))


SENSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "algorithm": st.sampled_from(sorted(CATALOGUE)),
    "settings": st.dictionaries(st.sampled_from(["rho", "alpha", "mu", "variant", "eps"]), st.one_of(NUMBERS, WILD),
                                max_size=2),
    "add": st.lists(st.one_of(named(PARTS), named(PARTS, True)), max_size=2),
    "partition": st.sampled_from(["iid", "lda(0.3)", "dirichlet(1)", "sharding(2)", "pathological(3)", "longtail(1)"]),
    "speed": st.sampled_from(["lognormal(0.5)", "constant(1)", "uniform(1,2,0.1)"]),
    "deadline": st.one_of(st.floats(0.1, 100), st.sampled_from(["1.5x", "0.5x"])),
    "augmentation": st.sampled_from(["auto", *AUGMENTATIONS]),
    "model": st.sampled_from([name for name in MODELS if not name.startswith(("resnet18", "vgg", "vit", "slvit"))]),
    "measure": st.lists(st.builds("{}:{}".format, st.sampled_from(sorted(MEASURES)), st.integers(-1, 3)), max_size=1),
    "personal": st.lists(st.integers(0, 1), max_size=2),
    "track": st.lists(st.sampled_from(["tensorboard", "mlflow", "wandb", "?"]), max_size=1),
    "device": st.sampled_from(["cpu", "auto", "cuda", "cuda:7", "mps"]),
    "workers": st.sampled_from([0, "auto"]),
    "seed": st.integers(0, 2**53),
}  # fmt: skip


def sensible(key: str) -> st.SearchStrategy[Any]:
    """Values of the right kind, mostly in range."""
    if key in SENSIBLE:
        return SENSIBLE[key]
    hint = Config.model_fields[key].annotation
    kinds = [hint, *get_args(hint)]
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices:
        return st.sampled_from(choices)
    if bool in kinds:
        return st.booleans()
    return st.integers(0, 20) if int in kinds else st.floats(0, 1) if float in kinds else st.just("digits")


@st.composite
def configurations(draw: Any) -> dict[str, Any]:
    """A few keys with sensible values; in every other configuration, anything for up to two of them."""
    keys = draw(st.lists(st.sampled_from(list(Config.model_fields)), max_size=6, unique=True))
    most = draw(st.sampled_from([0, 2]))
    wrong = draw(st.lists(st.sampled_from([*keys, "rho", "lerning_rate", ""]), max_size=most, unique=True))
    return {key: draw(WILD if key in wrong else sensible(key)) for key in dict.fromkeys([*keys, *wrong])}
