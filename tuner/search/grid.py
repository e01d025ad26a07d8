"""The sizes at which a family is tuned; a table answers for those in between with one of their rows."""

from __future__ import annotations

from ..problem import AttentionFamily, AttentionProblem

NUM_SEQS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MAX_SEQLEN_Q = (1, 2, 4, 8, 64, 512, 4096)  # decode, speculative verify, chunked and whole prefill
MAX_SEQLEN_K = (256, 1024, 4096, 16384, 65536, 262144)
MAX_TOKENS = 32768  # query tokens that a server schedules in one step

# Few sizes that stand for the grid when candidates are ranked before compiling.
_REPRESENTATIVE = (
    (1, 1, 1024),
    (1, 1, 65536),
    (16, 1, 16384),
    (128, 1, 4096),
    (256, 1, 1024),
    (1, 4, 262144),
    (16, 4, 65536),
    (64, 4, 8192),
    (8, 64, 4096),
    (4, 512, 4096),
    (1, 4096, 4096),
    (4, 4096, 16384),
)


def size_grid(family: AttentionFamily) -> list[AttentionProblem]:
    """Every combination of the axes that a server could see: queries no longer than keys, tokens within one step."""
    return [
        AttentionProblem(family, num_seqs, max_seqlen_q, max_seqlen_k)
        for num_seqs in NUM_SEQS
        for max_seqlen_q in MAX_SEQLEN_Q
        for max_seqlen_k in MAX_SEQLEN_K
        if max_seqlen_q <= max_seqlen_k and num_seqs * max_seqlen_q <= MAX_TOKENS
    ]


def representative_sizes(family: AttentionFamily) -> list[AttentionProblem]:
    """A dozen problems from decode at batch 1 to prefill of 16384 tokens."""
    return [AttentionProblem(family, *sizes) for sizes in _REPRESENTATIVE]
