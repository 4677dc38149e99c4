"""Why a change that no test detects needs no test: (file below src/steppe, the changed lines, the reason)."""

SURVIVING: list[tuple[str, str, str]] = [
    ("core/inputs.py", "    return function(inputs) if False else tree_map(function, inputs)",
     "equivalent: a tensor is a tree of one leaf; the condition saves time"),
    ("core/named_metrics.py", "    rank = (widen(count.cumsum(-1)) - (count - 1) / 2)[where]",
     "equivalent: the counts have one axis"),
    ("parts/proximal_ascent.py", '        return 3 if self.kind == "a4" else 1',
     "equivalent: `asks` is an upper bound, which everybody compares with 1"),
    ("executors/fuse_pooling.py",
     "        return Chain(conv, add, bias, pool, None, []) if True else None  # type: ignore[arg-type]",
     "speed: another reader of a teacher's activations still finds them, and the convolution runs twice"),
    ("core/losses.py", "    return (targets - outputs.reshape(targets.shape)).square()",
     "equivalent: a difference is squared"),
    ("executors/batched.py",
     "        stacked: Reply = tree_map("
     "lambda *rows: (torch.cat(rows) if len(rows) >= 1 else rows[0])[back], *replies)",
     "equivalent: one tensor joined is a copy; the condition saves it"),
    ("executors/workers.py", "                        pass",
     "the tests wait forever, for a worker whose pipe stays open"),
    ("engine/model_checks.py", "            pass",
     "a message: warnings of the user's model in a trial would be shown twice"),
    ("executors/captured.py", "        count, length = (1 << (n - 0).bit_length() for n in plan.index.shape[:2])",
     "memory: places for twice as many clients and steps, of which no more are read"),
]  # fmt: skip
