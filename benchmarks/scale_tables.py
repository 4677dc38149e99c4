"""The tables of docs/how-to/scale.md, from the file that `make bench-scale` writes."""

from __future__ import annotations

from typing import Any

from benchmarks.million import EXPONENT, START

NAMES = {"fedavg": "FedAvg", "scaffold": "SCAFFOLD", "fedsmoo": "FedSMOO"}


def describe_machine(about: dict[str, Any]) -> str:
    """Return a sentence on hardware, versions, commit and other load."""
    return (f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}, torch "
            f"{about['torch']}; commit {(about['commit'] or 'unknown')[:10]}, {about['when'][:10]}. Data: "
            f"{about['data']}. Load average at the start: {about['load_average_before'][0]:.1f}.")  # fmt: skip


def million(report: dict[str, Any]) -> str:
    """Return the table from a thousand to a million clients."""
    rows, draws = report["rows"], report["draws"]
    lines = [
        describe_machine(report["about"]),
        f"{report['per_round']:,} clients per round, one local step, {rows[0]['parameters']:,} parameters."
        + report.get("note", ""),
        "",
        "| clients | " + " | ".join(f"{NAMES[a]}: CPU s per round | start s | memory: grown, predicted MiB"
                                    for a in report["growth"]) + " |",
        "|---" * (1 + 3 * len(report["growth"])) + "|",
    ]  # fmt: skip
    for clients in sorted({r["clients"] for r in rows}):
        cells = [f"{r['cpu_seconds_per_round']:.2f} | {r['start']:.1f} | {r['grown_mib']:.0f}, "
                 f"{r['predicted_mib']:.0f}" for r in rows if r["clients"] == clients]  # fmt: skip
        lines.append(f"| {clients:,} | " + " | ".join(cells) + " |")
    slowest, kept = max(r["start"] for r in rows), all(r["grown_mib"] <= r["predicted_mib"] for r in rows)
    exponents = ", ".join(f"{NAMES[a]} {b:.3f} ({_met(b <= EXPONENT)})" for a, b in report["growth"].items())
    lines += ["", f"Exponent of the time per round over all clients, target {EXPONENT}: {exponents}. Slowest start "
              f"in this table {slowest:.1f} s, target {START:.0f}: {_met(slowest <= START)}. Memory stayed within what "
              f"was printed: {'yes' if kept else 'no'}.", "",
              "CPU time to draw the clients of one round:", "",
              "| sampling | " + " | ".join(f"{int(n):,}" for n in draws["fixed"]) + " |",
              "|---" * (1 + len(draws["fixed"])) + "|"]  # fmt: skip
    for name, found in draws.items():
        lines.append(f"| `{name}` | " + " | ".join(_time(s) for s in found.values()) + " |")
    return "\n".join(lines)


def few(report: dict[str, Any]) -> str:
    """Return the tables of a hundred to ten thousand clients."""
    of = {(r["clients"], r["processes"]): r for r in report["clients"]}
    one, two = (report["growth"][f"with all clients, {words}"] for words in ("1 process", "2 processes"))
    lines = [
        describe_machine(report["about"]), "",
        "| clients | rounds per second: 1 process | 2 processes | CPU time per round, 1 process | peak memory: 1 "
        "process | 2 processes |", "|---" * 6 + "|",
    ]  # fmt: skip
    for n in sorted({clients for clients, _ in of}):
        a, b = of[n, 1], of[n, 2]
        lines.append(f"| {n:,} | {a['rounds_per_second']:.1f} | {b['rounds_per_second']:.1f} | "
                     f"{a['cpu_seconds_a_round']:.2f} s | {a['peak_mb']:.0f} MB | {b['peak_mb']:.0f} MB |")  # fmt: skip
    lines.append(f"| exponent of the growth | {one['seconds_a_round']:.2f} (of seconds) | {two['seconds_a_round']:.2f} "
                 f"| {one['cpu_seconds_a_round']:.2f} | {one['peak_mb']:.2f} | {two['peak_mb']:.2f} |")  # fmt: skip
    own = report["per_round"]
    lines += ["", f"With {_listed(r['per_round'] for r in own)} clients per round ({own[0]['clients']:,} in total): "
              + _listed(f"{r['cpu_seconds_a_round']:.2f}" for r in own) + " s of CPU time (exponent "
              f"{report['growth']['with the clients of a round']['cpu_seconds_a_round']:.2f}), "
              + _listed(f"{r['peak_mb']:.0f}" for r in own) + " MB.", "",
              f"Ten thousand clients with two classes each, {report['ten_thousand'][0]['per_round']} per round, "
              f"{report['ten_thousand'][0]['rounds']} rounds, two processes:", "",
              "| | rounds per second | peak memory of both processes | disk |", "|---" * 4 + "|"]  # fmt: skip
    lines += [f"| {NAMES[r['algorithm']]} | {r['rounds_per_second']:.2f} | {r['peak_mb']:.0f} MB | "
              f"{r['disk_mb']:.0f} MB |" for r in report["ten_thousand"]]  # fmt: skip
    return "\n".join(lines)


def markdown(report: dict[str, Any]) -> str:
    """Return all tables of one file."""
    made = []
    if "million" in report:
        made.append(million(report["million"]))
    if "clients" in report:
        made.append("### A hundred to ten thousand clients\n\nSCAFFOLD with states on disk, a perceptron of "
                    f"{report['clients'][0]['parameters']:,} parameters, {report['clients'][0]['per_round']} clients "
                    "per round with two steps each, including checkpoints. " + few(report))  # fmt: skip
    return "\n\n".join(made)


def _met(yes: bool) -> str:
    return "met" if yes else "missed"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _listed(words: Any) -> str:
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}"
