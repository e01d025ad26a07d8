"""The benchmark cells."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from attn_tune.cells import FAMILIES, Cell, benchmark_cells, load_cells
from attn_tune.models import all_families
from attn_tune.problem import AttentionFamily, AttentionProblem
from attn_tune.store.table import TableError

CELLS = {cell.name: cell for cell in benchmark_cells()}


def test_families_are_deployments_of_models() -> None:
    assert set(FAMILIES.values()) <= set(all_families())


def test_names_are_unique_and_the_order_is_fixed() -> None:
    names = [cell.name for cell in benchmark_cells()]
    assert len(set(names)) == len(names)
    assert names == list(CELLS)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_every_kind_of_cell(family: str) -> None:
    kinds = Counter(cell.name.split("/")[1] for cell in benchmark_cells(float("inf")) if cell.name.startswith(family))
    assert kinds == {"decode": 16, "verify": 36, "prefill": 3, "mixed": 1, "skewed": 1}


def test_caches_over_the_limit_are_dropped() -> None:
    dropped = {cell.name for cell in benchmark_cells(float("inf"))} - set(CELLS)
    # 128 * 131072 tokens of 4 KV heads * (512 + 512) * 2 bytes are 137 GB.
    assert dropped == {"gemma-4-31b-full/decode/128x1@131072"}
    assert all(cell.kv_cache_bytes <= 1e9 for cell in benchmark_cells(1e9))
    assert len(benchmark_cells(1e9)) < len(CELLS)


def test_uniform_cell() -> None:
    cell = CELLS["qwen3.5-397b-tp2/verify/20x4@70000"]
    assert cell.problem == AttentionProblem(AttentionFamily(16, 1, 256, kv_dtype="fp8"), 20, 4, 70000)
    assert (cell.query_lens, cell.kv_lens) == (None, None)


def test_mixed_cell_has_one_prefill_among_decodes() -> None:
    cell = CELLS["llama-3-8b-tp1/mixed/31x1@8192+1x2048@2048"]
    assert cell.query_lens == (1,) * 31 + (2048,)
    assert cell.kv_lens == (8192,) * 31 + (2048,)
    assert cell.problem.sizes == (32, 2048, 8192)
    assert cell.problem.num_tokens == 31 + 2048


def test_skewed_cell_has_one_long_sequence() -> None:
    cell = CELLS["llama-3-8b-tp1/skewed/1x1@131072+31x1@1024"]
    assert cell.problem.sizes == (32, 1, 131072)
    assert cell.kv_lens == (131072,) + (1024,) * 31


def test_cache_bytes_count_whole_pages_of_each_sequence() -> None:
    family = AttentionFamily(4, 2, 64, page_size=16)  # 2 KV heads * 128 elements * 2 bytes = 512 bytes a token
    assert Cell("a", AttentionProblem(family, 3, 1, 17)).kv_cache_bytes == 3 * 32 * 512
    assert Cell("b", AttentionProblem(family, 2, 1, 33), (1, 1), (33, 1)).kv_cache_bytes == (48 + 16) * 512


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cells.yaml"
    path.write_text(text)
    return path


UNIFORM = (
    "- {name: mine, num_query_heads: 8, num_kv_heads: 1, head_size: 128, num_seqs: 3, max_seqlen_q: 1, "
    "max_seqlen_k: 70}"
)
RAGGED = (
    "- {num_query_heads: 8, num_kv_heads: 1, head_size: 128, kv_dtype: fp8, num_seqs: 3, max_seqlen_q: 4, "
    "max_seqlen_k: 70, num_tokens: 6, query_lens: [1, 1, 4], kv_lens: [70, 33, 4]}"
)


def test_cells_of_a_file(tmp_path: Path) -> None:
    uniform, ragged = load_cells(written(tmp_path, f"{UNIFORM}\n{RAGGED}\n"))
    family = AttentionFamily(8, 1, 128)
    assert uniform == Cell("mine", AttentionProblem(family, 3, 1, 70))
    assert ragged.problem == AttentionProblem(AttentionFamily(8, 1, 128, kv_dtype="fp8"), 3, 4, 70, 6)
    assert (ragged.query_lens, ragged.kv_lens) == ((1, 1, 4), (70, 33, 4))
    assert ragged.name


def test_tokens_follow_from_the_query_lengths(tmp_path: Path) -> None:
    (cell,) = load_cells(written(tmp_path, RAGGED.replace("num_tokens: 6, ", "") + "\n"))
    assert cell.problem.num_tokens == 6


@pytest.mark.parametrize("file_of", ["uniform", "ragged"])
def test_a_shipped_cell_written_to_a_file_is_the_same_cell(tmp_path: Path, file_of: str) -> None:
    kind = {"uniform": "prefill/4x2048@2048", "ragged": "mixed/31x1@8192+1x2048@2048"}[file_of]
    cell = CELLS[f"gpt-oss-120b-window/{kind}"]
    fields = {"name": cell.name} | vars(cell.problem.family) | vars(cell.problem)
    del fields["family"]
    lines = [f"  {name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in fields.items()]
    for name in ("query_lens", "kv_lens"):
        if getattr(cell, name):
            lines.append(f"  {name}: {list(getattr(cell, name))}")
    assert load_cells(written(tmp_path, "-\n" + "\n".join(lines) + "\n")) == [cell]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (UNIFORM.replace("num_seqs: 3", "num_seqs: 0"), "num_seqs"),
        (UNIFORM.replace("head_size: 128, ", ""), "head_size"),
        (UNIFORM.replace("name: mine", "nmae: mine"), "nmae"),
        (UNIFORM.replace("head_size: 128", "head_size: big"), "head_size"),
        (RAGGED.replace("[70, 33, 4]", "[70, 33]"), "kv_lens must have 3 entries, not 2"),
        (RAGGED.replace("[1, 1, 4]", "[1, 1, 4, 4]"), "query_lens must have 3 entries, not 4"),
        (RAGGED.replace("[1, 1, 4]", "[1, 1, x]"), "query_lens"),
        (RAGGED.replace("[1, 1, 4]", "[1, -1, 4]"), "query_lens"),
        (RAGGED.replace("[1, 1, 4]", "[1, 1, 5]"), "query_lens must be at most max_seqlen_q 4, not 5"),
        (RAGGED.replace("[70, 33, 4]", "[71, 33, 4]"), "kv_lens must be at most max_seqlen_k 70, not 71"),
        (RAGGED.replace("[1, 1, 4]", "[1, 2, 4]"), "query_lens must add up to num_tokens 6, not 7"),
        ("- 3", "cells.yaml"),
        ("name: mine", "cells.yaml"),
        ("- {name: [", "cells.yaml"),
    ],
)
def test_a_bad_cell_is_named_with_file_line_and_field(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TableError) as caught:
        load_cells(written(tmp_path, f"{UNIFORM}\n{text}\n" if text.startswith("-") else f"{text}\n"))
    assert "cells.yaml" in str(caught.value)
    assert words in str(caught.value)
    if text.startswith("- {num_query_heads"):
        assert caught.value.line == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        load_cells(tmp_path / "absent.yaml")
