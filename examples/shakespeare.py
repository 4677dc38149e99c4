"""Train a language model on a federation of Shakespeare's roles.

The clients are natural: Hamlet and Desdemona have different words and different amounts of text. The model, a
small transformer, predicts the next character. The text is inside the package.
"""

import steppe
from steppe.data import load

data = load("shakespeare")
sizes = {name: int((data.groups == i).sum()) for i, name in enumerate(data.client_names)}
largest = sorted(sizes, key=sizes.get, reverse=True)[:3]
print(f"{len(sizes)} roles; most text: " + ", ".join(f"{name} ({sizes[name]} windows)" for name in largest))

result = steppe.run("fedavg", "gpt", "shakespeare", clients=10, per_round=3, rounds=4, max_steps=12, progress=False)
for record in result.history:
    print(f"round {record['round']}: accuracy {record['accuracy']:.3f}, perplexity {record['perplexity']:.1f}")
print(f"mean accuracy over the roles: {result.summary['personal']['0']['mean']:.3f}")
