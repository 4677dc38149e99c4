"""Fine-tune a transformers model with LoRA: clients train and send an adapter, the base stays where it is.

The base is built from a configuration, so nothing is downloaded; with a pretrained one, replace `build` by
`AutoModelForSequenceClassification.from_pretrained(…)`. Needs the extra `transformers`.
"""

import shutil
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import steppe

OUT = Path("lora")
WORDS, LENGTH = 40, 8


def build() -> BertForSequenceClassification:
    """Return the base in bfloat16, which it keeps."""
    torch.manual_seed(0)
    config = BertConfig(vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                        intermediate_size=64, num_labels=2, initializer_range=0.2)  # fmt: skip
    return BertForSequenceClassification(config).to(torch.bfloat16)


def write(sentences: int, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return sentences of different lengths, and whether most of their words are from the vocabulary's second half."""
    g = torch.Generator().manual_seed(seed)
    likes = torch.randint(0, 2, (sentences, 1), generator=g)
    second = torch.rand(sentences, LENGTH, generator=g) < 0.1 + 0.8 * likes
    ids = torch.randint(1, WORDS // 2, (sentences, LENGTH), generator=g) + WORDS // 2 * second
    mask = torch.arange(LENGTH) < torch.randint(4, LENGTH + 1, (sentences, 1), generator=g)
    return {"input_ids": ids * mask, "attention_mask": mask}, likes[:, 0]


warnings.filterwarnings("ignore")  # a base without a name
adapter = LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=16, target_modules=["query", "value"])
model = get_peft_model(build(), adapter)

shutil.rmtree(OUT, ignore_errors=True)
data = steppe.from_arrays(*write(240, seed=1), *write(200, seed=2))
result = steppe.run("fedsam", model, data, out=OUT, clients=4, per_round=4, rounds=4, epochs=4, batch=10,
                    partition="dirichlet(1)", optimiser="adamw", lr=0.02, progress=False)  # fmt: skip
print(f"accuracy {result.accuracy:.2f} after {len(result.history)} rounds")

whole, sent = sum(p.numel() for p in model.parameters()), result.experiment.cost.bytes_up
print(f"trained and sent: {len(result.x):,} of {whole:,} parameters, {sent:,} bytes per client")

# The run's folder has only the adapter. peft can load it, and so can steppe, which adds it to the base.
theirs = PeftModel.from_pretrained(build(), OUT / "adapter").eval()
mine = steppe.load(OUT, model=build()).model
inputs, targets = write(200, seed=2)
for name, loaded in (("peft", theirs), ("steppe", mine)):
    right = (loaded(**inputs).logits.argmax(1) == targets).float().mean()
    print(f"loaded by {name}: accuracy {right:.2f}")
