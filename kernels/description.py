"""What the kernels' arguments hold and what comes out, in words and formulas: for people who launch them by hand."""

from __future__ import annotations

from dataclasses import dataclass

from ..problem import AttentionFamily, AttentionProblem
from .routes import padded_head_size


@dataclass(frozen=True)
class Meaning:
    """One argument: ``role`` is input, output, workspace or scalar; ``contents`` is what to put there, if not free."""

    role: str
    text: str
    contents: str = ""


def argument_meanings(problem: AttentionProblem) -> dict[str, Meaning]:
    """The meaning of every argument of the attention kernel and the reduce, by its name, for one problem."""
    return _tensors(problem) | _SCALARS


def _tensors(problem: AttentionProblem) -> dict[str, Meaning]:
    family = problem.family
    max_pages = -(-problem.max_seqlen_k // family.page_size)
    pages = problem.num_seqs * max_pages
    cache = f"at least {pages} pages if no two sequences share one; slots past a sequence's end may hold anything"
    k_axes, v_axes = "page, slot in page, KV head, dim", "page, slot in page, KV head, dim"
    if family.kv_layout == "shuffled":
        k_axes = "page, KV head, dim / x, slot in page, dim % x"
        v_axes = "page, KV head, slot in page / x, dim, slot in page % x"
    if family.kv_scales == "per_token_head":
        scale = "scales [page, KV head, slot in page] that each cached token and head is multiplied by"
    else:
        scale = "one scale that every cached element is multiplied by"
    padded = padded_head_size(family.value_head_size)
    empty = "a segment without keys leaves its entry as it was"
    return {
        "q_ptr": Meaning("input", "queries [token, query head, dim], the sequences one after the other"),
        "k_ptr": Meaning("input", f"key cache [{k_axes}]", cache),
        "v_ptr": Meaning("input", f"value cache [{v_axes}]", cache),
        "out_ptr": Meaning(
            "output", "result [token, query head, dim]; rows of tokens of no sequence stay as they were"
        ),
        "partial_ptr": Meaning(
            "workspace",
            f"partial results [token, query head, segment, dim padded to {padded}], not normalised; {empty}",
        ),
        "partial_max_ptr": Meaning(
            "workspace", "largest logit in base 2 of each partial [token, query head, segment]; -inf: no keys"
        ),
        "partial_sum_ptr": Meaning(
            "workspace", f"sum of exponentials of each partial [token, query head, segment]; {empty}"
        ),
        "block_table_ptr": Meaning(
            "input",
            "page in the cache of each sequence's n-th page [sequence, n]",
            f"row s: the pages of sequence s in order, such as {max_pages} * s + n; those past its last are unused",
        ),
        "cu_seqlens_q_ptr": Meaning(
            "input", "first token of each sequence, and the number of tokens at the end", _query_starts(problem)
        ),
        "seqused_k_ptr": Meaning(
            "input",
            "keys of each sequence, its new tokens counted",
            f"from 1 to {problem.max_seqlen_k}; {problem.max_seqlen_k} everywhere for equal lengths",
        ),
        "q_scale_ptr": Meaning("input", "one scale that every query element is multiplied by"),
        "k_scale_ptr": Meaning("input", f"of the keys: {scale}"),
        "v_scale_ptr": Meaning("input", f"of the values: {scale}"),
        "out_scale_ptr": Meaning("input", "one scale that the output is divided by before its conversion"),
        "sinks_ptr": Meaning("input", "one logit per query head that takes part in the softmax and has no value"),
        "alibi_slopes_ptr": Meaning("input", "one slope per query head"),
        "qq_bias_ptr": Meaning("input", "added to the logits of a sequence's new tokens among each other [query, key]"),
    }


def _query_starts(problem: AttentionProblem) -> str:
    if problem.num_tokens == problem.num_seqs * problem.max_seqlen_q:
        return f"s * {problem.max_seqlen_q} for s = 0 ... {problem.num_seqs}"
    return f"from 0 to {problem.num_tokens}, in steps of at most {problem.max_seqlen_q}"


def _scalar(text: str) -> Meaning:
    return Meaning("scalar", text)


def _strides(name: str, of: str, axes: dict[str, str]) -> dict[str, Meaning]:
    return {
        f"stride_{name}_{axis}": _scalar(f"elements from one {text} to the next in {of}") for axis, text in axes.items()
    }


_CACHE_AXES = {"page": "page", "slot": "slot of a page", "head": "KV head", "dim": "element of a head"}
_TOKEN_AXES = {"token": "token", "head": "query head", "dim": "element of a head"}
_SCALARS = {
    "softmax_scale": _scalar("factor of the logits"),
    "softcap": _scalar("logits become softcap * tanh(logit / softcap); unused without the SOFTCAP constant"),
    "num_kv_heads": _scalar("KV heads"),
    "num_query_heads": _scalar("query heads"),
    "num_seqs": _scalar("sequences"),
    "blocks_per_seq": _scalar("query blocks of each sequence; 0: packed, sequence s at cu_seqlens_q[s] // BLOCK_Q + s"),
    "num_blocks": _scalar("query blocks of the grid, whose x is num_kv_heads times as long"),
    "num_segments": _scalar("KV segments of each query block"),
    "qq_bias_len": _scalar("keys of a row of qq_bias"),
    **_strides("q", "q", _TOKEN_AXES),
    **_strides("k", "k", _CACHE_AXES),
    **_strides("v", "v", _CACHE_AXES),
    **_strides("scale", "the per-token scales", _CACHE_AXES),
    **_strides("out", "out", _TOKEN_AXES),
    "stride_block_table": _scalar("elements from one sequence's row to the next in block_table"),
    "stride_qq_bias": _scalar("elements from one query's row to the next in qq_bias"),
}


def reference_formulas(family: AttentionFamily) -> list[str]:
    """What the output must be, one step a line, in the arguments' names without ``_ptr``.

    This is ``kernels/reference.py`` in formulas; ``G`` is the number of query heads per KV head.
    """
    scale = {"none": ("", ""), "per_tensor": (" * k_scale", " * v_scale")}.get(
        family.kv_scales, (" * k_scale[page, h, slot]", " * v_scale[page, h, slot]")
    )
    k, v = "k[page, slot, h, :]", "v[page, slot, h, :]"
    if family.kv_layout == "shuffled":
        k, v = "k[page, h, :, slot, :] (flattened)", "v[page, h, slot // x, :, slot % x]"
    lines = [
        "sequence s: first = cu_seqlens_q[s]; n = cu_seqlens_q[s + 1] - first; L = seqused_k[s]; offset = L - n",
        f"key j: page = block_table[s, j // {family.page_size}]; slot = j % {family.page_size}",
    ]
    if family.kv_layout == "shuffled":
        lines.append("x = elements in 16 bytes of the cache")
    query = "q[first + i, hq, :]" + (" * q_scale" if family.q_dtype == "fp8_e4m3" else "")
    lines += [
        f"K[j, h, :] = {k}{scale[0]}; V[j, h, :] = {v}{scale[1]}",
        f"h = hq // {family.group_size} for query head hq",
        f"logit[i, j] = softmax_scale * dot({query}, K[j, h, :])",
    ]
    if family.softcap:
        lines.append("logit[i, j] = softcap * tanh(logit[i, j] / softcap)")
    if family.alibi:
        lines.append("logit[i, j] += alibi_slopes[hq] * (j - offset)")
    if family.qq_bias:
        lines.append("logit[i, j] += qq_bias[i, j - offset] where 0 <= j - offset < qq_bias_len")
    if family.causal:
        window = f" and offset + i - j < {family.sliding_window}" if family.sliding_window else ""
        lines.append(f"logit[i, j] = -inf unless j <= offset + i{window}")
    total = "sum_j exp(logit[i, j])" + (" + exp(sinks[hq])" if family.sinks else "")
    lines.append(f"out[first + i, hq, :] = sum_j exp(logit[i, j]) * V[j, h, :] / ({total})")
    return lines
