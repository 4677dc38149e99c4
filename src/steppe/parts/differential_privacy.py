"""Client-level differential privacy by clipping and noise (DP-FedAvg: McMahan et al., ICLR 2018, arXiv:1710.06963).

    v_i ← v_i min(1, C / ‖v_i‖)                   v_i: everything that client i uploads, as one vector
    v = Σ_{i∈S} v_i + z,   z ∼ normal(0, (σ C)² I)     z is the noise
    mean = v / m                                  m: planned clients per round; a sum over all N is v / N instead

Everything that the algorithm does afterwards (server momentum, FedDyn's dual, SCAFFOLD's variate) is computed from v,
so the sequence of global models and server states costs no more privacy than these sums. One client changes the sum by
at most C, so one round is a Gaussian mechanism with noise multiplier σ. Neither m nor N depends on the data.

The guarantee. The server is trusted: it sees every upload (central privacy). Two federations are neighbours if they
differ by one client and all its data: its upload is present, or is 0. With `amplified`, every client takes part in a
round by an independent draw with probability q = m/N (Poisson sampling, including empty rounds), and ε assumes that
the draw is secret. Without it, any sampling is allowed, every client is assumed to be in every round, and ε is larger.
`accountant.py` turns (σ, q, rounds, δ) into ε. Not covered: what a client keeps, clients' losses and norms in a run's
records, validation and personalisation on raw data, and participation. A client shrinks its own states (duals,
variates) by the same clip, so the server's mean of them differs by noise alone.

`clip`        C, the largest norm of a client's uploads.
`noise`       σ, the standard deviation of the noise in units of C.
`delta`       δ, the probability with which the guarantee may fail.
`amplified`   whether clients are drawn independently, which makes ε smaller.
`secret`      a file with the key of noise and draws; it is created if it does not exist. Without it, both follow from
              `seed`, so that a run can be repeated: anyone who knows the seed can remove the noise. A secret key is
              also hashed with the sum itself, so that no two sums ever share their noise; a round that is repeated
              after a crash gets the same noise if its sum is the same.
`seed`        the run's seed, unless set.
`per_round`   m, the run's clients per round, unless set.
`clients`     N, the run's clients, unless set.

Deviations: the clip is over all uploads together, not per layer. Running statistics are refused. The noise is in
floating point (64 bits, then rounded to the model's type), with the small leaks that this causes (Mironov, CCS 2012).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from torch import Tensor

from steppe.core.errors import SettingError, quote
from steppe.core.layout import Tensors
from steppe.core.noise import gaussian, uniform
from steppe.core.part import Part
from steppe.core.ranges import Bound, Count, FromOne, Range
from steppe.core.scopes import ServerTurn
from steppe.parts.norm_bound import share_below


@dataclass(frozen=True)
class DifferentialPrivacy(Part):
    name = "dp"
    citation = """@inproceedings{dp,
      title = {Learning Differentially Private Recurrent Language Models},
      author = {McMahan, H. Brendan and Ramage, Daniel and Talwar, Kunal and Zhang, Li},
      booktitle = {International Conference on Learning Representations (ICLR)},
      year = {2018}, eprint = {1710.06963}, archiveprefix = {arXiv}
    }"""
    addable = True
    outer = True
    clip: Bound = 1.0
    noise: Annotated[float, Range(0, 1e6)] = 1.0
    delta: Annotated[float, Range(1e-300, 1)] = 1e-5
    amplified: bool = True
    secret: str | None = None
    seed: Count | None = None  # these three are taken from the run, unless set
    per_round: FromOne | None = None
    clients: FromOne | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise and self.clip == float("inf"):
            raise SettingError(
                "clip of part 'dp' is inf, so no noise is sufficient: choose a finite clip, or noise=0 for no privacy"
            )

    @property
    def planned(self) -> int:
        if self.per_round is None:
            raise SettingError("dp divides by the planned number of clients per round: set per_round")
        return self.per_round

    def counted(self, replies: int) -> int:
        return self.planned

    def key(self) -> bytes:
        if self.secret is None:
            return f"steppe, seed {self.seed or 0}".encode()
        path = Path(self.secret)
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(32))
        except FileExistsError:
            pass
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SettingError(f"secret is {quote(self.secret)}, which cannot be written: {reason}", "add") from None
        if not path.is_file():  # reading a device may never end
            raise SettingError(f"secret is {quote(self.secret)}, which is not an ordinary file", "add")
        found = path.read_bytes()
        if len(found) < 16:
            raise SettingError(
                f"{self.secret} contains {len(found)} bytes, too few for a secret: delete it to get a new one"
            )
        return found

    def sample(self, clients: int, round_: int) -> list[int]:
        """Draw each client independently; the round may be empty."""
        drawn: list[bool] = (uniform(self.key(), f"draw {round_}", clients) < self.planned / clients).tolist()
        return [i for i, taken in enumerate(drawn) if taken]

    def screen(self, norms: Tensor) -> Tensor:
        return share_below(self.clip, norms)

    def reduce(self, rows: Tensors, s: ServerTurn) -> Tensors:
        sums = {name: v.sum(0) for name, v in rows.items()}
        if self.noise:
            label = f"noise {int(s.round)} " + (_digest(sums) if self.secret is not None else "")
            sums = {name: v + self._noise(f"{label} {name}", v) for name, v in sums.items()}
        return {name: v / self.planned for name, v in sums.items()}

    def _noise(self, label: str, like: Tensor) -> Tensor:
        drawn = gaussian(self.key(), label, like.numel()) * (self.noise * self.clip)
        return drawn.reshape(like.shape).to(like.device, like.dtype)


def find_privacy(parts: tuple[Part, ...]) -> DifferentialPrivacy | None:
    """Return the one of these parts that is differential privacy, if there is one."""
    return next((p for p in parts if isinstance(p, DifferentialPrivacy)), None)


def _digest(sums: Tensors) -> str:
    told = hashlib.sha256()
    for name, value in sums.items():
        told.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return told.hexdigest()
