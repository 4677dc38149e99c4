"""Data sets, partitions over clients, sampling of clients, and augmentation."""

from steppe.data.aligned_tests import align_test_sets
from steppe.data.augment import AUGMENTATIONS, Augmentation, find_augmentation, normalise
from steppe.data.dataset import Data, from_arrays
from steppe.data.named_datasets import DATASETS, load
from steppe.data.own_data import as_data, from_clients, from_dataset
from steppe.data.partition import Partition
from steppe.data.rules import PARTITIONS

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "PARTITIONS",
    "Augmentation",
    "Data",
    "Partition",
    "align_test_sets",
    "as_data",
    "find_augmentation",
    "from_arrays",
    "from_clients",
    "from_dataset",
    "load",
    "normalise",
]
