"""Pages about `import steppe`: what stands on them is in the source; here is only where each name stands."""

from __future__ import annotations

import steppe

OPTIONS = """    options:
      inherited_members: true
"""
# page -> (title, introduction, names of steppe, or of a module where what a function returns is no public name)
PAGES: dict[str, tuple[str, str, list[str]]] = {
    "run": ("Runs", "Train a federation, and look at what came of it.",
            ["run", "Result", "load", "Run", "analyze"]),
    "compare": ("Comparisons and costs", "Many runs under one protocol, and what an algorithm costs.",
                ["compare", "report.shown.ComparedRuns", "sweep", "report.shown.SweptRuns", "cost",
                 "report.shown.Costs", "trace", "report.shown.Trace"]),
    "data": ("Data", "Data of your own, and how they are divided among clients.",
             ["from_arrays", "from_clients", "from_dataset", "Data", "Partition"]),
    "parts": ("Parts and algorithms",
              "What an idea of your own is made of: a part, its hooks, and what each hook sees.",
              ["Part", "LocalStep", "ClientRound", "ServerTurn", "Aggregation", "Oracle", "unit", "Algorithm"]),
    "follow": ("Metrics, trackers, errors", "What judges a run, what follows it, and what it may raise.",
               ["Metric", "Tracker", "SteppeError", "SettingError", "CompositionError", "RunFailed"]),
    "embed": ("Inside other programs", "One client's round, the server's turn, and local rules as PyTorch optimisers.",
              ["client", "embed.Client", "server", "embed.Server", "optimiser"]),
}  # fmt: skip
# modules that are public as a whole, each with its own page
MODULES = {"flatness": "Flatness", "optim": "Optimisers", "testing": "Tests for your own parts"}


def make_pages() -> dict[str, str]:
    """Return the text of every page by its path; each public name must have a place."""
    placed = [name for _, _, names in PAGES.values() for name in names if "." not in name] + list(MODULES)
    if odd := set(placed) ^ set(steppe.__all__):
        raise SystemExit(f"tools/docs/api_pages.py and steppe.__all__ differ: {', '.join(sorted(odd))}")
    pages = {}
    for name, (title, text, names) in PAGES.items():
        blocks = "\n".join(f"::: steppe.{one}\n{OPTIONS}" for one in names)
        pages[f"reference/api/{name}.md"] = f"# {title}\n\n{text}\n\n{blocks}"
    for name, title in MODULES.items():
        pages[f"reference/api/{name}.md"] = (
            f"# {title}\n\n::: steppe.{name}\n    options:\n      show_root_heading: false\n"
            "      show_root_toc_entry: false\n"
        )
    return pages
