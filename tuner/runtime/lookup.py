"""``get_config``: which kernel and configuration to use, answered from tables in about a microsecond."""

from __future__ import annotations

from typing import Any

from ..problem import AttentionFamily, AttentionProblem
from .answer import Answer
from .plan import Plan, RulePlan, make_plan

_plans: dict[tuple[Any, ...], Plan | RulePlan] = {}


def get_config(
    *,
    arch: str | None = None,
    num_query_heads: int,
    num_kv_heads: int,
    head_size: int,
    page_size: int = 16,
    q_dtype: Any = "bf16",
    kv_dtype: Any = "bf16",
    kv_scales: str = "",
    kv_layout: str = "paged",
    value_head_size: int = 0,
    sliding_window: int = 0,
    causal: bool = True,
    sinks: bool = False,
    softcap: bool = False,
    alibi: bool = False,
    qq_bias: bool = False,
    num_seqs: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_tokens: int = 0,
) -> Answer:
    """The kernel and configuration for one attention call.

    ``arch`` is an arch or marketing name, None the current device. Head counts are one GPU's. Dtypes are names or
    torch dtypes. The other family arguments are those of :class:`~attn_tune.problem.AttentionFamily`, the sizes
    those of :class:`~attn_tune.problem.AttentionProblem`. A mixed batch with fewer ``num_tokens`` than
    ``num_seqs * max_seqlen_q`` is answered like as many full-length sequences as have its tokens.

    The first call for a family reads the tables; later ones do no I/O and take no lock.

    Returns:
        An :class:`~attn_tune.runtime.answer.Answer`: ``route``, ``config``, ``source``, ``evidence``, ``us``.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """
    key = (
        arch, num_query_heads, num_kv_heads, head_size, page_size, q_dtype, kv_dtype, kv_scales, kv_layout,
        value_head_size, sliding_window, causal, sinks, softcap, alibi, qq_bias,
    )  # fmt: skip
    try:
        plan = _plans.get(key)
        if plan is None:
            plan = _plans[key] = make_plan(_checked_arch(arch), AttentionFamily(*key[1:]))
        if num_seqs < 1 or max_seqlen_q < 1 or max_seqlen_k < 1 or num_tokens:
            num_seqs = _full_length_seqs(num_seqs, max_seqlen_q, max_seqlen_k, num_tokens)
        return plan.find(num_seqs, max_seqlen_q, max_seqlen_k)
    except TypeError as error:
        # Reached only with arguments of a wrong type: say which.
        AttentionProblem(AttentionFamily(*key[1:]), num_seqs, max_seqlen_q, max_seqlen_k, num_tokens)
        raise ValueError(f"an argument has a wrong type: {error}") from error


def _checked_arch(arch: str | None) -> str | None:
    if arch is not None and not isinstance(arch, str):
        raise ValueError(f"arch must be a name or None, not {arch!r}")
    return arch


def _full_length_seqs(num_seqs: int, max_seqlen_q: int, max_seqlen_k: int, num_tokens: int) -> int:
    _checked = AttentionProblem(_ANY_FAMILY, num_seqs, max_seqlen_q, max_seqlen_k, num_tokens)
    return min(num_seqs, -(-_checked.num_tokens // max_seqlen_q))


_ANY_FAMILY = AttentionFamily(1, 1, 64)
