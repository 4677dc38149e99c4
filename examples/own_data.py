"""Train on your own data from disk, one file per client.

Three hospitals keep their measurements in their own files, with different numbers of patients and different shares of
sick patients. Each has its own test patients, so the result is also known per hospital.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn

import steppe

# Three files, as three hospitals may have them: 12 measurements per patient, and a diagnosis in words.
rng = np.random.default_rng(0)
for name, patients, sick in (("north", 300, 0.5), ("south", 120, 0.2), ("west", 40, 0.8)):
    ill = rng.random(patients) < sick
    values = rng.normal(size=(patients, 12)) + np.where(ill[:, None], 0.8, 0.0)
    np.savez(f"{name}.npz", values=values, diagnosis=np.where(ill, "sick", "well"))


def read(path: Path) -> tuple[np.ndarray, ...]:
    """Read a hospital's file; its last quarter is for testing."""
    with np.load(path) as file:
        x, y = file["values"], file["diagnosis"]
    border = len(x) * 3 // 4
    return x[:border], y[:border], x[border:], y[border:]


hospitals = {path.stem: read(path) for path in sorted(Path().glob("*.npz"))}
data = steppe.from_clients(hospitals)
print(f"{len(data.train_targets)} patients of {', '.join(data.client_names)}; classes {', '.join(data.class_names)}")

torch.manual_seed(0)  # of the model's first weights
model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2))
result = steppe.run("fedsam", model, data, rounds=10, lr=0.1, progress=False)
print(f"accuracy {result.accuracy:.2f}; mean over hospitals {result.summary['personal']['0']['mean']:.2f}")

# The same patients without their files: a client ID per patient, in a table or in an array.
x, y, test_x, test_y = (np.concatenate(columns) for columns in zip(*hospitals.values(), strict=True))
site = np.repeat(list(hospitals), [len(own[1]) for own in hospitals.values()])
again = steppe.run("fedsam", model, (x, y, test_x, test_y), groups=site, rounds=10, lr=0.1, progress=False)
print(f"by groups: accuracy {again.accuracy:.2f}")

# Or divided by a rule: the patients' first measurement decides where they go.
skewed = steppe.run("fedsam", model, (x, y, test_x, test_y), partition="dirichlet(0.3)", by=x[:, 0], clients=5,
                    rounds=10, lr=0.1, progress=False)  # fmt: skip
print(f"five clients, skewed by a measurement: accuracy {skewed.accuracy:.2f}")
