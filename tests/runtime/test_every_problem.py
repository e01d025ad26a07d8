"""Ten thousand random problems: every one gets an answer that can be launched, and that says its source."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from sample_tables import write_sample

from attn_tune.arch import ARCHS, find_arch
from attn_tune.kernels import get_kernel, kernel_names
from attn_tune.kernels.lds import fits_lds, min_block_m
from attn_tune.problem import KV_DTYPES, KV_LAYOUTS, KV_SCALES, Q_DTYPES, AttentionFamily
from attn_tune.runtime.answer import Answer
from attn_tune.runtime.lookup import get_config


@pytest.mark.filterwarnings("ignore:no tuned config", "ignore:not using a row")
@pytest.mark.parametrize("arch", [*ARCHS, "gfx9999", "NVIDIA RTX 9090", ""])
def test_every_valid_problem_has_an_answer(user_tables: Path, arch: str) -> None:
    """1250 random problems on each of 8 archs; one of them has the user's table, some have shipped ones."""
    write_sample(user_tables)
    rng = random.Random(arch)
    for _ in range(250):
        family = random_family(rng)
        for _ in range(5):
            sizes = [round(2 ** rng.uniform(0, high)) for high in (12, 14, 20)]
            tokens = rng.choice((0, rng.randint(1, sizes[0] * sizes[1])))
            answer = get_config(
                arch=arch,
                **vars(family),
                num_seqs=sizes[0],
                max_seqlen_q=sizes[1],
                max_seqlen_k=sizes[2],
                num_tokens=tokens,
            )
            check_answer(answer, family, arch)


def random_family(rng: random.Random) -> AttentionFamily:
    while True:
        num_kv_heads = rng.randint(1, 64)
        try:
            return AttentionFamily(
                num_query_heads=num_kv_heads * rng.choice((1, 2, 3, 5, 6, 8, 12, 16, 40, 128, 200)),
                num_kv_heads=num_kv_heads,
                head_size=rng.choice((8, 64, 80, 96, 128, 192, 256, 320, 512, 576, 1000)),
                page_size=rng.choice((1, 8, 16, 48, 64, 128, 784)),
                q_dtype=rng.choice(Q_DTYPES),
                kv_dtype=rng.choice(KV_DTYPES),
                kv_scales=rng.choice(KV_SCALES),
                kv_layout=rng.choice(KV_LAYOUTS),
                value_head_size=rng.choice((0, 0, 64, 512)),
                sliding_window=rng.choice((0, 0, 1, 128, 4096)),
                **{name: rng.random() < 0.2 for name in ("causal", "sinks", "softcap", "alibi", "qq_bias")},
            )
        except ValueError:
            continue


def check_answer(answer: Answer, family: AttentionFamily, arch: str) -> None:
    assert answer.source in ("exact", "nearest", "rule")
    assert answer.route in kernel_names()
    assert answer.explain()
    assert all(isinstance(value, int) and value >= 0 for value in answer.config.values())
    assert answer.config["BLOCK_M"] >= min_block_m(family)
    assert answer.config["NUM_SEGMENTS"] >= 1
    assert answer.route == "paged_3d" or answer.config["NUM_SEGMENTS"] == 1
    spec = find_arch(arch)
    if answer.source != "rule":
        assert spec is not None
        assert get_kernel(answer.route).supports(family, spec) is None
        assert fits_lds(answer.config, family, spec)
