"""A case: a family, the lengths of one batch, and what is unusual about its tensors or its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..kernels import Config
from ..kernels.inputs import AttentionInputs, empty_inputs
from ..kernels.lds import min_block_m
from ..kernels.random_inputs import random_inputs
from ..problem import AttentionFamily, AttentionProblem

Variation = Callable[[AttentionInputs], AttentionInputs]


@dataclass(frozen=True)
class Case:
    """One batch to compute and compare with the reference.

    ``config`` overrides entries of the configuration that the caller tries; ``variations`` are applied to the random
    inputs in turn; ``num_pages`` 0 means a cache with three pages more than the sequences use.
    """

    name: str
    family: AttentionFamily
    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    config: Config = field(default_factory=dict)
    variations: tuple[Variation, ...] = ()
    num_pages: int = 0

    @property
    def problem(self) -> AttentionProblem:
        return AttentionProblem(
            self.family, len(self.query_lens), max(self.query_lens), max(self.kv_lens), sum(self.query_lens)
        )

    def complete(self, config: Config) -> dict[str, int]:
        """``config`` with this case's overrides, and BLOCK_M raised to what the family needs."""
        merged = dict(config) | dict(self.config)
        return merged | {"BLOCK_M": max(merged["BLOCK_M"], min_block_m(self.family))}

    def inputs(self, device: Any) -> AttentionInputs:
        """The tensors on a device; on ``"meta"`` they have no contents, for compiling."""
        pages = self.num_pages or sum(-(-kv_len // self.family.page_size) for kv_len in self.kv_lens) + 3
        if device == "meta":
            inputs = empty_inputs(self.problem, device, num_pages=pages)
        else:
            inputs = random_inputs(
                self.problem, device, query_lens=self.query_lens, kv_lens=self.kv_lens, num_pages=pages
            )
        for variation in self.variations:
            inputs = variation(inputs)
        return inputs
