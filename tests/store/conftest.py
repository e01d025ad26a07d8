"""A trial, a table and its text, shared by the tests of the store."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from attn_tune.problem import AttentionFamily
from attn_tune.store.table import Box, ConfigRow, FamilyTable, RoutingRow, Table
from attn_tune.store.trial import Trial

TEXT = """\
schema: 1
arch: {name: gfx950, compute_units: 256, wave_size: 64}
built_with: {attn_tune: 0.1.0, triton: 3.9.0, kernels: 5f3a9c0e}
families:
  - problem: {num_query_heads: 16, num_kv_heads: 1, head_size: 256, page_size: 16, q_dtype: bf16, kv_dtype: fp8_e4m3, \
kv_scales: per_tensor}
    routing:
      - {max_seqlen_q: [1, 1], num_seqs: [1, 64], routes: {1: paged_2d, 513: paged_3d}}
      - {max_seqlen_q: [1, 1], num_seqs: [65, .inf], routes: {1: paged_2d}}
      - {max_seqlen_q: [2, .inf], num_seqs: [1, .inf], routes: {1: paged_2d}}
    configs:
      paged_2d:
        - when: {max_seqlen_q: [1, .inf], num_seqs: [1, .inf], max_seqlen_k: [1, .inf]}
          config: {BLOCK_M: 16, TILE_SIZE: 32, num_warps: 2, num_stages: 2}
          us: [12.3, 131.6]
          evidence: modelled
          regret: 1.0
      paged_3d:
        - when: {max_seqlen_q: [1, 1], num_seqs: [1, 64], max_seqlen_k: [513, .inf]}
          config: {BLOCK_M: 32, TILE_SIZE: 32, NUM_SEGMENTS: 64, num_warps: 2, num_stages: 2, waves_per_eu: 2}
          us: 131.6
          evidence: measured
          regret: 1.004
          best_rule: 1.31
          spread: 0.012
          samples: 30
          error: 0.0013
  - problem: {num_query_heads: 64, num_kv_heads: 8, head_size: 64, page_size: 16, q_dtype: bf16, kv_dtype: bf16, \
kv_scales: none, sinks: true}
    routing:
      - {max_seqlen_q: [1, .inf], num_seqs: [1, .inf], routes: {1: paged_2d}}
    configs:
      paged_2d:
        - when: {max_seqlen_q: [1, .inf], num_seqs: [1, .inf], max_seqlen_k: [1, .inf]}
          config: {BLOCK_M: 16, TILE_SIZE: 32, num_warps: 2, num_stages: 2}
          evidence: rule
"""


@pytest.fixture
def text() -> str:
    return TEXT


@pytest.fixture
def table() -> Table:
    """The table that TEXT describes."""
    everything = Box((1, math.inf), (1, math.inf))
    simple = {"BLOCK_M": 16, "TILE_SIZE": 32, "num_warps": 2, "num_stages": 2}
    split = {"BLOCK_M": 32, "TILE_SIZE": 32, "NUM_SEGMENTS": 64, "num_warps": 2, "num_stages": 2, "waves_per_eu": 2}
    measured = ConfigRow(Box((1, 1), (1, 64), (513, math.inf)), split, "measured", (131.6, 131.6), 1.004, 1.31, 0.012)
    verify = FamilyTable(
        AttentionFamily(16, 1, 256, kv_dtype="fp8_e4m3"),
        (
            RoutingRow((1, 1), (1, 64), {1: "paged_2d", 513: "paged_3d"}),
            RoutingRow((1, 1), (65, math.inf), {1: "paged_2d"}),
            RoutingRow((2, math.inf), (1, math.inf), {1: "paged_2d"}),
        ),
        {
            "paged_2d": (ConfigRow(everything, simple, "modelled", (12.3, 131.6), 1.0),),
            "paged_3d": (ConfigRow(**vars(measured) | {"samples": 30, "error": 0.0013}),),
        },
    )
    sinks = FamilyTable(
        AttentionFamily(64, 8, 64, sinks=True),
        (RoutingRow((1, math.inf), (1, math.inf), {1: "paged_2d"}),),
        {"paged_2d": (ConfigRow(everything, simple, "rule"),)},
    )
    built_with = {"attn_tune": "0.1.0", "triton": "3.9.0", "kernels": "5f3a9c0e"}
    return Table("gfx950", 256, 64, built_with, (verify, sinks))


@pytest.fixture
def make_trial() -> Callable[..., Trial]:
    def make(**changes: Any) -> Trial:
        values: dict[str, Any] = {
            "family": AttentionFamily(16, 1, 256, kv_dtype="fp8_e4m3"),
            "sizes": (20, 4, 70000),
            "kernel": "paged_3d",
            "config": {"BLOCK_M": 32, "TILE_SIZE": 32, "NUM_SEGMENTS": 64, "num_warps": 2, "num_stages": 2},
            "arch": "gfx950",
            "compute_units": 256,
            "status": "ok",
            "evidence": "measured",
            "us": 131.6,
            "spread": 0.01,
            "samples": 30,
            "error": 0.0013,
            "resources": {"vgprs": 128, "spills": 0},
            "environment": {"triton": "3.9.0", "kernels": "5f3a9c0e", "policy": "graph-30", "attn_tune": "0.1.0"},
        }
        return Trial(**values | changes)

    return make
