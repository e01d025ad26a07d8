"""The rules of other projects, against numbers they publish or that follow by hand, and the fallback rule."""

from __future__ import annotations

import random

import pytest

from attn_tune.arch import ARCHS, ArchSpec, get_arch
from attn_tune.baselines import MAX_SEGMENTS, RULES, Choice, default_choice, rule_choices
from attn_tune.kernels.lds import fits_lds, min_block_m, min_tile_size
from attn_tune.models import all_families
from attn_tune.problem import KV_DTYPES, Q_DTYPES, AttentionFamily, AttentionProblem

QWEN = AttentionFamily(16, 1, 256, kv_dtype="fp8")
LLAMA = AttentionFamily(32, 8, 128)
GEMMA = AttentionFamily(32, 4, 512, page_size=64, kv_dtype="fp8")
KEYS = ["BLOCK_M", "TILE_SIZE", "NUM_SEGMENTS", "num_warps", "num_stages"]


def rule(name: str, problem: AttentionProblem, arch: str = "gfx950") -> Choice:
    return rule_choices(problem, get_arch(arch))[name]


def config(*values: int) -> dict[str, int]:
    return dict(zip([*KEYS, "waves_per_eu"], values, strict=False))


@pytest.mark.parametrize(("num_seqs", "segments"), [(1, 64), (16, 64), (64, 32), (128, 16), (256, 8)])
def test_sglang_segments(num_seqs: int, segments: int) -> None:
    choice = rule("sglang_mtp", AttentionProblem(QWEN, num_seqs, 4, 262144))
    assert choice == Choice("paged_3d", config(32, 32, segments, 2, 2, 2))


@pytest.mark.parametrize(
    ("family", "max_seqlen_q", "max_seqlen_k"),
    [
        (QWEN, 1, 4096),
        (QWEN, 5, 4096),
        (QWEN, 4, 512),
        (AttentionFamily(8, 1, 256, kv_dtype="fp8"), 4, 4096),
        (AttentionFamily(16, 1, 128, kv_dtype="fp8"), 4, 4096),
        (AttentionFamily(16, 1, 256, value_head_size=128, kv_dtype="fp8"), 4, 4096),
        (AttentionFamily(16, 1, 256, page_size=32, kv_dtype="fp8"), 4, 4096),
        (AttentionFamily(16, 1, 256), 4, 4096),
        (AttentionFamily(16, 1, 256, q_dtype="fp16", kv_dtype="fp8"), 4, 4096),
        (AttentionFamily(16, 1, 256, kv_dtype="fp8", sliding_window=1024), 4, 4096),
        (AttentionFamily(16, 1, 256, kv_dtype="fp8", softcap=True), 4, 4096),
        (AttentionFamily(16, 1, 256, kv_dtype="fp8", sinks=True), 4, 4096),
    ],
    ids=str,
)
def test_sglang_gate_refuses(family: AttentionFamily, max_seqlen_q: int, max_seqlen_k: int) -> None:
    problem = AttentionProblem(family, 8, max_seqlen_q, max_seqlen_k)
    assert "sglang_mtp" not in rule_choices(problem, get_arch("gfx950"))


def test_sglang_gate_depends_on_the_ratio_of_heads_alone() -> None:
    two_kv_heads = AttentionFamily(32, 2, 256, kv_dtype="fp8")
    # (4 // 2 + 1) * 2 programs: 512 units over 6 is 86, so the cap decides.
    assert rule("sglang_mtp", AttentionProblem(two_kv_heads, 1, 4, 262144)).config["NUM_SEGMENTS"] == 64


@pytest.mark.parametrize(
    ("num_seqs", "max_seqlen_q", "route"),
    [
        (16, 1, "paged_3d"),  # 128 // 8 KV heads = 16 query blocks at most
        (17, 1, "paged_2d"),
        (8, 8, "paged_3d"),  # 4 query tokens a block, so 2 blocks per sequence
        (9, 8, "paged_2d"),
        (1, 9, "paged_2d"),
    ],
)
def test_vllm_route_ignores_the_kv_length(num_seqs: int, max_seqlen_q: int, route: str) -> None:
    for max_seqlen_k in (64, 131072):
        choice = rule("vllm", AttentionProblem(LLAMA, num_seqs, max_seqlen_q, max_seqlen_k))
        assert choice.route == route
        expected = config(16, 16, 16, 4, 2, 0) if route == "paged_3d" else config(16, 32, 1, 4, 2, 0)
        assert choice.config == expected


def test_vllm_takes_wider_tiles_for_an_fp8_query() -> None:
    family = AttentionFamily(32, 8, 128, q_dtype="fp8", kv_dtype="fp8")
    assert rule("vllm", AttentionProblem(family, 1, 1, 1024)).config["TILE_SIZE"] == 32


def test_aiter_segments_by_hand() -> None:
    # Blocks of one query token: 20 * 4 + 20 = 100 programs. 4 * 256 units * (2 waves * 4 / 2 warps) / 100 = 41 -> 64.
    choice = rule("aiter_gfx950", AttentionProblem(QWEN, 20, 4, 70000))
    assert choice == Choice("paged_3d", config(16, 16, 64, 2, 2, 2))


@pytest.mark.parametrize(("num_seqs", "segments"), [(1, 128), (16, 64)])
def test_aiter_segments_published_for_gfx942(num_seqs: int, segments: int) -> None:
    choice = rule("aiter_gfx950", AttentionProblem(GEMMA, num_seqs, 1, 8192), "gfx942")
    assert (choice.route, choice.config["NUM_SEGMENTS"]) == ("paged_3d", segments)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (AttentionProblem(LLAMA, 1, 1, 512), config(16, 16, 1, 2, 3, 2)),
        (AttentionProblem(LLAMA, 129, 1, 8192), config(16, 16, 1, 2, 3, 2)),  # 129 * 8 > 4 * 256 programs
        (AttentionProblem(QWEN, 1, 1, 512), config(16, 16, 1, 2, 2, 2)),
        (AttentionProblem(GEMMA, 1, 1, 512), config(16, 64, 1, 4, 1, 2)),
        (AttentionProblem(GEMMA, 1, 2, 8192), config(16, 16, 1, 4, 2, 2)),
        (AttentionProblem(QWEN, 4, 2048, 2048), config(16, 32, 1, 2, 2, 2)),
        (AttentionProblem(LLAMA, 1, 4096, 4096), config(128, 64, 1, 4, 1, 2)),
        (AttentionProblem(LLAMA, 64, 255, 255), config(16, 64, 1, 2, 1, 2)),
        (AttentionProblem(AttentionFamily(32, 8, 128, sliding_window=4096), 1, 1, 8192), config(16, 16, 1, 2, 3, 2)),
        (AttentionProblem(AttentionFamily(96, 4, 128), 1, 1, 512), config(32, 16, 1, 2, 3, 2)),
        (AttentionProblem(AttentionFamily(32, 8, 128, q_dtype="fp8", kv_dtype="fp8"), 1, 1, 512),
         config(16, 32, 1, 2, 3, 2)),
    ],
    ids=str,
)  # fmt: skip
def test_aiter_unsplit(problem: AttentionProblem, expected: dict[str, int]) -> None:
    assert rule("aiter_gfx950", problem) == Choice("paged_2d", expected)


@pytest.mark.parametrize(("num_seqs", "route"), [(128, "paged_3d"), (129, "paged_2d")])
def test_aiter_splits_up_to_four_programs_per_unit(num_seqs: int, route: str) -> None:
    assert rule("aiter_gfx950", AttentionProblem(LLAMA, num_seqs, 1, 8192)).route == route


@pytest.mark.parametrize(
    ("problem", "route", "segments"),
    [
        # 256 units * (2 waves * 4 / 1 warp) // 256 programs = 8
        (AttentionProblem(LLAMA, 32, 1, 8192), "paged_3d", 8),
        (AttentionProblem(LLAMA, 24, 1, 8192), "paged_3d", 16),  # 10, rounded up
        (AttentionProblem(LLAMA, 1, 1, 40), "paged_3d", 3),  # tiles of 16 in 40 keys
        (AttentionProblem(LLAMA, 32, 2, 8192), "paged_2d", 1),
        (AttentionProblem(AttentionFamily(32, 8, 128, sliding_window=4096), 32, 1, 8192), "paged_2d", 1),
    ],
    ids=str,
)
def test_aiter_on_gfx1250(problem: AttentionProblem, route: str, segments: int) -> None:
    choice = rule("aiter_gfx1250", problem, "gfx1250")
    assert (choice.route, choice.config["NUM_SEGMENTS"]) == (route, segments)


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
def test_rules_offered_on_an_arch(arch: ArchSpec) -> None:
    expected = set(RULES) if arch.name == "gfx1250" else set(RULES) - {"aiter_gfx1250"}
    assert set(rule_choices(AttentionProblem(QWEN, 8, 4, 8192), arch)) == expected


@pytest.mark.parametrize(
    ("problem", "route", "segments"),
    [
        (AttentionProblem(LLAMA, 1, 1, 512), "paged_2d", 1),
        (AttentionProblem(LLAMA, 1, 1, 513), "paged_3d", 2),
        (AttentionProblem(LLAMA, 63, 1, 8192), "paged_3d", 2),  # 504 programs, under two for each of 256 units
        (AttentionProblem(LLAMA, 64, 1, 8192), "paged_2d", 1),
        (AttentionProblem(QWEN, 1, 4, 262144), "paged_3d", 128),
        (AttentionProblem(QWEN, 32, 4, 262144), "paged_3d", 32),  # one block per sequence: 1024 // 32
        (AttentionProblem(AttentionFamily(64, 8, 64, sliding_window=128), 1, 1, 131072), "paged_2d", 1),
        (AttentionProblem(LLAMA, 8, 2048, 2048), "paged_2d", 1),
    ],
    ids=str,
)
def test_default_splits_keys_to_fill_the_units(problem: AttentionProblem, route: str, segments: int) -> None:
    choice = default_choice(problem, get_arch("gfx950"))
    assert (choice.route, choice.config["NUM_SEGMENTS"]) == (route, segments)


@pytest.mark.parametrize(
    ("family", "max_seqlen_q", "block_m"),
    [(LLAMA, 1, 16), (LLAMA, 8, 32), (LLAMA, 32, 64), (LLAMA, 64, 64), (QWEN, 1, 16), (QWEN, 4, 64), (QWEN, 64, 128)],
    ids=str,
)
def test_default_covers_a_sequence_with_one_block(family: AttentionFamily, max_seqlen_q: int, block_m: int) -> None:
    problem = AttentionProblem(family, 1, max_seqlen_q, 8192)
    assert default_choice(problem, get_arch("gfx950")).config["BLOCK_M"] == block_m


@pytest.mark.parametrize("arch", [*ARCHS.values(), None], ids=lambda arch: arch.name if arch else "unknown")
def test_every_answer_for_every_model_fits_the_lds(arch: ArchSpec | None) -> None:
    for family in all_families():
        for sizes in [(1, 1, 131072), (64, 1, 8192), (8, 4, 70000), (4, 2048, 2048), (1, 300, 300)]:
            problem = AttentionProblem(family, *sizes)
            default = default_choice(problem, arch)
            answers = {"default": default} | (rule_choices(problem, arch) if arch else {})
            for spec in [arch] if arch else ARCHS.values():
                for name, choice in answers.items():
                    assert fits_lds(choice.config, family, spec), f"{name}: {problem}"


def random_problem(rng: random.Random) -> AttentionProblem:
    num_kv_heads = rng.choice([1, 1, 2, 3, 4, 8, 16])
    kv_dtype = rng.choice(KV_DTYPES)
    scales = ["none", "per_tensor", "per_token_head"] if kv_dtype == "fp8_e4m3" else [""]
    family = AttentionFamily(
        num_query_heads=num_kv_heads * rng.randint(1, 128),
        num_kv_heads=num_kv_heads,
        head_size=rng.choice([8, 64, 96, 128, 256, 512, rng.randint(8, 1024)]),
        page_size=rng.choice([1, 8, 16, 48, 128, 1072]),
        q_dtype=rng.choice(Q_DTYPES),
        kv_dtype=kv_dtype,
        kv_scales=rng.choice(scales),
        value_head_size=rng.choice([0, 0, 128, 512]),
        sliding_window=rng.choice([0, 0, 1, 128, 4096]),
        sinks=rng.random() < 0.2,
    )
    max_seqlen_q = rng.choice([1, 1, 2, 4, 8, 63, rng.randint(1, 8192)])
    num_seqs = rng.choice([1, 20, rng.randint(1, 4096)])
    num_tokens = rng.choice([0, rng.randint(1, num_seqs * max_seqlen_q)])
    return AttentionProblem(family, num_seqs, max_seqlen_q, rng.choice([1, 512, rng.randint(1, 1 << 20)]), num_tokens)


def check_launchable(choice: Choice, problem: AttentionProblem, archs: list[ArchSpec], backend: str) -> None:
    config = choice.config
    assert list(config) == KEYS + ["waves_per_eu"] * (backend == "hip")
    assert choice.route in ("paged_2d", "paged_3d")
    assert choice.route == "paged_3d" or config["NUM_SEGMENTS"] == 1
    assert 1 <= config["NUM_SEGMENTS"] <= MAX_SEGMENTS
    smallest = {"BLOCK_M": min_block_m(problem.family), "TILE_SIZE": min_tile_size(problem.family), "num_stages": 1}
    for name in ("BLOCK_M", "TILE_SIZE"):
        assert config[name] >= smallest[name]
        assert config[name] & (config[name] - 1) == 0
    assert config["BLOCK_M"] >= problem.family.group_size
    assert config["num_warps"] in (1, 2, 4, 8)
    assert config["num_stages"] >= 1
    for arch in archs:  # some random families have no config that fits
        assert fits_lds(config, problem.family, arch) or not fits_lds(smallest, problem.family, arch)


def test_answers_to_random_problems_are_launchable() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        problem = random_problem(rng)
        for arch in ARCHS.values():
            answers = rule_choices(problem, arch) | {"default": default_choice(problem, arch)}
            for choice in answers.values():
                check_launchable(choice, problem, [arch], arch.backend)


def test_default_for_an_unknown_arch_is_launchable_on_every_known_one() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        problem = random_problem(rng)
        check_launchable(default_choice(problem), problem, list(ARCHS.values()), "cuda")
