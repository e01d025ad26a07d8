"""The benchmark cells: fixed problems of real models that every comparison in this project is made on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .problem import AttentionFamily, AttentionProblem
from .store.table import TableError
from .store.yaml_nodes import Value, compose, read_text

FAMILIES: dict[str, AttentionFamily] = {
    "llama-3-8b-tp1": AttentionFamily(32, 8, 128),
    "llama-3-70b-tp8": AttentionFamily(8, 1, 128),
    "qwen3.5-397b-tp2": AttentionFamily(16, 1, 256, kv_dtype="fp8_e4m3"),
    "minimax-m3-tp4-bf16": AttentionFamily(16, 1, 128),
    "minimax-m3-tp4-fp8": AttentionFamily(16, 1, 128, page_size=128, kv_dtype="fp8_e4m3", kv_scales="per_token_head"),
    "gpt-oss-120b-window": AttentionFamily(64, 8, 64, sinks=True, sliding_window=128),
    "gpt-oss-120b-full": AttentionFamily(64, 8, 64, sinks=True),
    "gemma-4-31b-full": AttentionFamily(32, 4, 512, page_size=32),
}
"""The families of the cells, by the first part of a cell's name; per GPU, bf16 query."""


@dataclass(frozen=True)
class Cell:
    """One benchmark cell, named ``family/kind/batch``.

    ``query_lens`` and ``kv_lens`` hold each sequence's query tokens and keys (new tokens included) where the batch is
    not uniform; None means that every sequence has the problem's ``max_seqlen_q`` and ``max_seqlen_k``.
    """

    name: str
    problem: AttentionProblem
    query_lens: tuple[int, ...] | None = None
    kv_lens: tuple[int, ...] | None = None

    @property
    def kv_cache_bytes(self) -> int:
        """Bytes of the pages that the batch's keys and values occupy, window or not."""
        family = self.problem.family
        lengths = self.kv_lens or (self.problem.max_seqlen_k,) * self.problem.num_seqs
        pages = sum(-(-length // family.page_size) for length in lengths)
        return pages * family.page_size * family.bytes_per_token


def benchmark_cells(max_cache_bytes: float = 100e9) -> list[Cell]:
    """All benchmark cells whose KV cache takes at most ``max_cache_bytes``, family by family, in a fixed order."""
    cells = (cell for name, family in FAMILIES.items() for cell in _cells(name, family))
    return [cell for cell in cells if cell.kv_cache_bytes <= max_cache_bytes]


def load_cells(path: str | os.PathLike[str]) -> list[Cell]:
    """Cells from a YAML list: each with a ``name``, the fields of a problem (family and sizes), and for a batch that is
    not uniform ``query_lens`` and ``kv_lens``, lists of one entry for each sequence. ``num_tokens`` follows from
    ``query_lens``.

    Raises:
        TableError: the file is not such a list; the message names line and field.
        OSError: the file cannot be read.
    """
    return [_read_cell(path, entry) for entry in compose(path, read_text(path)).items()]


def _read_cell(path: str | os.PathLike[str], entry: Value) -> Cell:
    fields = entry.mapping()
    lengths: dict[str, tuple[int, ...]] = {
        name: tuple(item.integer(0) for item in fields.pop(name).items())
        for name in ("query_lens", "kv_lens")
        if name in fields
    }
    name = fields.pop("name").text() if "name" in fields else entry.name
    try:
        values = {field: value.scalar() for field, value in fields.items()}
        if "query_lens" in lengths:
            values.setdefault("num_tokens", sum(lengths["query_lens"]))
        problem = AttentionProblem.from_dict(values)
        _check_lengths(problem, lengths)
    except ValueError as error:
        raise TableError(path, entry.line, entry.name, str(error)) from error
    return Cell(name, problem, lengths.get("query_lens"), lengths.get("kv_lens"))


def _check_lengths(problem: AttentionProblem, lengths: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ValueError if the lengths are not those of a batch of the problem's sizes."""
    for field, limit in (("query_lens", "max_seqlen_q"), ("kv_lens", "max_seqlen_k")):
        own, most = lengths.get(field), getattr(problem, limit)
        if own is None:
            continue
        if len(own) != problem.num_seqs:
            raise ValueError(f"{field} must have {problem.num_seqs} entries, not {len(own)}")
        if max(own) > most:
            raise ValueError(f"{field} must be at most {limit} {most}, not {max(own)}")
    tokens = sum(lengths.get("query_lens", (problem.num_tokens,)))
    if tokens != problem.num_tokens:
        raise ValueError(f"query_lens must add up to num_tokens {problem.num_tokens}, not {tokens}")


def _cells(name: str, family: AttentionFamily) -> Iterator[Cell]:
    def uniform(kind: str, num_seqs: int, seqlen_q: int, seqlen_k: int) -> Cell:
        problem = AttentionProblem(family, num_seqs, seqlen_q, seqlen_k)
        return Cell(f"{name}/{kind}/{num_seqs}x{seqlen_q}@{seqlen_k}", problem)

    def ragged(kind: str, query_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> Cell:
        problem = AttentionProblem(family, len(kv_lens), max(query_lens), max(kv_lens), sum(query_lens))
        return Cell(f"{name}/{kind}", problem, query_lens, kv_lens)

    for num_seqs in (1, 8, 32, 128):
        for seqlen_k in (1024, 8192, 32768, 131072):
            yield uniform("decode", num_seqs, 1, seqlen_k)
    for num_seqs in (1, 8, 20, 64):
        for seqlen_q in (2, 4, 8):
            for seqlen_k in (1024, 8192, 70000):
                yield uniform("verify", num_seqs, seqlen_q, seqlen_k)
    yield uniform("prefill", 1, 4096, 4096)
    yield uniform("prefill", 4, 2048, 2048)
    yield uniform("prefill", 1, 2048, 32768)
    yield ragged("mixed/31x1@8192+1x2048@2048", (1,) * 31 + (2048,), (8192,) * 31 + (2048,))
    yield ragged("skewed/1x1@131072+31x1@1024", (1,) * 32, (131072,) + (1024,) * 31)
