"""``get_config``: what it answers."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sample_tables import CONFIG_2D, CONFIG_3D, FAMILY, family_rows, write_sample

import attn_tune
from attn_tune.problem import AttentionFamily
from attn_tune.runtime.answer import Answer
from attn_tune.runtime.lookup import get_config, reload_tables
from attn_tune.store.load import load_table

SIZES = {"num_seqs": 20, "max_seqlen_q": 4, "max_seqlen_k": 70000}
CALL = {"arch": "gfx950", **vars(FAMILY), **SIZES}


def ask(**changes: Any) -> Answer:
    return get_config(**CALL | changes)


@pytest.fixture(autouse=True)
def _no_unexpected_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_an_exact_answer_is_the_row(user_tables: Path) -> None:
    path = write_sample(user_tables)
    answer = ask()
    assert (answer.route, answer.config) == ("paged_3d", CONFIG_3D)
    assert (answer.source, answer.evidence, answer.us, answer.stale) == ("exact", "modelled", 99.0, False)
    assert str(path) in answer.explain()
    (row,) = load_table(path).families[0].configs["paged_3d"]
    assert f"line {row.line}" in answer.explain()


def test_both_sides_of_every_threshold(user_tables: Path) -> None:
    rows = load_table(write_sample(user_tables)).families[0]
    boxes = [row.when for own in rows.configs.values() for row in own]
    starts = {
        name: {getattr(box, name)[0] for box in boxes}
        | {high for box in boxes if (high := getattr(box, name)[1]) < 1e9}
        for name in ("num_seqs", "max_seqlen_q", "max_seqlen_k")
    }
    near = [sorted({max(start + step, 1) for start in found for step in (-1, 0, 1)}) for found in starts.values()]
    seen = set()
    for num_seqs, max_seqlen_q, max_seqlen_k in itertools.product(*near):
        answer = ask(num_seqs=num_seqs, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
        kernel, row = rows.find((num_seqs, max_seqlen_q, max_seqlen_k))
        segments = {"NUM_SEGMENTS": answer.config["NUM_SEGMENTS"]}  # follows the sizes
        assert (answer.route, answer.config) == (kernel, {**row.config, **segments})
        seen.add((answer.route, answer.config["num_warps"]))
    assert seen == {("paged_2d", 4), ("paged_2d", 8), ("paged_3d", 2)}


@pytest.mark.parametrize("name", ["AMD Instinct MI355X", " gfx950:sramecc+:xnack-", "GFX950"])
def test_every_name_of_an_arch_gets_its_answer(user_tables: Path, name: str) -> None:
    write_sample(user_tables)
    answer = ask(arch=name)
    assert (answer.route, answer.config, answer.source) == ("paged_3d", CONFIG_3D, "exact")
    assert name.strip() in answer.explain()


def test_a_family_near_one_of_the_table_gets_its_answer(user_tables: Path) -> None:
    write_sample(user_tables)
    with pytest.warns(UserWarning, match="answering with that of 16/1/128"):
        answer = ask(page_size=64)
    assert (answer.route, answer.config, answer.source) == ("paged_3d", CONFIG_3D, "nearest")
    assert "distance 1.0" in answer.explain()


@pytest.mark.parametrize(("num_kv_heads", "last"), [(2, 32), (8, 8), (3, 21)])
def test_more_kv_heads_count_like_more_sequences(user_tables: Path, num_kv_heads: int, last: int) -> None:
    write_sample(user_tables)
    heads = {"num_query_heads": 16 * num_kv_heads, "num_kv_heads": num_kv_heads}
    with pytest.warns(UserWarning, match="answering with that of"):
        answer = ask(**heads, num_seqs=last)
    assert answer.route == "paged_3d"
    assert f"num_seqs counts {num_kv_heads} times" in answer.explain()
    assert ask(**heads, num_seqs=last + 1).route == "paged_2d"


@pytest.mark.parametrize(
    "changes",
    [
        {"arch": "gfx9999"},
        {"arch": "sm_100"},
        {"kv_dtype": "bf16", "kv_scales": ""},
        {"head_size": 512, "value_head_size": 512, "page_size": 128},
        {"num_query_heads": 64},
    ],
)
def test_a_family_far_from_the_table_gets_a_rule(user_tables: Path, changes: dict[str, Any]) -> None:
    write_sample(user_tables)
    with pytest.warns(UserWarning, match="by the default rule"):
        answer = ask(**changes)
    assert (answer.source, answer.evidence, answer.us) == ("rule", "rule", None)
    assert "default rule" in answer.explain()


def test_a_fallback_warns_once(user_tables: Path) -> None:
    with pytest.warns(UserWarning, match="no tuned config") as caught:
        asked = [ask(), ask(num_seqs=1), ask(arch="AMD Instinct MI355X")]
    assert [answer.source for answer in asked] == ["rule"] * 3
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_table_for_another_arch_is_not_believed(user_tables: Path) -> None:
    path = write_sample(user_tables, arch="gfx942")
    path.rename(user_tables / "gfx950.yaml")
    with pytest.warns(UserWarning, match=r"gfx950\.yaml: arch\.name: is a table for gfx942|by the default rule"):
        assert ask().source == "rule"


def test_a_corrupt_table_warns_once_and_falls_back(user_tables: Path) -> None:
    (user_tables / "gfx950.yaml").write_text("schema: 1\nfamilies: [")
    with pytest.warns(UserWarning, match=r"gfx950\.yaml:2|no tuned config") as caught:
        answer, _ = ask(), ask(page_size=64)
    assert [str(warning.message).split()[0] for warning in caught] == ["ignoring", "no", "no"]
    assert answer.source == "rule"
    assert "ignored" in answer.explain()


def test_a_broken_family_costs_only_itself(user_tables: Path) -> None:
    other = AttentionFamily(**{**vars(FAMILY), "head_size": 256, "value_head_size": 256})
    path = write_sample(user_tables, family_rows(), family_rows(other))
    path.write_text(path.read_text().replace("regret: 1.0\n", "regret: [\n", 1))
    assert ask(head_size=256, value_head_size=256).source == "exact"
    with pytest.warns(UserWarning, match="ignoring a table's rows|answering with that of"):
        assert ask().source == "nearest"


def test_a_row_of_an_unregistered_kernel_is_not_used(user_tables: Path) -> None:
    write_sample(user_tables, family_rows(kernel="their_kernel"))
    with pytest.warns(UserWarning, match="their_kernel is not registered"):
        answer = ask()
    assert answer.source == "rule"
    assert ask(max_seqlen_k=100).source == "exact"


LARGEST = {"num_seqs": 32, "max_seqlen_q": 4, "max_seqlen_k": 100000}


@pytest.mark.parametrize(
    ("changes", "beyond"),
    [
        ({}, ()),
        (LARGEST, ()),
        ({"num_seqs": 33}, ("num_seqs",)),
        ({"max_seqlen_q": 5}, ("max_seqlen_q",)),
        ({"max_seqlen_k": 100001}, ("max_seqlen_k",)),
        ({name: size + 1 for name, size in LARGEST.items()}, tuple(LARGEST)),
        ({"num_seqs": 40, "num_tokens": 4 * 32}, ()),  # counts like 32 sequences
    ],
)
def test_an_answer_for_a_size_beyond_the_tuned_ones_names_it(
    user_tables: Path, changes: dict[str, int], beyond: tuple[str, ...]
) -> None:
    write_sample(user_tables, replace(family_rows(), tuned_up_to=tuple(LARGEST.values())))
    ask()  # so that an answer from memory would show
    answer = ask(**changes)
    assert answer.beyond == beyond
    for name in LARGEST:
        assert (f"{name} {LARGEST[name]}" in answer.explain()) == (name in beyond)


def test_a_table_that_does_not_tell_its_sizes_has_nothing_beyond_them(user_tables: Path) -> None:
    write_sample(user_tables)
    assert ask(num_seqs=10**6, max_seqlen_k=10**9).beyond == ()


def test_a_table_of_another_triton_is_stale(user_tables: Path) -> None:
    write_sample(user_tables, triton="3.0.1")
    assert ask().stale
    assert "stale: the table was built with Triton 3.0.1" in ask().explain()


def test_a_mixed_batch_is_answered_like_the_sequences_its_tokens_fill(user_tables: Path) -> None:
    write_sample(user_tables)
    assert ask(num_seqs=65).route == "paged_2d"
    assert ask(num_seqs=65, num_tokens=4 * 64).route == "paged_3d"
    assert ask(num_seqs=65, num_tokens=4 * 64 + 1).route == "paged_2d"


def test_reloading_sees_a_new_table(user_tables: Path) -> None:
    with pytest.warns(UserWarning, match="no tuned config"):
        assert ask().source == "rule"
    write_sample(user_tables)
    assert ask().source == "rule"
    reload_tables()
    assert ask().source == "exact"


def test_numbers_and_dtypes_of_other_libraries_are_taken(user_tables: Path) -> None:
    write_sample(user_tables, family_rows(), family_rows(AttentionFamily(16, 1, 128, kv_layout="shuffled")))
    plain = {"q_dtype": torch.bfloat16, "kv_dtype": torch.bfloat16, "kv_scales": ""}
    given = {name: np.int64(value) if type(value) is int else value for name, value in CALL.items()} | plain
    flags = {name: np.bool_(value) for name, value in CALL.items() if type(value) is bool}
    first, second = get_config(**given | flags), get_config(**given)
    assert first == second == ask(q_dtype="bfloat16", kv_dtype="bf16", kv_scales="none")
    assert first.source == "exact"
    assert ask(kv_dtype=torch.float8_e4m3fn, page_size=torch.tensor(16), num_seqs=70).route == "paged_2d"


def test_threads_get_the_same_answer_and_one_warning(user_tables: Path) -> None:
    write_sample(user_tables)
    answers: list[Answer] = []
    start = threading.Barrier(16)

    def work() -> None:
        start.wait()
        answers.extend(ask(page_size=64, num_seqs=1 + step % 100) for step in range(300))

    threads = [threading.Thread(target=work) for _ in range(16)]
    with pytest.warns(UserWarning, match="answering with that of") as caught:
        run(threads)
    assert len(caught) == 1
    assert len(answers) == 16 * 300
    expected = [ask(page_size=64, num_seqs=1 + step % 100) for step in range(300)]
    assert all(answers[i : i + 300] == expected for i in range(0, len(answers), 300))


def run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_looking_up_loads_neither_torch_nor_triton(user_tables: Path) -> None:
    write_sample(user_tables)
    code = (
        f"import attn_tune, sys; answer = attn_tune.get_config(**{CALL!r});"
        "assert answer.source == 'exact', answer;"
        "slow = {'torch', 'triton', 'yaml', 'numpy', 'pandas', 'subprocess', 'importlib.metadata'};"
        "loaded = slow & set(sys.modules);"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_public_name_is_the_same_function() -> None:
    assert attn_tune.get_config is get_config


def test_the_2d_row_answers_short_contexts(user_tables: Path) -> None:
    write_sample(user_tables)
    assert (ask(max_seqlen_k=512).route, ask(max_seqlen_k=512).config) == ("paged_2d", CONFIG_2D)
