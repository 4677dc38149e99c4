"""Pages about `import steppe`. Their text is in the source; this file only assigns each name to a page."""

from __future__ import annotations

import steppe

OPTIONS = """    options:
      inherited_members: true
"""
SHORT = "      show_root_full_path: false\n"
# page -> (title, introduction, names of steppe, or of a module if a function returns something without a public name)
PAGES: dict[str, tuple[str, str, list[str]]] = {
    "run": ("Runs", "Train a federation, and inspect the result.",
            ["run", "Result", "load", "Run", "analyze", "write_report"]),
    "compare": ("Comparisons and costs", "Many runs under one protocol, and what an algorithm costs.",
                ["compare", "report.result_objects.ComparedRuns", "sweep", "report.result_objects.SweptRuns", "cost",
                 "report.result_objects.Costs", "trace", "report.result_objects.Trace"]),
    "data": ("Data", "Your own data, and how they are divided among clients.",
             ["from_arrays", "from_clients", "from_dataset", "data.load", "Data", "partition", "Partition"]),
    "parts": ("Parts and algorithms",
              "How to write your own idea: a part, its hooks, and the arguments of each hook.",
              ["Part", "LocalStep", "ClientRound", "ServerTurn", "Aggregation", "Oracle", "unit", "Algorithm"]),
    "follow": ("Metrics, trackers, errors", "Metrics of a run, programs that follow it, and the errors it may raise.",
               ["Metric", "Tracker", "SteppeError", "SettingError", "CompositionError", "RunFailed"]),
    "embed": ("Inside other programs", "A client's round, the server's round, and local rules as PyTorch optimisers.",
              ["client", "embed.Client", "server", "embed.Server", "optimiser"]),
}  # fmt: skip
# modules that are public as a whole, each with its own page; names by topic, or all of them
MODULES: dict[str, tuple[str, dict[str, list[str]]]] = {
    "flatness": ("Flatness", {
        "The loss and its Hessian": ["Loss", "Hessian", "block", "layers", "Sample", "of_training_data", "of_client",
                                     "balanced"],
        "Curvature": ["spectrum", "Spectrum", "Pairs", "hutch_plus_plus", "hutchinson", "by_layer", "density.density",
                      "Density"],
        "Sharpness": ["worst_loss", "Ascent", "noisy_loss", "gradient_norm"],
        "Landscapes": ["landscape.landscape", "Landscape", "filter_normalised", "plane", "interpolation", "ticks"],
        "Clients": ["gradients", "alignment", "consistency", "divergence", "flatness_discrepancy", "flatness_distance",
                    "forgetting", "over_rounds", "proximal", "proximal_effect", "radius_profile"],
        "Results": ["Estimate", "as_arrays", "as_json"],
    }),
    "optim": ("Optimisers", {}),
    "testing": ("Tests for your own parts", {}),
}  # fmt: skip
# what signatures call these types
TYPES = ["engine.read_call.Asked", "engine.read_call.Added", "lab.Several", "core.metric.Each",
         "core.prediction.Predict", "engine.rounds.Watch", "core.inputs.Inputs", "core.layout.Tensors",
         "core.layout.Layout", "core.task.Outputs", "core.scopes.Forward", "core.scopes.Term"]  # fmt: skip


def make_pages() -> dict[str, str]:
    """Return the text of every page by its path; each public name must have a place."""
    placed = [name for _, _, names in PAGES.values() for name in names if "." not in name] + [*MODULES, "data"]
    if odd := set(placed) ^ set(steppe.__all__):
        raise SystemExit(f"tools/docs/api_pages.py and steppe.__all__ differ: {', '.join(sorted(odd))}")
    pages = {}
    for name, (title, text, names) in PAGES.items():
        blocks = "\n".join(f"::: steppe.{one}\n{OPTIONS}{SHORT if '.' in one else ''}" for one in names)
        pages[f"reference/api/{name}.md"] = f"# {title}\n\n{text}\n\n{blocks}"
    for name, (title, topics) in MODULES.items():
        pages[f"reference/api/{name}.md"] = f"# {title}\n\n{_describe_module(name, topics)}"
    blocks = "\n".join(f"::: steppe.{one}\n    options:\n{SHORT}" for one in TYPES)
    pages["reference/api/types.md"] = f"# Types in signatures\n\n{blocks}"
    return pages


def _describe_module(name: str, topics: dict[str, list[str]]) -> str:
    """Return a module's own text, and its names by topic; without topics, everything in the order of the source."""
    head = f"::: steppe.{name}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false\n"
    if not topics:
        return head
    listed = [one.rpartition(".")[2] for names in topics.values() for one in names]
    if odd := set(listed) ^ set(getattr(steppe, name).__all__):
        raise SystemExit(f"tools/docs/api_pages.py and steppe.{name}.__all__ differ: {', '.join(sorted(odd))}")
    text = head + "      members: false\n"
    for topic, names in topics.items():
        text += f"\n## {topic}\n\n"
        text += "\n".join(f"::: steppe.{name}.{one}\n    options:\n      heading_level: 3\n{SHORT}" for one in names)
    return text
