"""Answers whose NUM_SEGMENTS follows from the sizes asked for, within one row of a table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..kernels.routes import MAX_SEGMENTS
from ..problem import AttentionFamily
from ..store.programs import exchanged
from .answer import Answer


@dataclass(frozen=True)
class SplitAnswer:
    """A row's answer that still lacks its segments: as many as make ``num_programs`` programs, or ``num_segments``."""

    row: Answer
    num_programs: int
    num_segments: int
    block_q: int
    num_kv_heads: int
    tile_size: int
    sliding_window: int
    answers: dict[int, Answer] = field(default_factory=dict)

    def at(self, num_seqs: int, max_seqlen_q: int, max_seqlen_k: int) -> Answer:
        """The answer at some sizes. Segments for which no tile of keys would be left are not made."""
        segments = self.num_segments
        if not segments:
            unsplit = num_seqs * -(-max_seqlen_q // self.block_q) * self.num_kv_heads
            segments = min(max(self.num_programs // unsplit, 1), MAX_SEGMENTS)
        tiles = -(-max_seqlen_k // self.tile_size)
        if self.sliding_window:  # where it begins and ends within a tile is the sequence's chance
            tiles = min(tiles, (self.sliding_window + min(max_seqlen_q, self.block_q)) // self.tile_size + 2)
        segments = -(-tiles // -(-tiles // segments))
        answer = self.answers.get(segments)
        if answer is None:
            named = "NUM_SEGMENTS" if self.num_segments else "NUM_PROGRAMS"
            config = exchanged(self.row.config, named, "NUM_SEGMENTS", segments)
            aim = f"{self.num_segments} segments" if self.num_segments else f"{self.num_programs} programs"
            step = f"NUM_SEGMENTS {segments}: at most {aim}, none of them without keys"
            answer = self.answers[segments] = replace(self.row, config=config, chain=(*self.row.chain, step))
        return answer


def split_answer(row: Answer, family: AttentionFamily, units: int, tuned_units: int) -> SplitAnswer | None:
    """A row's answer as one whose segments depend on the sizes; None if there is nothing to adapt.

    A device with other compute units than those that the table was tuned for gets its share of the programs.
    """
    config = row.config
    segments = config.get("NUM_SEGMENTS", 1)
    if "BLOCK_M" not in config or "TILE_SIZE" not in config or ("NUM_PROGRAMS" not in config and segments == 1):
        return None
    return SplitAnswer(
        row,
        num_programs=config.get("NUM_PROGRAMS", 0) * units // tuned_units,
        num_segments=0 if "NUM_PROGRAMS" in config else segments,
        block_q=config["BLOCK_M"] // family.group_size,
        num_kv_heads=family.num_kv_heads,
        tile_size=config["TILE_SIZE"],
        sliding_window=family.sliding_window,
    )
