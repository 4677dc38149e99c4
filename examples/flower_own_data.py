"""Three clinics train one model on Flower; their data stay in their own files.

Everything runs on this machine, in real processes: a SuperLink and a SuperNode per clinic. On several machines the
steps are the same (docs/how-to/federation.md). The processes need most of a minute to start, so of the tests only
`make test-all` runs this example. Needs the extra `flower`.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

import steppe

FOLDER = Path("clinics")


def measure(clinic: int, patients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return eight measurements per patient and whether the patient is ill; each clinic's devices differ a little."""
    random = np.random.default_rng(clinic)
    ill = random.integers(0, 2, patients)
    x = random.normal(size=(patients, 8)) + np.outer(ill, np.linspace(1.2, 0, 8)) + 0.2 * (clinic % 4)
    return x.astype(np.float32), ill


def command(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "steppe", "federate", *words], check=True, stdout=subprocess.DEVNULL)


shutil.rmtree(FOLDER, ignore_errors=True)
command("init", str(FOLDER), "--nodes", "3", "--algorithm", "fedsam", "--rounds", "3", "--own-data",
        "--set", "model=mlp", "--set", "lr=0.05")  # fmt: skip

# The form of a sample, and a test set that the server may see.
terms = FOLDER / "app" / "federation.toml"
before, _, after = terms.read_text().partition("[data]")
sample = '[data]\nshape = [8]\ninputs = "float32"\nclasses = 2\nclass_names = ["well", "ill"]\n'
np.savez(FOLDER / "test.npz", **dict(zip("xy", measure(9, 400), strict=True)))
terms.write_text(f'test = "{(FOLDER / "test.npz").resolve()}"\n{before}{sample}')

# Each clinic writes the path of its data into its own node.sh.
for clinic in range(3):
    x, y = measure(clinic, 60 + 40 * clinic)
    np.savez(FOLDER / f"clinic-{clinic}.npz", x=x, y=y)
    script = FOLDER / "nodes" / str(clinic) / "node.sh"
    script.write_text(script.read_text().replace("/path/to/data.npz", str((FOLDER / f"clinic-{clinic}.npz").resolve())))

command("up", str(FOLDER))

run = steppe.load(FOLDER / "run")
print(run)
x, y = measure(9, 400)
right = (run.model(torch.from_numpy(x)).argmax(1).numpy() == y).mean()
print(f"{right:.1%} of a fourth clinic's patients are classified correctly")
