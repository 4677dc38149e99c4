"""A run that is longer than a cell asks for answers that cell, too."""

import pytest

from steppe.reproduce import missing_runs as plan
from steppe.reproduce.recipes import load_table, select_cells
from steppe.reproduce.verdicts import compare_with_paper

LONG = next(c for c in load_table("fl-simulator").cells if c.id == "10-100/dir-0.6/fedavg")  # 1000 rounds
SHORT = next(c for c in load_table("fedsmoo-table1").cells if c.id == "10-100/cifar10/dir-0.6/fedavg")  # 800


def finding(rows, cell=SHORT):
    return next(f for f in compare_with_paper(load_table(cell.table), rows) if f.cell == cell)


def rising(row):
    curve = [0.0001 * t for t in range(1000)]
    return {**row, "accuracy": curve, "last": curve[-1], "best": curve[-1], "mean_of_last_ten": sum(curve[-10:]) / 10}


def test_its_first_rounds_are_the_short_run(row_for):
    row = rising(row_for(LONG, 0.0))
    found = finding([row])
    assert found.values == [pytest.approx(100 * 0.0001 * 794.5)]  # rounds 790 to 799
    assert (found.beside["last"], found.beside["best"]) == (pytest.approx(7.99), pytest.approx(7.99))
    assert found.seconds == 0  # they were spent on the long run
    assert finding([row], LONG).values == [pytest.approx(100 * 0.0001 * 994.5)]


def test_it_need_not_be_run_again(row_for):
    cells = select_cells(load_table("fedsmoo-table1").cells, [SHORT.id])
    assert len(plan.find_runs_of_cells(cells, [], 1, {})) == 1
    assert plan.find_runs_of_cells(cells, [row_for(LONG, 0.8)], 1, {}) == []
    assert len(plan.find_runs_of_cells(cells, [row_for(LONG, 0.8)], 2, {})) == 1  # of another seed it says nothing


def test_a_run_of_its_own_wins(row_for):
    assert finding([row_for(SHORT, 0.5), rising(row_for(LONG, 0.0))]).values == [pytest.approx(50.0)]


def test_a_rate_that_knows_the_last_round_contains_no_shorter_run(row_for):
    row = row_for(LONG, 0.8)
    row["config"] = {**row["config"], "lr_schedule": "cosine"}
    assert not finding([row]).values


def test_measures_at_the_end_of_the_long_run_are_not_the_short_ones(row_for):
    row = row_for(LONG, 0.8, measures={"lambda1": {"lambda1": 3.0}}, personal={"1": {"mean": 0.9}})
    assert (
        plan.find_runs_of_cells(
            [c for c in load_table("fedsmoo-table2").cells if c.config.algorithm == "fedavg"], [row], 1, {}
        )
        == []
    )
    sam = next(c for c in load_table("fedsmoo-table2").cells if c.row == "fedsam-lambda1" and c.column == "dir-0.6")
    longer = row_for(sam, 0.8, measures={"lambda1": {"lambda1": 3.0}})
    longer |= {"config": {**longer["config"], "rounds": 1000}, "accuracy": [0.8] * 1000, "recipe": "longer"}
    assert len(plan.find_runs_of_cells([sam], [longer], 1, {})) == 1


def test_a_run_that_failed_contains_nothing(row_for):
    row = {k: v for k, v in row_for(LONG, 0.8, failed="a parameter is not finite").items() if k != "accuracy"}
    assert not finding([row]).seeds
