"""FedBABU (Oh, Kim & Yun, ICLR 2022, arXiv:2106.06042): the federation trains the body, the head stays random.

    direction = b ⊙ g(w)                b is 1 on the body and 0 on the head; decay and momentum are masked as well

The head gets no gradient, no decay and no momentum, and is not sent. Each client unfreezes it when it fine-tunes
the result on its own data (`evaluate/personal.py`); until then the global accuracy means little.
"""

from __future__ import annotations

from dataclasses import dataclass

from steppe.core.part import Part


@dataclass(frozen=True)
class FrozenHead(Part):
    name = "frozen_head"
    citation = """@inproceedings{fedbabu,
      title = {{FedBABU}: Toward Enhanced Representation for Federated Image Classification},
      author = {Oh, Jaehoon and Kim, Sangmook and Yun, Se-Young},
      booktitle = {International Conference on Learning Representations (ICLR)},
      year = {2022}, eprint = {2106.06042}, archiveprefix = {arXiv}
    }"""
    frozen = "head"
