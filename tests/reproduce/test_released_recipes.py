"""Recipes that were corrected from the papers' released programs and lists of settings."""

import pytest

from steppe.reproduce.recipes import table


def cell(name, id_):
    return next(c for c in table(name).cells if c.id == id_)


@pytest.mark.parametrize("name", ["man-accuracy", "man-hessian", "man-rounds"])
def test_mans_federation_is_the_released_one(name):
    partitions = {c.column: c.config.partition for c in table(name).cells}
    wanted = {"cifar100/dir-0.3": "dirichlet_once(0.3)", "cifar100/dir-0.6": "dirichlet_once(0.6)",
              "cifar100/iid": "iid_balanced", "tiny-imagenet/iid": "iid"}  # fmt: skip
    assert {k: v for k, v in partitions.items() if k in wanted} == {k: v for k, v in wanted.items() if k in partitions}
    for c in table(name).cells:
        assert (c.config.sampling_seed, c.config.augmentation, c.config.partition_seed) == (0, "cifar-fedsmoo", None)


def test_mans_last_round_is_judged_too():
    assert table("man-accuracy").also == ("last",)


def test_the_simulators_settings_are_those_of_its_list():
    column = "10-100/dir-0.6"
    assert cell("fl-simulator", f"{column}/fedgamma").config.settings == {"rho": 0.01}
    assert cell("fl-simulator", f"{column}/fedprox").config.settings == {"mu": 0.1}
    assert cell("fl-simulator", f"tried/{column}/fedprox-mu0.01").config.settings == {"mu": 0.01}


def test_fedsol_in_table_1_is_what_table_8_has_for_its_number():
    """Table 8 prints Table 1's 64.13 at one place: the head alone with ρ = 1.5."""
    own = cell("fedsol-table1", "cifar10/lda-0.1/fedsol")
    same = [c for c in table("fedsol-table8").main if c.published.value == own.published.value]
    assert [(c.id, c.hash) for c in same] == [("rho-1.5/head", own.hash)]
    assert cell("fedsol-table6", "cifar10/lda-0.1/a1").hash == own.hash


def test_the_text_that_fedsols_numbers_are_from_is_named():
    for name in ("fedsol-table1", "fedsol-table5", "fedsol-table9", "fedsol-figure2"):
        assert "Bridging Global Alignment and Local Generality" in table(name).source


def test_a_recipe_is_tried_for_several_rows_and_in_some_columns_only():
    drawn = [c for c in table("fedsol-table1").cells if c.row.endswith("-fedntd-draw")]
    assert len(drawn) == 8 * 5
    assert {(c.column, c.config.partition) for c in drawn} == {
        *((f"cifar10/sharding-{s}", f"sharding_fedntd({s})") for s in (2, 5, 10)),
        *((f"cifar10/lda-{a}", f"lda_fedntd({a})") for a in (0.05, 0.1))}  # fmt: skip
    assert {c.of for c in drawn} == {c.row for c in table("fedsol-table1").main}
    one_epoch = [c for c in table("fedsol-table5").cells if c.of]
    assert {(c.config.epochs, tuple(c.config.personal), c.statistic) for c in one_epoch} == {
        (1, (1,), "personal.1.mean")
    }
