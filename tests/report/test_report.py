"""What a report says, without a browser."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import reduce
from html import unescape
from operator import getitem
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest

from steppe.cli import arguments
from steppe.core.errors import SteppeError
from steppe.core.rounding import format_number
from steppe.flatness import Landscape
from steppe.report import charts, figures, findings, layers, report_tables, spectra
from steppe.report.comparison import Comparison
from steppe.report.landscapes import draw_landscapes
from steppe.report.measure_tables import PROFILES
from steppe.report.read_runs import read
from steppe.report.repeat import explain_repeat, format_command
from steppe.report.write import write
from steppe.runs.folder import RunFolder
from tests.report.conftest import FIGURES, config


def summaries(where: Path, label: str) -> list[dict[str, Any]]:
    return [json.loads((p).read_text()) for p in sorted((where / label).glob("seed-*/result.json"))]


def change(path: Path, **values: Any) -> None:
    RunFolder(path.parent).write(path.name, json.loads(path.read_text()) | values)


def rewrite_records(run: Path, records: list[dict[str, Any]]) -> None:
    (run / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


def rewrite(run: Path, accuracy: float, **more: Any) -> None:
    """A run whose final model has this accuracy."""
    records = RunFolder(run).history
    records[-1] |= {"accuracy": accuracy} | more
    rewrite_records(run, records)
    change(run / "result.json", last=accuracy)


# --- numbers


def test_the_answer_comes_from_the_results(compared: Path) -> None:
    c = read([compared])
    last = {label: [s["last"] for s in summaries(compared, label)] for label in ("fedavg", "fedsam")}
    order = sorted(last, key=lambda label: -mean(last[label]))
    assert [g.label for g in c.ranking] == order
    for g in c.groups:
        assert g.average("last") == pytest.approx((mean(last[g.label]), stdev(last[g.label])))
    row = report_tables.make_results(c).rows[0]
    assert row[:2] == [order[0], f"{100 * mean(last[order[0]]):.2f} ± {100 * stdev(last[order[0]]):.2f}"]
    assert order[0] in findings.write_headline(c)


def test_the_results_have_a_test_against_the_best(copy: Path) -> None:
    for seed, (sam, avg) in enumerate([(0.9, 0.8), (0.7, 0.66)]):
        rewrite(copy / f"fedsam/seed-{seed}", sam)
        rewrite(copy / f"fedavg/seed-{seed}", avg)
    table = report_tables.make_results(read([copy]))
    assert table.columns[2:4] == ["− fedsam (points)", "p"]
    assert [row[2:4] for row in table.rows] == [["", ""], ["-7.00 ± 3.00", "0.258"]]  # t = −7/3, one degree of freedom
    shutil.rmtree(copy / "fedavg/seed-1")
    assert "p" not in report_tables.make_results(read([copy])).columns  # one common seed


def test_bytes_and_gradients_are_those_of_the_run(compared: Path) -> None:
    for run in read([compared]).runs:
        held = [len(c) for c in json.loads((run.folder.path / "partition.json").read_text())["clients"]]
        chosen = [r["participants"] for r in run.records]  # one epoch, batches of 20
        if run.seed == 0:
            assert chosen == [np.random.RandomState(t).choice(6, 3, replace=False).tolist() for t in range(4)]
        steps = sum(-(-held[i] // 20) for ids in chosen for i in ids)
        assert run.gradients is not None
        assert run.gradients[-1] == steps * (2 if run.config["algorithm"] == "fedsam" else 1)
        size = 4 * run.about["parameters"]
        assert run.traffic.tolist() == [2 * size * 3 * (t + 1) for t in range(4)]


def test_curves_are_means_over_seeds(compared: Path) -> None:
    group = next(g for g in read([compared]).groups if g.label == "fedsam")
    each = np.array([[r["loss"] for r in run.records] for run in group.runs])
    curve = group.make_curve("loss")
    assert curve is not None
    assert curve.x.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(curve.mean, each.mean(0))
    np.testing.assert_allclose(curve.spread, each.std(0, ddof=1))
    by_bytes = group.make_curve("loss", "bytes")
    assert by_bytes is not None
    assert by_bytes.x.tolist() == group.runs[0].traffic.tolist()


def test_extra_forward_passes_are_part_of_the_price(copy: Path) -> None:
    for run, value in zip(sorted((copy / "fedsam").glob("seed-*")), (0.98, 0.99), strict=True):
        rewrite(run, value)
        about = json.loads((run / "about.json").read_text())
        about["cost"] |= {"gradients": 1, "forwards": 1}
        (run / "about.json").write_text(json.dumps(about))
    c = read([copy])
    steps = mean(sum(r["steps"] for r in run.records) for run in c.groups[1].runs)
    assert f"the same number of gradients and {steps:.0f} extra forward passes" in findings.write_headline(c)
    assert f"{steps:.0f} batch gradients and {steps:.0f} extra forward passes (fedavg:" in findings.write_summary(c)


def test_whose_minimum_is_the_flattest(copy: Path) -> None:
    def told(*values: float) -> str:
        for run, value in zip(sorted(copy.glob("*/seed-*")), values, strict=True):
            content = json.loads((run / "analysis.json").read_text())
            content["measures"]["lambda1"]["top"]["values"][0] = value
            (run / "analysis.json").write_text(json.dumps(content))
        return findings.find_flattest(read([copy]))

    # Differences of 10 and 9, as below; then of 5 and 7 (t = 6, p = 0.105), although the deviations do not overlap.
    assert told(20, 20, 10, 11) == ("The smallest λ1 is clear: fedsam's is below fedavg's (paired t-test over 2 seeds, "
                                    "p = 0.033; fedsam 10.5 ± 0.7, fedavg 20.0).")  # fmt: skip
    assert told(24, 26, 19, 19).startswith("No clear smallest λ1: fedsam's is below fedavg's, which may be chance (")
    single = findings.find_flattest(read(sorted(copy.glob("*/seed-0"))))
    assert single.startswith("On a single seed, fedsam has the smallest λ1 (fedsam 19")
    # A third seed of fedavg alone has the smallest mean; on both seeds that they share, fedsam's is clearly smaller.
    shutil.copytree(copy / "fedavg" / "seed-0", copy / "fedavg" / "seed-2")
    config = json.loads((copy / "fedavg" / "seed-2" / "config.json").read_text())
    (copy / "fedavg" / "seed-2" / "config.json").write_text(json.dumps({**config, "seed": 2}))
    assert told(20, 20, -20, 10, 11).startswith(
        "No clear smallest λ1: fedavg's is below fedsam's on average, which may"
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_a_pipe_in_the_place_of_a_comparison_is_not_read(copy: Path) -> None:
    (copy / "comparison.json").unlink(missing_ok=True)
    os.mkfifo(copy / "comparison.json")
    assert [g.label for g in read([copy]).groups] == ["fedavg", "fedsam"]


def test_a_mean_says_how_many_rounds_it_covers(copy: Path) -> None:
    assert "mean of last 4 (%)" in report_tables.make_results(read([copy])).columns
    for file in copy.glob("*/*/result.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "evaluations": 12}))
    assert "mean of last ten (%)" in report_tables.make_results(read([copy])).columns


def test_a_clear_winner_and_none(copy: Path) -> None:
    runs = {label: sorted((copy / label).glob("seed-*")) for label in ("fedavg", "fedsam")}
    for label, values in {"fedavg": (0.70, 0.72), "fedsam": (0.80, 0.81)}.items():
        for run, value in zip(runs[label], values, strict=True):
            rewrite(run, value)
    told = findings.write_headline(read([copy]))
    # By tables of Student's distribution: differences of 10 and 9 points have t = 19 and, with one degree, p = 0.033.
    assert told.startswith("fedsam won: 80.50 ± 0.71 % test accuracy, 9.50 points above fedavg (paired t-test over 2 "
                           "seeds, p = 0.033)")  # fmt: skip
    assert "with the same traffic and 2× the gradients." in told
    lead = findings.write_summary(read([copy]))
    assert "+9.50 ± 0.50 points (mean ± standard error) and is ahead in 2 of 2 seeds" in lead
    rewrite(runs["fedsam"][0], 0.75)  # ahead on both by more than either spread, but t = 7/2 has p = 0.177
    told = findings.write_headline(read([copy]))
    assert told == ("No clear winner: fedsam is 7.00 points above fedavg, which may be chance (paired t-test over 2 "
                    "seeds, p = 0.177).")  # fmt: skip
    rewrite(runs["fedsam"][0], 0.69)  # ahead on average, behind on a seed
    rewrite(runs["fedsam"][1], 0.90)
    assert findings.write_headline(read([copy])).startswith("No clear winner: fedsam is 8.50 points above fedavg")
    single = findings.write_headline(read([runs["fedavg"][0], runs["fedsam"][1]]))
    assert single.startswith("fedsam leads on a single seed: 90.00 % test accuracy, 20.00 points above fedavg")
    assert findings.write_headline(read([runs["fedavg"][0]])) == "fedavg reached 70.00 % test accuracy."
    rewrite(runs["fedsam"][0], 0.70)
    equal = findings.write_headline(read([runs["fedavg"][0], runs["fedsam"][0]]))
    assert equal == "fedavg and fedsam are equal on a single seed: 70.00 % test accuracy."


def test_a_metric_that_is_better_when_lower(copy: Path) -> None:
    for label, value in {"fedavg": 3.5, "fedsam": 2.5}.items():
        for k, run in enumerate(sorted((copy / label).glob("seed-*"))):
            records = [{k: v for k, v in r.items() if k != "by_class"} for r in RunFolder(run).history]
            for r in records:
                r["mse"] = r.pop("accuracy") * 0 + value + 0.1 * k + 4 - r["round"]
            rewrite_records(run, records)
            change(run / "about.json", metrics=[{"name": "mse", "direction": "lower", "percent": False}])
            change(run / "result.json", last=records[-1]["mse"], best=records[-1]["mse"])
    c = read([copy])
    assert (c.metric.lower, c.metric.percent) == (True, False)
    assert findings.write_headline(c) == ("No clear winner: fedsam is 1 below fedavg, which may be chance (no test: "
                                          "the difference is the same at all 2 seeds).")  # fmt: skip
    assert charts.draw_classes(c) is None


def test_flatness_is_that_of_the_analysis(compared: Path) -> None:
    tables = report_tables.make_flatness(read([compared]))
    assert [t.title for t in tables] == ["Hessian", "Sharpness", "Clients, one more round"]
    assert all(
        "digits/train, 100 class-balanced, seed 0; mean ± standard deviation over seeds" in t.note for t in tables
    )
    assert {r[0] for t in tables for r in t.rows} == {"λ1", "λ1/λ5", "trace", "SAM", "‖g‖", "clients' λ1"}
    files = [json.loads(p.read_text()) for p in sorted(compared.glob("fedavg/*/analysis.json"))]
    values = [f["measures"]["trace"]["value"] for f in files]
    shown = next(r for r in tables[0].rows if r[0] == "trace")[tables[0].columns.index("fedavg")]
    value, error = map(float, shown.split(" ± "))
    assert value == pytest.approx(mean(values), abs=stdev(values))
    assert error == pytest.approx(stdev(values), rel=0.2)  # it has one or two digits


def test_measures_during_training(compared: Path) -> None:
    c = read([compared])
    panel = charts.draw_measures(c)
    assert panel is not None
    chart = next(ch for ch in panel.charts if ch.title == "λ1")
    line = next(t for t in chart.traces if t["meta"] == {"series": 0, "role": "line"})
    each = [[r["measures"]["lambda1"]["top"]["values"][0] for r in run.records if "measures" in r]
            for run in c.groups[0].runs]  # fmt: skip
    assert line["x"] == [2, 4]
    assert line["y"] == pytest.approx(np.mean(each, 0), rel=1e-4)


def test_landscapes_share_one_scale(copy: Path) -> None:
    lands = {}
    for k, label in enumerate(("fedavg", "fedsam")):
        path = copy / label / "seed-0/analysis/landscape.npz"
        old = Landscape.load(path)
        values = (1.0 + k) * (1 + np.arange(9)[:, None] + 0.1 * np.arange(7))  # an axis shorter than the other
        lands[label] = Landscape(
            values, (np.linspace(-1, 1, 9), np.linspace(-1, 1, 7)), old.directions, "eigenvectors", "s"
        )
        lands[label].save(path)
    surfaces, contours = draw_landscapes(read([copy]))["landscape"]
    for panel, low, high in ((surfaces, "cmin", "cmax"), (contours, "zmin", "zmax")):
        assert [ch.title for ch in panel.charts] == ["fedavg, seed 0", "fedsam, seed 0"]
        for ch in panel.charts:
            assert (ch.traces[0][low], ch.traces[0][high]) == (1.0, 2 * 9.6)
    first = contours.charts[0].traces[0]
    assert (len(first["x"]), len(first["y"]), len(first["z"]), len(first["z"][0])) == (9, 7, 7, 9)
    assert first["z"][2][5] == pytest.approx(lands["fedavg"].values[5, 2])
    sharp = replace(lands["fedsam"], values=1000 * lands["fedsam"].values)
    sharp.save(copy / "fedsam/seed-0/analysis/landscape.npz")  # then the scale is logarithmic
    _, contours = draw_landscapes(read([copy]))["landscape"]
    ends = [(ch.traces[0]["zmin"], ch.traces[0]["zmax"]) for ch in contours.charts]
    assert ends == [pytest.approx((0.0, np.log10(19200)))] * 2


def test_the_partition_counts_every_sample(compared: Path) -> None:
    panel = charts.draw_partitions(read([compared]))
    assert panel is not None
    counts = np.array(panel.charts[0].traces[0]["z"])
    assert counts.shape == (10, 6)
    assert counts.sum() == 1437


def test_labels_that_are_not_at_hand_leave_sizes(copy: Path) -> None:
    for run in copy.glob("*/seed-*"):
        change(run / "about.json", data={**RunFolder(run).about["data"], "hash": "0" * 16})  # other data
    panel = charts.draw_partitions(read([copy]))
    assert panel is not None
    assert panel.charts[0].traces[0]["type"] == "bar"


def test_many_classes_become_a_map(copy: Path) -> None:
    for run in copy.glob("*/seed-*"):
        records = RunFolder(run).history
        for r in records:
            r["by_class"] = [i / 20 for i in range(15)] + [None]
        rewrite_records(run, records)
    panel = charts.draw_classes(read([copy]))
    assert panel is not None
    assert [ch.traces[0]["type"] for ch in panel.charts] == ["heatmap", "heatmap"]
    assert "between 0 % (class 0) and 70 % (class 14)" in panel.caption


def test_sections_without_data_are_left_out(copy: Path, tmp_path: Path) -> None:
    for run in copy.glob("*/seed-*"):
        shutil.rmtree(run / "analysis", ignore_errors=True)  # the second seed has no arrays
        (run / "analysis.json").unlink()
        (run / "partition.json").unlink()
    write([copy], tmp_path / "bare.html")
    text = (tmp_path / "bare.html").read_text("utf-8")
    found = set(re.findall(r'<section id="(\w+)"', text))
    assert found == {"results", "curves", "cost", "classes", "runs", "flatness"}  # the last: during training


# --- commands

COMMANDS = [
    config("fedsam", settings={"rho": 0.03}),
    config("fedavg", add=["man:weight=0.1", "ema"], personal=[0, 2], clip=5.0, lr=1e-05, validation=0.1),
    config("fedsol", recipe="fedsol", momentum=0.5),
    config("scaffold", recipe="fedsmoo", clip=None, seed=7, compile=False, partition_seed=3),
]


@pytest.mark.parametrize("chosen", COMMANDS, ids=lambda c: c.algorithm)
def test_the_command_makes_the_same_run(chosen: Any) -> None:
    said = shlex.split(format_command(chosen))
    assert said[:2] == ["steppe", "run"]
    options: dict[str, list[str]] = {"--set": [], "--add": [], "--rounds": []}
    for option, value in zip(said[3::2], said[4::2], strict=True):
        options[option].append(value)
    again = arguments.read_configuration(said[2], None, options["--set"], options["--add"], int(options["--rounds"][0]))
    assert again == chosen


# --- the page


def test_the_page_needs_nothing_else(html: Path) -> None:
    text = html.read_text("utf-8")
    assert not re.search(r"//cdn|@import|<link|<img|<iframe|src=", text)
    assert set(re.findall(r"https?://[^\"]*", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert len(text) < 500_000
    assert "default-src 'none'" in text
    assert len(re.findall(r"<script", text)) == 3  # data, colours, ours


def test_every_figure_has_words(html: Path) -> None:
    text = html.read_text("utf-8")
    data = json.loads(text.split('id="charts">')[1].split("</script>")[0])
    labels = re.findall(r'class="plot" id="plot-\d+" role="img" aria-label="([^"]*)"', text)
    assert len(labels) == len(data) == FIGURES
    assert all(re.search(r"\d", label) for label in labels)
    assert all(re.search(r"\d", caption) for caption in re.findall(r"<figcaption>(.*?)</figcaption>", text))
    kinds = {t["type"] for chart in data for t in chart["traces"]}
    assert kinds == {"scatter", "heatmap", "surface", "contour"}


def test_layers_are_those_of_the_analysis(compared: Path) -> None:
    c = read([compared])
    files = [json.loads(p.read_text())["measures"] for p in sorted(compared.glob("fedsam/*/analysis.json"))]
    panel = layers.draw_profiles(c)
    assert panel is not None
    assert [ch.title for ch in panel.charts] == [p.title for p in PROFILES]
    where = [("per_layer", "trace"), ("per_layer", "lambda1"), ("per_layer", "ratio"), ("radius_profile",)]
    for chart, keys in zip(panel.charts, where, strict=True):
        trace = next(t for t in chart.traces if t["name"] == "fedsam")
        names = chart.layout["yaxis"]["ticktext"]
        each = [[reduce(getitem, keys, m)[name]["value"] for m in files] for name in names]
        assert trace["x"] == pytest.approx([mean(v) for v in each], rel=1e-4)
        assert trace["error_x"]["array"] == pytest.approx([stdev(v) for v in each], rel=1e-4)
        table = next(t for t in report_tables.make_profiles(c) if t.title == chart.title)
        assert [row[0] for row in table.rows] == names
    clients = layers.draw_client_eigenvalues(c)
    assert clients is not None
    trace = next(t for t in clients.charts[0].traces if t["name"] == "fedsam")
    ids = files[0]["lambda1_clients"]["ids"]
    assert clients.charts[0].layout["yaxis"]["ticktext"] == [f"client {i}" for i in sorted(ids)]
    values = dict(zip(ids, files[0]["lambda1_clients"]["each"], strict=True))
    assert trace["x"] == pytest.approx([values[i] for i in sorted(ids)], rel=1e-4)


def test_a_measure_of_one_seed_alone_is_shown_and_said_to_be(copy: Path) -> None:
    change(copy / "fedavg/seed-1/analysis.json", measures={})
    path = copy / "fedsam/seed-1/analysis.json"
    content = json.loads(path.read_text())
    del content["measures"]["trace"]
    path.write_text(json.dumps(content))
    table = report_tables.make_flatness(read([copy]))[0]
    one = json.loads((copy / "fedsam/seed-0/analysis.json").read_text())["measures"]["trace"]
    row = next(r for r in table.rows if r[0] == "trace")
    assert row[table.columns.index("fedsam")] == format_number((one["value"], one["error"]))
    assert "where a single seed was measured, ± its standard error" in table.note


def test_axes_say_their_unit(compared: Path) -> None:
    made = draw_landscapes(read([compared]))
    titles = [ch.layout["xaxis"]["title"]["text"] for ch in made["lines"][0].charts]
    assert titles == ["distance"] * 2 + ["multiples of each filter's norm"] * 2
    assert "Axes: distance" in made["landscape"][1].caption
    axes = made["landscape"][1].charts[0].layout
    assert axes["xaxis"]["range"] == axes["yaxis"]["range"] == [-1.0, 1.0]
    classes = charts.draw_classes(read([compared]))
    assert classes is not None
    assert "in % by class over the rounds" in classes.caption
    during = charts.draw_measures(read([compared]))
    assert during is not None
    assert "FD: FedScar's flatness discrepancy" in during.caption


def test_clients_landscapes_and_lines(compared: Path) -> None:
    made = draw_landscapes(read([compared]))
    assert list(made) == ["landscape", "landscape_clients", "lines", "line_clients"]
    ends = {(ch.traces[0]["zmin"], ch.traces[0]["zmax"]) for panel in made["landscape_clients"] for ch in panel.charts}
    assert len(ends) == 1  # one scale for all clients of all algorithms
    lines = made["line_clients"][0].charts
    assert len({tuple(ch.layout["yaxis"]["range"]) for ch in lines}) == 1
    for chart in lines:
        *each, whole = chart.traces
        assert {t["meta"]["role"] for t in each} == {"faint"}
        assert whole["y"] == pytest.approx(np.mean([t["y"] for t in each], 0), rel=1e-4)
    titles = [ch.title for ch in made["lines"][0].charts]
    assert titles == ["Eigenvector 1", "Eigenvector 2", "Random direction 1", "Random direction 2"]


def test_the_density_shows_a_single_eigenvalue(compared: Path) -> None:
    c = read([compared])
    panel = spectra.draw_density(c)
    assert panel is not None
    content = json.loads((compared / "fedavg/seed-0/analysis.json").read_text())["measures"]
    told = content["density"]
    height = 1 / (told["size"] * told["sigma"] * (2 * np.pi) ** 0.5)
    assert 10 ** panel.charts[0].layout["yaxis"]["range"][0] < 0.5 * height
    found = re.search(r"fedavg from (\S+) to ([\d.]+)", panel.charts[0].words)
    assert found is not None
    assert float(found[2]) == pytest.approx(content["lambda1"]["lambda1"], rel=0.02)


def test_blocks_have_densities_of_their_own(compared: Path) -> None:
    panel = spectra.draw_block_densities(read([compared]))
    assert panel is not None
    content = json.loads((compared / "fedsam/seed-0/analysis.json").read_text())["measures"]
    blocks = content["density_layers"]
    assert [ch.title for ch in panel.charts] == list(blocks) == list(content["per_layer"]["trace"])
    assert sum(told["size"] for name, told in blocks.items() if name in ("head", "body")) == content["density"]["size"]
    for chart in panel.charts:
        found = re.search(r"fedsam from (\S+) to ([\d.e-]+[\d])", chart.words)
        assert found is not None
        assert float(found[2]) == pytest.approx(content["per_layer"]["lambda1"][chart.title]["value"], rel=0.02)


def test_over_the_last_rounds(compared: Path) -> None:
    table = report_tables.make_during_training(read([compared]))
    assert table is not None
    row = next(r for r in table.rows if r[0] == "FD")
    each = [[r["measures"]["flatness_discrepancy"]["code"]["value"] for r in RunFolder(run).history if "measures" in r]
            for run in sorted((compared / "fedavg").glob("seed-*"))]  # fmt: skip
    shown, least = row[table.columns.index("fedavg")].split(", ")
    value, error = map(float, shown.split(" ± "))
    assert value == pytest.approx(mean(map(mean, each)), abs=error)
    assert float(least) == pytest.approx(mean(map(min, each)), rel=0.01)
    assert "digits/train, all 1437" in charts.draw_measures(read([compared])).caption


def test_every_run_has_its_command_and_config(html: Path, compared: Path) -> None:
    text = html.read_text("utf-8")
    for run in read([compared]).runs:
        assert explain_repeat(run).sentence == ""
        assert f"<pre>{explain_repeat(run).command}</pre>" in unescape(text)
    assert '"partition": "lda(0.3)"' in unescape(text)


def test_the_page_is_the_same_every_time(html: Path, compared: Path, tmp_path: Path) -> None:
    write([compared], tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == html.read_bytes()


def test_names_are_escaped(compared: Path, tmp_path: Path) -> None:
    strange = '<b>&"$x_y^{$</b>'.replace("/", "∕")
    shutil.copytree(compared / "fedsam/seed-0", tmp_path / strange / "seed-0")
    for kind in ("html", "md", "tex"):
        write([tmp_path / strange], tmp_path / f"r.{kind}", figures=tmp_path if kind == "md" else None)
    text = (tmp_path / "r.html").read_text("utf-8")
    assert "<b>" not in text
    assert "&lt;b&gt;&amp;&#34;$x_y^{$" in text
    assert "\\u003cb>" in text  # in the data of the figures
    assert "<b>" not in (tmp_path / "r.md").read_text().split("```")[0]  # what follows is code
    assert r"\textless{}b\textgreater{}\&" in (tmp_path / "r.tex").read_text()


# --- other formats


def test_markdown(compared: Path, tmp_path: Path) -> None:
    write([compared], tmp_path / "r.md")
    text = (tmp_path / "r.md").read_text()
    c = read([compared])
    assert text.startswith(f"# {findings.write_headline(c)}")
    for table in report_tables.make_tables(c):
        assert f"## {table.title}\n" in text
        for row in (table.columns, *table.rows):
            assert "| " + " | ".join(row) + " |" in text
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.M)
    assert len(blocks) == len(report_tables.make_tables(c))
    assert all(len({line.count("|") for line in block.splitlines()}) == 1 for block in blocks)
    assert all(f"```sh\n{explain_repeat(run).command}\n```\n" in text for run in c.runs)


COMMANDS_OF_TEX = {
    "documentclass", "usepackage", "setlength", "parindent", "parskip", "begin", "end", "centering", "caption",
    "resizebox", "ifdim", "width", "linewidth", "else", "fi", "toprule", "midrule", "bottomrule", "section", "small",
    "ttfamily", "raggedright", "medskip", "par", "textbackslash", "textasciitilde", "textasciicircum", "textless",
    "textgreater", "textasciigrave", "textquotedbl", "textbar", "textendash", "textquotesingle", "ldots", "pm", "times",
    "cdot", "lambda", "rho", "sigma", "tau", "varepsilon", "Sigma", "alpha", "beta", "delta", "mu", "le", "ge", "surd",
    "dag", "IfFileExists", "textbf", "large", "bfseries", "smallskip", "clearpage",
}  # fmt: skip


def compiled(text: str) -> None:
    """What a LaTeX engine would stumble over, found by reading the document as one does: token by token."""
    text.encode("ascii")
    groups: list[str] = []
    environments: list[str] = []
    math, cells, columns = False, 0, 0
    for token in re.finditer(r"\\\\|\\[A-Za-z]+\*?|\\.|[{}$&#_^%~]|\n\n+|\n|[^\\{}$&#_^%~\n]+", text):
        word, rest = token.group(), text[token.end() :]
        if word == "\\\\":
            assert environments[-1] == "tabular", "a row ends outside of a table"
            assert cells + 1 == columns, f"a row of {cells + 1} cells in a table of {columns}"
            assert not re.match(r"\s*[\[*]", rest), "an optional argument after a row"
            cells = 0
        elif re.fullmatch(r"\\[A-Za-z]+\*?", word):
            name = word[1:].rstrip("*")
            assert name in COMMANDS_OF_TEX, word
            if name in ("begin", "end"):
                (what,) = re.match(r"\{(\w+)\}", rest).groups()
                if name == "begin":
                    environments.append(what)
                    columns = len(re.match(r"\{tabular\}\{(\w+)\}", rest)[1]) if what == "tabular" else columns
                else:
                    assert environments.pop() == what
                    assert cells == 0
            if name in ("pm", "times", "cdot", "lambda", "rho", "sigma", "tau", "varepsilon", "Sigma"):
                assert math, f"{word} outside of mathematics"
        elif word == "\\|":
            assert math
        elif word[0] == "\\":
            assert word[1] in "&%$#_{}", word
        elif word == "{":
            groups.append(word)
        elif word == "}":
            assert groups.pop(), "a group ends that never began"
        elif word == "$":
            math = not math
        elif word == "&":
            assert environments[-1] == "tabular"
            assert not math
            cells += 1
        elif word == "#" or (word == "_" and not math):
            raise AssertionError(f"{word} is not escaped")
        elif word == "^":
            assert math
        elif word == "%":
            assert text[: token.start()].endswith("{!}{"), "a comment"
        elif word.startswith("\n\n"):
            assert not math, "a paragraph ends within mathematics"
    assert not groups
    assert not environments
    assert not math


def test_latex(compared: Path, tmp_path: Path) -> None:
    write([compared], tmp_path / "r.tex")
    text = (tmp_path / "r.tex").read_text()
    compiled(text)
    c = read([compared])
    for table in report_tables.make_tables(c):
        assert f"\\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}" in text
    best = report_tables.make_results(c).rows[0]
    assert f"{best[0]} & {best[1].replace('±', chr(36) + chr(92) + 'pm' + chr(36))} &" in text


def test_latex_of_strange_names(compared: Path, tmp_path: Path) -> None:
    import string

    for name in (string.punctuation.replace("/", ""), "[x]", "*", "ü中λ – ‘a’", "--,,''``!`?`"):
        shutil.copytree(compared / "fedsam/seed-0", tmp_path / name / "seed-0")
        write([tmp_path / name], tmp_path / "r.tex")
        compiled((tmp_path / "r.tex").read_text())


def test_the_reader_of_latex_stumbles() -> None:
    """A check that cannot fail would be none."""
    good = "\\begin{document}$x^2$ \\& y\\end{document}"
    compiled(good)
    for bad in ("{", "}", "$", "&", "_", "#", "%", "^", "é", "\\foo", "\\pm", "\\end{table}", " \\\\ "):
        with pytest.raises((AssertionError, IndexError, UnicodeEncodeError)):
            compiled(good.replace("y", bad))


@pytest.mark.parametrize("ending", ["svg", *(pytest.param(e, marks=pytest.mark.slow) for e in ("png", "pdf"))])
def test_figures(compared: Path, tmp_path: Path, ending: str) -> None:
    runs = [compared if ending == "png" else compared / "fedavg"]
    written = write(runs, tmp_path / "r.md", figures=tmp_path / "figures", picture=ending)
    names = {"curves", "budgets", "measured", "clients", "layers", "density", "density_layers", "landscape",
             "landscape_3d", "lines", "line_clients", "classes", "partition"}  # fmt: skip
    names |= {"landscape_clients_1", "landscape_clients_2"} if ending == "png" else {"landscape_clients"}
    assert {p.name for p in written[1:]} == {f"{n}.{ending}" for n in names}
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert all(p.read_bytes().startswith(begins) for p in written[1:])
    told = charts.draw_curves(read(runs)).caption.encode("utf-16-be" if ending == "pdf" else "utf-8")
    assert told[:20] in (tmp_path / f"figures/curves.{ending}").read_bytes()  # the picture carries its words


# --- what cannot be reported


def sentence(*runs: Path, **more: Any) -> str:
    with pytest.raises(SteppeError) as error:
        write(runs, **more)
    text = str(error.value)
    assert text[-1] in ".)?" or "known:" in text.lower()
    return text


def test_folders_that_hold_no_run(tmp_path: Path) -> None:
    assert "nowhere holds no run" in sentence(tmp_path / "nowhere")
    assert "holds no run" in sentence(tmp_path)
    (tmp_path / "foreign").mkdir()
    for name in ("config", "about", "result"):
        (tmp_path / f"foreign/{name}.json").write_text('{"some": "thing"}')
    (tmp_path / "foreign/rounds.jsonl").write_text('{"round": 1, "accuracy": 0.5}\n')
    assert "is not the folder of a run" in sentence(tmp_path / "foreign")
    (tmp_path / "foreign/config.json").write_text("{")
    assert "is damaged" in sentence(tmp_path / "foreign")


def test_runs_that_are_not_finished(copy: Path) -> None:
    (copy / "fedavg/seed-0/result.json").unlink()
    assert "steppe run --resume --out" in sentence(copy / "fedavg/seed-0")
    c = read([copy])
    assert [(g.label, g.seeds) for g in c.groups] == [("fedavg", 1), ("fedsam", 2)]
    told = findings.list_notes(c)
    assert any("different numbers of seeds" in n for n in told)
    assert any(n.startswith("Left out:") and "has not finished" in n for n in told)


def test_no_rounds(tmp_path: Path) -> None:
    import steppe

    steppe.run("fedavg", model="mlp", rounds=0, out=tmp_path / "run", workers=0)
    assert "no evaluated round" in sentence(tmp_path / "run")


def test_runs_that_do_not_compare(copy: Path) -> None:
    change(copy / "fedsam/seed-0/config.json", data="mnist")
    assert "different data (digits, mnist)" in sentence(copy)
    change(copy / "fedsam/seed-0/config.json", data="digits", lr=0.5)
    c = read([copy])
    assert findings.list_notes(c)[0] == "The runs do not share one protocol: lr is 0.05 or 0.5."
    assert len(c.groups) == 3


def test_a_run_given_twice_is_no_further_seed(compared: Path, tmp_path: Path) -> None:
    run = compared / "fedsam/seed-0"
    assert read([run, run, compared / "fedsam"]).groups[0].seeds == 2
    shutil.copytree(run, tmp_path / "again")
    c = read([run, tmp_path / "again"])
    assert c.groups[0].seeds == 1
    assert "the same settings and the same seed" in c.left_out[0]


@pytest.mark.parametrize("name", ["landscape", "density"])
def test_damaged_analyses(copy: Path, name: str) -> None:
    path = copy / f"fedavg/seed-0/analysis/{name}.npz"
    path.write_bytes(path.read_bytes()[:100])
    told = sentence(copy, out=copy / "r.html")
    assert f"{name}.npz is damaged" in told
    assert not (copy / "r.html").exists()


def test_formats_that_do_not_exist(compared: Path, tmp_path: Path) -> None:
    assert "--format htmll" in sentence(compared, kind="htmll")
    assert "--format docx" in sentence(compared, out=tmp_path / "r.docx")
    assert "--figure-format gif" in sentence(compared, kind="md", figures=tmp_path, picture="gif")


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys
sys.argv = ["steppe", "report", "--help"]
from steppe.cli.app import main
try:
    main()
finally:
    print("heavy:", sorted({"torch", "numpy", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "heavy: []" in done.stdout
    assert "--figure-format" in done.stdout


def test_ranking_is_total(compared: Path) -> None:
    c: Comparison = read([compared / "fedsam", compared / "fedavg"])
    assert [g.label for g in c.groups] == ["fedsam", "fedavg"]  # colours follow the order given
    assert sorted(g.label for g in c.ranking) == ["fedavg", "fedsam"]


def test_a_report_has_the_order_of_its_comparison(copy: Path) -> None:
    """The first has the first colour, as in the picture that `compare` drew."""
    assert [g.label for g in read([copy]).groups] == ["fedavg", "fedsam"]
    RunFolder(copy).write("comparison.json", {"lines": [{"algorithm": "fedsam"}, {"algorithm": "fedavg"}]})
    assert [g.label for g in read([copy]).groups] == ["fedsam", "fedavg"]
    (copy / "comparison.json").write_text("[")  # damaged: by name
    assert [g.label for g in read([copy]).groups] == ["fedavg", "fedsam"]


def test_pictures_name_their_axes(compared: Path) -> None:
    panels = figures.draw_panels(read([compared]))
    drawn = {name: figures._draw_figure(panels[name], ["fedavg", "fedsam"]) for name in panels}
    assert drawn["classes"].get_supxlabel() == "round"
    assert drawn["classes"].get_supylabel() == "test accuracy (%)"
    assert drawn["landscape_clients_1"].get_supylabel() == "eigenvector 2"
    assert drawn["landscape_3d"].axes[0].get_xlabel() == "eigenvector 1"


def test_a_partition_has_no_half_clients(compared: Path) -> None:
    panel = charts.draw_partitions(read([compared]))
    assert panel is not None
    panel.charts[0].traces[0]["z"] = np.ones((2, 20)).tolist()  # matplotlib would put ticks at 2.5 and 7.5
    panel.charts[0].traces[0]["y"] = ["0", "1"]
    (axis, *_) = figures._draw_figure(panel, []).axes
    assert all(float(tick).is_integer() for tick in axis.get_xticks())


def test_a_colour_scale_has_arrows_only_where_losses_lie_beyond_it(compared: Path) -> None:
    panel = figures.draw_panels(read([compared]))["landscape"]
    trace = panel.charts[0].traces[0]

    def find_arrows(start: float, end: float) -> str:
        trace["contours"] = {"start": start, "end": end}
        *_, bar = figures._draw_figure(panel, []).axes
        return str(bar._colorbar.extend)

    low, high = np.min(trace["z"]), np.max(trace["z"])
    assert find_arrows(low, high) == "neither"
    assert find_arrows(low, (low + high) / 2) == "max"
    assert find_arrows((low + high) / 2, high) == "min"
