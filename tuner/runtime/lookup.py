"""``get_config``: which kernel and configuration to use, answered from tables in one or two microseconds."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from operator import index
from typing import Any

from ..problem import AttentionFamily, AttentionProblem
from .answer import Answer
from .plan import Plan, RulePlan, make_plan
from .tables import forget_warnings

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
    total_seqlen_k: int = 0,
) -> Answer:
    """The kernel and configuration for one attention call.

    ``arch`` is an arch or marketing name, None the current device. Head counts are one GPU's. Dtypes are names or
    torch dtypes. The other family arguments are those of :class:`~attn_tune.problem.AttentionFamily`, the sizes
    those of :class:`~attn_tune.problem.AttentionProblem`. A mixed batch with fewer ``num_tokens`` than
    ``num_seqs * max_seqlen_q`` is answered like as many full-length sequences as have its tokens, and an uneven batch
    whose key lengths sum to ``total_seqlen_k`` (0: unknown) like as many of ``max_seqlen_k`` as have its keys: one long
    sequence among short ones then gets the segments that it needs.

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
    # 16.0 and True equal 16 and 1 as keys of a dictionary, so types are looked at on every call.
    if not (
        type(num_query_heads) is type(num_kv_heads) is type(head_size) is type(page_size) is type(value_head_size)
        is type(sliding_window) is type(num_seqs) is type(max_seqlen_q) is type(max_seqlen_k) is type(num_tokens)
        is type(total_seqlen_k) is int
        and type(causal) is type(sinks) is type(softcap) is type(alibi) is type(qq_bias) is bool
    ):  # fmt: skip
        sizes = {"num_seqs": num_seqs, "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
        given = dict(zip(_FAMILY_FIELDS, key[1:], strict=True)) | sizes
        given |= {"num_tokens": num_tokens, "total_seqlen_k": total_seqlen_k}
        return get_config(arch=arch, **{name: _plain(name, value) for name, value in given.items()})
    try:
        plan = _plans.get(key)
    except TypeError:  # a dtype or a name that cannot be a key is not valid either; _new_plan says which
        plan = None
    if plan is None:
        plan = _new_plan(key)
    if num_seqs < 1 or max_seqlen_q < 1 or max_seqlen_k < 1 or num_tokens or total_seqlen_k:
        # Raises for what is out of range.
        problem = AttentionProblem(_ANY_FAMILY, num_seqs, max_seqlen_q, max_seqlen_k, num_tokens)
        if total_seqlen_k < 0 or total_seqlen_k > num_seqs * max_seqlen_k:
            raise ValueError(f"total_seqlen_k must be from 0 to num_seqs * max_seqlen_k, not {total_seqlen_k}")
        total_keys = total_seqlen_k or num_seqs * max_seqlen_k
        num_seqs = min(num_seqs, -(-problem.num_tokens // max_seqlen_q), -(-total_keys // max_seqlen_k))
    return plan.find(num_seqs, max_seqlen_q, max_seqlen_k)


def reload_tables() -> None:
    """Forget every answer, so that the next calls read the tables, and warn, again: for after a table has changed."""
    _plans.clear()
    forget_warnings()


def _new_plan(key: tuple[Any, ...]) -> Plan | RulePlan:
    arch, *fields = key
    if arch is not None and not isinstance(arch, str):
        raise ValueError(f"arch must be a name or None, not {arch!r}")
    plan = make_plan(arch, AttentionFamily(*fields))
    _plans[key] = plan
    return plan


def _plain(name: str, value: Any) -> Any:
    """An integer or flag of another library, such as NumPy's, as Python's own. Raises ValueError naming it."""
    kind = _FAMILY_FIELDS.get(name, "int")
    if kind == "int" and not isinstance(value, bool):
        with suppress(TypeError):
            return index(value)
    if kind == "bool" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    if kind in ("int", "bool"):
        raise ValueError(f"{name} must be {'an integer' if kind == 'int' else 'true or false'}, not {value!r}")
    return value


_ANY_FAMILY = AttentionFamily(1, 1, 64)
_FAMILY_FIELDS = {field.name: str(field.type) for field in fields(AttentionFamily)}
