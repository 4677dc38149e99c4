"""Values that recipes, further parts, data sets and models set, and the names of keys elsewhere. Tables only."""

from __future__ import annotations

from typing import Any

# Momentum, decay, clipping, sampling, weights and schedule belong to an experiment, not to an algorithm.
RECIPES: dict[str, dict[str, Any]] = {
    "fedsol": {"momentum": 0.9, "weight_decay": 1e-5, "clip": None, "lr": 0.01, "lr_schedule": "exponential",
               "lr_decay": 0.99, "batch": 50, "epochs": 5, "sampling": "fixed", "weighting": "samples"},
    "fedsmoo": {"momentum": 0.0, "weight_decay": 1e-3, "clip": 10.0, "lr": 0.1, "lr_schedule": "exponential",
                "lr_decay": 0.998, "batch": 50, "epochs": 5, "sampling": "bernoulli", "weighting": "uniform"},
    "flsam": {"momentum": 0.9, "weight_decay": 1e-5, "clip": None, "lr": 0.01, "lr_schedule": "exponential",
              "lr_decay": 0.998, "batch": 50, "epochs": 5, "sampling": "fixed", "weighting": "samples"},
    "man": {"momentum": 0.0, "weight_decay": 1e-3, "clip": 10.0, "lr": 0.1, "lr_schedule": "exponential",
            "lr_decay": 0.998, "batch": 50, "epochs": 5, "sampling": "bernoulli", "sampling_seed": 0,
            "weighting": "uniform"},
    "fednsam": {"momentum": 0.0, "weight_decay": 1e-3, "clip": 10.0, "lr": 0.1, "lr_schedule": "cosine",
                "batch": 50, "epochs": 5, "max_steps": 50, "sampling": "fixed", "weighting": "uniform"},
}  # fmt: skip
# What a further part needs of the run. Keys that are set override it, and are then refused with a reason.
IMPLIED: dict[str, dict[str, Any]] = {
    "dp": {"weighting": "uniform", "sampling": "bernoulli"}, "median": {"weighting": "uniform"},
    "trimmed_mean": {"weighting": "uniform"}, "krum": {"weighting": "uniform", "sampling": "fixed"},
}  # fmt: skip
# The augmentation of each recipe by data set, where the paper states one.
RECIPE_AUGMENTATION = {
    "fedsol": {"cifar10": "cifar-fedsol", "cifar100": "cifar-fedsol", "mnist": "mnist", "svhn": "svhn",
               "cinic10": "cinic10", "pathmnist": "med", "tissuemnist": "med", "pneumoniamnist": "med"},
    "fedsmoo": {"cifar10": "cifar-fedsmoo", "cifar100": "cifar-fedsmoo"},
    "flsam": {"cifar10": "flsam", "cifar100": "flsam", "cinic10": "flsam"},
    "man": {"cifar10": "cifar-fedsmoo", "cifar100": "cifar-fedsmoo", "tiny-imagenet": "cifar-fedsmoo"},
    "fednsam": {"cifar10": "svhn", "cifar100": "svhn"},
}  # fmt: skip

# Names of earlier versions, which stored configurations still have: the entry of today, and the settings that it takes.
RENAMED = {f"fedsol_a{i}": ("fedsol_ablation", {"variant": f"a{i}"}) for i in range(7)}


# What data sets and models need that are not about labelled images. A recipe and keys that are set override it.
_TEXT: dict[str, Any] = {"partition": "natural", "model": "lstm", "metrics": ["accuracy", "perplexity"]}
USUAL_FOR: dict[str, dict[str, Any]] = {
    "shakespeare": _TEXT, "shakespeare-full": _TEXT,
    "lstm": {"lr": 3.0, "clip": 5.0}, "lstm-fedavg": {"lr": 3.0, "clip": 5.0}, "gpt": {"lr": 0.3, "clip": 5.0},
}  # fmt: skip

# Names that other programs use for these keys, FL-Simulator's flags among them.
ELSEWHERE = {
    **dict.fromkeys(("learning_rate", "local_learning_rate", "local_lr", "client_lr", "eta"), "lr"),
    **dict.fromkeys(("learning_rate_decay", "lr_gamma"), "lr_decay"),
    **dict.fromkeys(("scheduler", "lr_scheduler"), "lr_schedule"),
    **dict.fromkeys(("num_clients", "n_clients", "total_client", "total_clients", "num_users"), "clients"),
    **dict.fromkeys(("clients_per_round", "num_clients_per_round", "participants"), "per_round"),
    **dict.fromkeys(("active_ratio", "fraction_fit", "sample_fraction", "participation"),
                    "per_round (a number of clients, not a share)"),
    **dict.fromkeys(("num_rounds", "n_rounds", "comm_rounds", "communication_rounds", "global_epochs"), "rounds"),
    **dict.fromkeys(("local_epochs", "local_ep", "num_epochs"), "epochs"), "local_steps": "max_steps",
    **dict.fromkeys(("batch_size", "batchsize", "local_bs"), "batch"),
    **dict.fromkeys(("dataset", "data_name"), "data"),
    **dict.fromkeys(("data_dir", "data_path", "data_file", "data_root"), "data_folder"),
    **dict.fromkeys(("split_rule", "split_coef", "dirichlet_alpha", "partition_alpha", "iid", "non_iid"),
                    "partition (such as iid, lda(0.1) or dirichlet_replace(0.1))"),
    **dict.fromkeys(("wd", "l2"), "weight_decay"), **dict.fromkeys(("grad_clip", "max_grad_norm", "max_norm"), "clip"),
    **dict.fromkeys(("random_seed", "manual_seed"), "seed"), **dict.fromkeys(("gpu", "cuda"), "device"),
    "seeds": "seed (steppe run trains once; several seeds are for steppe compare and steppe sweep)",
    "optimizer": "optimiser", **dict.fromkeys(("method", "strategy"), "algorithm"),
}  # fmt: skip
