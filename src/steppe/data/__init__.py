"""Data sets, partitions over clients, sampling of clients, and augmentation."""

from steppe.data.aligned import aligned_test_sets
from steppe.data.augment import AUGMENTATIONS, Augmentation, augmentation, normalise
from steppe.data.dataset import DATASETS, Data, from_arrays, from_dataset, load
from steppe.data.partition import Partition
from steppe.data.rules import PARTITIONS

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "PARTITIONS",
    "Augmentation",
    "Data",
    "Partition",
    "aligned_test_sets",
    "augmentation",
    "from_arrays",
    "from_dataset",
    "load",
    "normalise",
]
