"""Clients that fail or are late: who answers, how long a round takes, and that the others leave no trace."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import steppe
from steppe.algorithms import CATALOGUE
from steppe.core.errors import SteppeError
from steppe.engine import availability
from steppe.engine.build import build_experiment
from steppe.experiment import Experiment
from tests.scene import bits, blobs, launch, listening, remains, seeded

FAILING: dict[str, Any] = {"dropout": 0.4, "speed": "lognormal(0.7, 0.2)", "deadline": "1.2x", "per_round": 5}


def _built(**options: Any) -> Experiment:
    given = {"clients": 6, "per_round": 5, "partition": "dirichlet(0.5)", **options}
    from steppe.config import resolve

    return build_experiment(resolve(given), None, seeded(), steppe.from_arrays(*blobs()))


def _absent(result: Any) -> list[tuple[list[int], list[int]]]:
    return [(r.get("dropped", []), r.get("late", [])) for r in result.history]


def test_every_client_fails_as_often_as_it_should_and_on_its_own() -> None:
    built = _built(dropout=0.3)
    everybody = list(range(6))
    fails = [set(availability.find_available(built, t, everybody).facts.get("dropped", [])) for t in range(2000)]
    for i in everybody:
        share = sum(i in those for those in fails) / 2000
        assert abs(share - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 2000)
    both = sum({0, 1} <= those for those in fails) / 2000
    assert abs(both - 0.09) < 5 * math.sqrt(0.09 * 0.91 / 2000)
    # Nobody's luck depends on who else was called, nor on the algorithm.
    other = _built(dropout=0.3, algorithm="scaffold")
    alone = [bool(availability.find_available(other, t, [3]).facts) for t in range(50)]
    assert alone == [3 in those for those in fails[:50]]
    another_seed = [set(availability.find_available(_built(dropout=0.3, seed=1), t, everybody).facts.get("dropped", []))
                    for t in range(5)]  # fmt: skip
    assert another_seed != fails[:5]


def test_a_seeds_failures_and_times_never_change() -> None:
    """Their keys are part of what a recorded seed means."""
    built = _built(dropout=0.4, speed="lognormal(0.7, 0.2)")
    assert [availability.find_available(built, t, [*range(6)]).facts["dropped"] for t in range(3)] == [
        [2, 4], [3, 4], [0, 5]]  # fmt: skip
    per_step = {i: s / built.steps(i) for i, s in availability.draw_times(built, 2, [0, 5]).items()}
    assert per_step == pytest.approx({0: 0.8477173621905875, 5: 2.9555532673225704})


def test_without_the_keys_everybody_answers() -> None:
    assert availability.find_available(_built(), 0, [4, 2]) == ([4, 2], {})


def test_those_that_do_not_answer_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits as a run that only ever called those that answered, client and server states included."""
    failing = launch(tmp_path / "failing", **FAILING)
    absent = _absent(failing)
    assert any(dropped for dropped, _ in absent)
    assert any(late for _, late in absent)
    plain = Experiment.sample

    def those_that_came(self: Experiment, t: int) -> list[int]:
        return [i for i in plain(self, t) if i not in absent[t][0] + absent[t][1]]

    monkeypatch.setattr(Experiment, "sample", those_that_came)
    chosen = launch(tmp_path / "chosen", per_round=5)
    one, other = remains(tmp_path / "failing", failing), remains(tmp_path / "chosen", chosen)
    for record in one["records"]:
        for key in ("dropped", "late", "simulated_seconds"):
            record.pop(key, None)
    for record in one["records"] + other["records"]:
        del record["steps"]  # those of late clients count as work
    assert one == other


@pytest.mark.parametrize("options", [{"executor": "batched"}, {"executor": "batched", "chunk": 2}, {"workers": 2}],
                         ids=["batched", "chunks", "workers"])  # fmt: skip
def test_executors_agree(options: dict[str, Any]) -> None:
    given = {**FAILING, "dtype": "float64"}
    one, other = launch(**given, executor="sequential"), launch(**{**given, **options})
    assert _absent(one) == _absent(other)
    torch.testing.assert_close(one.x, other.x, rtol=0, atol=1e-9)


def test_a_resumed_run_meets_the_same_failures(tmp_path: Path) -> None:
    whole = launch(tmp_path / "whole", **FAILING)
    launch(tmp_path / "cut", **{**FAILING, "rounds": 2})
    cut = launch(tmp_path / "cut", resume=True, **FAILING)
    assert remains(tmp_path / "whole", whole) == remains(tmp_path / "cut", cut)


def test_a_round_that_nobody_answers_changes_nothing(tmp_path: Path) -> None:
    built = _built(algorithm="scaffold", dropout=1 - 1e-9, rounds=2, workers=0, measure=["gradient_norm", "divergence"])
    from steppe.engine.rounds import simulate

    with listening() as said:
        result = simulate(built, tmp_path / "run")
    assert bits(result.x) == bits(built.task.x0)
    assert [r["clients"] for r in result.history] == [0, 0]
    assert [sorted(r["dropped"]) for r in result.history] == [sorted(built.sample(t)) for t in range(2)]
    assert all("accuracy" in r and "train_loss" not in r for r in result.history)
    assert all(set(r["measures"]) == {"gradient_norm"} for r in result.history)
    assert result.summary["missing"] == 10
    assert [s for s in said if "no client answered" in s] == [
        f"round {t}: no client answered, so the model stays as it was" for t in (1, 2)
    ]


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_algorithm_lives_with_failures(name: str) -> None:
    """Rounds with some, and one with nobody, of everything in the catalogue."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    result = launch(algorithm=name, model=net, dropout=0.6, rounds=4, epochs=1, per_round=2, personal=[])
    counts = [r["clients"] for r in result.history]
    assert 0 in counts
    assert max(counts) > 0
    assert bool(result.x.isfinite().all())


# --- time


def test_time_is_speed_times_steps_times_passes() -> None:
    plain, sam = _built(speed="constant(2)"), _built(speed="constant(2)", algorithm="fedsam")
    distilling = _built(speed="constant(2)", algorithm="fedntd")  # a gradient and a forward pass a step
    for i, size in enumerate(plain.federation.sizes):
        steps = plain.config.epochs * math.ceil(size / plain.config.batch)
        assert availability.draw_times(plain, 0, [i]) == {i: 2.0 * steps}
        assert availability.draw_times(sam, 0, [i]) == {i: 4.0 * steps}
        assert availability.draw_times(distilling, 0, [i])[i] == pytest.approx(2 * steps * 4 / 3)


def test_speeds_are_spread_as_the_rule_says_and_stay_with_their_clients() -> None:
    u = torch.linspace(0, 1, 20002, dtype=torch.float64)[1:-1]
    logs = availability.lognormal(u, 0.5).log()
    assert abs(float(logs.mean())) < 1e-6
    assert float(logs.std()) == pytest.approx(0.5, rel=1e-2)
    assert availability.between(u, 1.0, 3.0).aminmax() == pytest.approx((1.0, 3.0), rel=1e-3)
    assert bool(availability.lognormal(torch.zeros(1, dtype=torch.float64), 1.0).isfinite().all())
    calm, nervous = _built(speed="uniform(1, 3)"), _built(speed="uniform(1, 3, 0.3)")
    assert availability.draw_times(calm, 0, [0, 1, 2]) == availability.draw_times(calm, 7, [0, 1, 2])
    ratios = [
        availability.draw_times(nervous, t, [0])[0] / availability.draw_times(calm, t, [0])[0] for t in range(2000)
    ]
    logs = torch.tensor(ratios).log()
    assert abs(float(logs.mean())) < 5 * 0.3 / math.sqrt(2000)
    assert float(logs.std()) == pytest.approx(0.3, rel=0.1)


def test_who_is_late_and_how_long_a_round_takes() -> None:
    free = _built(speed="uniform(1, 9)")
    took = availability.draw_times(free, 0, [0, 1, 2, 3, 4])
    assert len(set(took.values())) == 5
    order = sorted(took, key=lambda i: took[i])
    everybody = [0, 1, 2, 3, 4]
    assert availability.find_available(free, 0, everybody) == (everybody, {"simulated_seconds": took[order[-1]]})
    limit = (took[order[2]] + took[order[3]]) / 2
    strict = _built(speed="uniform(1, 9)", deadline=limit)
    found = availability.find_available(strict, 0, everybody)
    assert sorted(found.ids) == sorted(order[:3])
    assert found.facts == {"simulated_seconds": limit, "late": [i for i in everybody if i in order[3:]]}
    generous = _built(speed="uniform(1, 9)", deadline=10 * took[order[-1]])
    assert availability.find_available(generous, 0, everybody).facts == {"simulated_seconds": took[order[-1]]}
    factor = _built(speed="uniform(1, 9)", deadline="1x")  # the median client is the last in time
    found = availability.find_available(factor, 0, everybody)
    assert sorted(found.ids) == sorted(order[:3])
    assert found.facts["simulated_seconds"] == took[order[2]]


def test_one_that_fails_is_not_late_too_and_is_waited_for() -> None:
    built = _built(speed="uniform(1, 9)", deadline=1e9, dropout=0.5)
    free = _built(speed="uniform(1, 9)", dropout=0.5)
    for t in range(20):
        found, everybody = availability.find_available(built, t, list(range(6))), list(range(6))
        dropped = found.facts.get("dropped", [])
        assert sorted([*found.ids, *dropped]) == everybody
        last = max(availability.draw_times(built, t, everybody).values())
        assert found.facts["simulated_seconds"] == (1e9 if dropped else last)
        assert availability.find_available(free, t, everybody).facts["simulated_seconds"] == last
    tight = _built(speed="uniform(1, 9)", deadline=1e-9, dropout=0.5)
    found = availability.find_available(tight, 0, list(range(6)))
    assert found.ids == []
    assert sorted(found.facts["dropped"] + found.facts["late"]) == list(range(6))


def test_the_summary_adds_up(tmp_path: Path) -> None:
    result = launch(**FAILING)
    assert result.summary["simulated_seconds"] == pytest.approx(sum(r["simulated_seconds"] for r in result.history))
    assert result.summary["missing"] == sum(len(a) + len(b) for a, b in _absent(result))
    assert [r["clients"] + len(a) + len(b) for r, (a, b) in zip(result.history, _absent(result), strict=True)] == [
        5
    ] * 5


def test_reports_count_what_was_sent_for_nothing(tmp_path: Path) -> None:
    from steppe.report.comparison import Run

    cost = {"bytes_down": 10, "bytes_up": 1}
    records = [
        {"clients": 3, "dropped": [1], "late": [2, 4]},
        {"clients": 2, "refused": [{"client": 0, "why": "is not finite"}]},
    ]
    run = Run(tmp_path, {}, {"cost": cost}, {}, records, {}, {})
    assert run.traffic.tolist() == [60 + 5, 60 + 5 + 30 + 3]


def test_a_comparison_and_a_report_show_time_and_failures(tmp_path: Path) -> None:
    """FedSAM's steps take twice as long, so under one deadline more of its replies are late."""
    from steppe.config import resolve
    from steppe.core.named_metrics import METRICS
    from steppe.jobs.many_runs import run_all
    from steppe.jobs.points import Point
    from steppe.report import charts, compare_table, read_runs

    shared = {"model": "mlp", "clients": 8, "per_round": 6, "rounds": 3, "max_steps": 3, "workers": 0,
              "speed": "uniform(0.5, 1.5)", "deadline": 3.0}  # fmt: skip
    points = [Point(n, resolve({"algorithm": n, **shared})) for n in ("fedavg", "fedsam")]
    entries = run_all(points, 1, tmp_path, quiet=True)
    plain, sam = compare_table.make_lines(entries)
    assert 0 < plain.missing < sam.missing
    columns, rows = compare_table.make_cells([plain, sam], METRICS["accuracy"])
    assert rows[1][columns.index("missing")] == f"{sam.missing:g}"
    assert float(rows[0][columns.index("simulated")]) == round(plain.simulated or 0) > 0
    legend = compare_table.explain_columns(columns, METRICS["accuracy"], "test")
    assert all(f"{name}: " in legend for name in ("simulated", "missing", "traffic"))
    found = read_runs.read([tmp_path])
    titles = [chart.title for chart in charts.draw_costs(found).charts]
    assert titles[-1] == "By simulated time"
    seconds = [r["simulated_seconds"] for r in entries[0].histories[0]]
    curve = found.groups[0].make_curve("accuracy", "simulated")
    assert curve is not None
    assert curve.x.tolist() == pytest.approx([sum(seconds[: t + 1]) for t in range(3)])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"speed": "lognormall(1)"}, "did you mean 'lognormal'"),
        ({"speed": "lognormal"}, "write lognormal"),
        ({"speed": "lognormal(1, 2, 3)"}, "write lognormal"),
        ({"speed": "lognormal(-1)"}, "not negative"),
        ({"speed": "uniform(1)"}, "write uniform"),
        ({"speed": "constant(nan)"}, "finite"),
        ({"speed": "constant(1)", "deadline": -1}, "deadline is -1"),
        ({"speed": "constant(1)", "deadline": "soon"}, "deadline is 'soon'"),
        ({"speed": "constant(1)", "deadline": "0x"}, "deadline is '0x'"),
        ({"deadline": 3}, "set speed"),
        ({"dropout": 1}, "dropout is 1"),
        ({"dropout": -0.1}, "dropout is -0.1"),
    ],
)
def test_bad_settings(options: dict[str, Any], told: str) -> None:
    with pytest.raises(SteppeError) as caught:
        launch(**options)
    assert told in str(caught.value)
