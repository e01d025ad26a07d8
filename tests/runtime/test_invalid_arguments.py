"""What ``get_config`` refuses: by name, and just so after an equal valid call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sample_tables import FAMILY, write_sample

from attn_tune.runtime.lookup import get_config

CALL = {"arch": "gfx950", **vars(FAMILY), "num_seqs": 20, "max_seqlen_q": 4, "max_seqlen_k": 70000}

BAD = [
    ("arch", 950),
    ("arch", ["gfx950"]),
    ("num_query_heads", 0),
    ("num_query_heads", 16.0),
    ("num_kv_heads", 3),
    ("num_kv_heads", True),
    ("head_size", "128"),
    ("head_size", 2048),
    ("page_size", None),
    ("q_dtype", "fp4"),
    ("q_dtype", ["bf16"]),
    ("kv_dtype", torch.float64),
    ("kv_scales", "per_row"),
    ("kv_layout", 1),
    ("value_head_size", -8),
    ("sliding_window", -1),
    ("causal", 1),
    ("sinks", "no"),
    ("softcap", 30.0),
    ("alibi", None),
    ("qq_bias", 0),
    ("num_seqs", 0),
    ("num_seqs", 20.0),
    ("num_seqs", np.float32(20)),
    ("max_seqlen_q", -4),
    ("max_seqlen_q", True),
    ("max_seqlen_k", "70000"),
    ("max_seqlen_k", float("nan")),
    ("num_tokens", 81),
    ("num_tokens", -1),
    ("num_tokens", None),
]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda item: str(item))
def test_an_invalid_argument_is_named(user_tables: Path, warm: bool, name: str, value: Any) -> None:
    write_sample(user_tables)
    if warm:
        get_config(**CALL)
    with pytest.raises(ValueError, match=name):
        get_config(**CALL | {name: value})
