"""What is asked: a family of attention calls and the sizes of one call.

Names follow flash-attention and vLLM. Nothing here imports torch or triton, so a serving engine can ask for a
configuration before either is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

Q_DTYPES = ("bf16", "fp16", "fp8_e4m3")
KV_DTYPES = ("bf16", "fp16", "fp8_e4m3", "int8")
KV_SCALES = ("none", "per_tensor", "per_token_head")
KV_LAYOUTS = ("paged", "shuffled")

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp8_e4m3": 1, "int8": 1, "fp32": 4}

# The spellings of torch and of serving engines' command lines.
_DTYPE_ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3",
    "fp8": "fp8_e4m3",
    "fp8_e4m3fn": "fp8_e4m3",
}


def dtype_name(dtype: object) -> str:
    """The project's name of a dtype given as a string or a torch dtype: ``torch.bfloat16`` -> ``"bf16"``.

    An unknown dtype comes back as its own text, for the caller to refuse by field name.
    """
    text = str(dtype).removeprefix("torch.").lower()
    return _DTYPE_ALIASES.get(text, text)


@dataclass(frozen=True)
class AttentionFamily:
    """The static part of a problem: what stays the same over a model's life on a server.

    Head counts are those of one GPU (after tensor parallelism). ``value_head_size`` 0 means the same as ``head_size``;
    ``sliding_window`` is the number of keys that a query sees, itself included, and 0 means no window. ``kv_scales``
    left empty becomes ``per_tensor`` for an 8-bit cache and ``none`` otherwise.

    Raises:
        ValueError: a field is out of range or inconsistent; the message names it.
    """

    num_query_heads: int
    num_kv_heads: int
    head_size: int
    page_size: int = 16
    q_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    kv_scales: str = ""
    kv_layout: str = "paged"
    value_head_size: int = 0
    sliding_window: int = 0
    causal: bool = True
    sinks: bool = False
    softcap: bool = False
    alibi: bool = False
    qq_bias: bool = False

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "q_dtype", dtype_name(self.q_dtype))
        put(self, "kv_dtype", dtype_name(self.kv_dtype))
        if not self.kv_scales:
            put(self, "kv_scales", "per_tensor" if DTYPE_BYTES.get(self.kv_dtype) == 1 else "none")
        if not self.value_head_size:
            put(self, "value_head_size", self.head_size)
        for name in ("num_query_heads", "num_kv_heads", "page_size"):
            _require_integer(name, getattr(self, name), 1)
        for name in ("head_size", "value_head_size"):
            _require_integer(name, getattr(self, name), 8, 1024)
        _require_integer("sliding_window", self.sliding_window, 0)
        _require_choice("q_dtype", self.q_dtype, Q_DTYPES)
        _require_choice("kv_dtype", self.kv_dtype, KV_DTYPES)
        _require_choice("kv_scales", self.kv_scales, KV_SCALES)
        _require_choice("kv_layout", self.kv_layout, KV_LAYOUTS)
        for name in ("causal", "sinks", "softcap", "alibi", "qq_bias"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, not {getattr(self, name)!r}")
        if self.num_query_heads % self.num_kv_heads:
            raise ValueError(
                f"num_query_heads ({self.num_query_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})"
            )
        if self.kv_dtype == "int8" and self.kv_scales == "none":
            raise ValueError("kv_scales must be per_tensor or per_token_head for kv_dtype int8")

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head (G)."""
        return self.num_query_heads // self.num_kv_heads

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V (and their per-token scales) that one cached token takes over all KV heads."""
        size = (self.head_size + self.value_head_size) * DTYPE_BYTES[self.kv_dtype]
        if self.kv_scales == "per_token_head":
            size += 2 * DTYPE_BYTES["fp32"]
        return size * self.num_kv_heads

    def to_dict(self) -> dict[str, Any]:
        """The fields that differ from their default, in declaration order: what tables and journals store."""
        default_scales = "per_tensor" if DTYPE_BYTES[self.kv_dtype] == 1 else "none"
        skipped = {"value_head_size": self.head_size, "kv_scales": default_scales, "kv_layout": "paged"}
        out: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            default = skipped.get(field.name, field.default)
            if field.name in _ALWAYS_STORED or value != default:
                out[field.name] = value
        return out

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AttentionFamily:
        """The inverse of :meth:`to_dict`. Raises ValueError naming an unknown, missing or bad field."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise ValueError(f"unknown problem field {name!r}; known fields: {', '.join(sorted(known))}")
        for name in ("num_query_heads", "num_kv_heads", "head_size"):
            if name not in values:
                raise ValueError(f"problem field {name} is missing")
        return cls(**values)

    def __str__(self) -> str:
        heads = f"{self.num_query_heads}/{self.num_kv_heads}/{self.head_size}"
        if self.value_head_size != self.head_size:
            heads += f"v{self.value_head_size}"
        text = f"{heads} page {self.page_size} q {self.q_dtype} kv {self.kv_dtype}"
        if self.kv_scales == "per_token_head":
            text += " per-token scales"
        if self.kv_layout != "paged":
            text += f" {self.kv_layout}"
        if self.sliding_window:
            text += f" window {self.sliding_window}"
        flags = [name for name in ("sinks", "softcap", "alibi", "qq_bias") if getattr(self, name)]
        if not self.causal:
            flags.append("not causal")
        return " ".join([text, *flags])


_ALWAYS_STORED = ("num_query_heads", "num_kv_heads", "head_size", "page_size", "q_dtype", "kv_dtype", "kv_scales")


@dataclass(frozen=True)
class AttentionProblem:
    """One call: a family and its sizes.

    ``max_seqlen_q`` and ``max_seqlen_k`` are the longest query and key lengths of the batch (the key length counts the
    new tokens). ``num_tokens`` is the number of query tokens in the batch; 0 means ``num_seqs * max_seqlen_q``.

    Raises:
        ValueError: a size is not a positive integer, or the sizes contradict each other; the message names it.
    """

    family: AttentionFamily
    num_seqs: int
    max_seqlen_q: int
    max_seqlen_k: int
    num_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("num_seqs", "max_seqlen_q", "max_seqlen_k"):
            _require_integer(name, getattr(self, name), 1)
        _require_integer("num_tokens", self.num_tokens, 0)
        if not self.num_tokens:
            object.__setattr__(self, "num_tokens", self.num_seqs * self.max_seqlen_q)
        if self.num_tokens > self.num_seqs * self.max_seqlen_q:
            raise ValueError(
                f"num_tokens ({self.num_tokens}) exceeds num_seqs * max_seqlen_q ({self.num_seqs * self.max_seqlen_q})"
            )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(num_seqs, max_seqlen_q, max_seqlen_k): the axes of a table."""
        return self.num_seqs, self.max_seqlen_q, self.max_seqlen_k

    @property
    def visible_keys(self) -> int:
        """Keys that the last query of a sequence attends to, after the window."""
        window = self.family.sliding_window
        return min(self.max_seqlen_k, window) if window else self.max_seqlen_k

    def to_dict(self) -> dict[str, Any]:
        """Family fields and sizes in one flat mapping."""
        sizes: dict[str, Any] = dict(zip(("num_seqs", "max_seqlen_q", "max_seqlen_k"), self.sizes, strict=True))
        if self.num_tokens != self.num_seqs * self.max_seqlen_q:
            sizes["num_tokens"] = self.num_tokens
        return self.family.to_dict() | sizes

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AttentionProblem:
        """The inverse of :meth:`to_dict`. Raises ValueError naming an unknown, missing or bad field."""
        size_names = ("num_seqs", "max_seqlen_q", "max_seqlen_k", "num_tokens")
        family = AttentionFamily.from_dict({k: v for k, v in values.items() if k not in size_names})
        for name in size_names[:3]:
            if name not in values:
                raise ValueError(f"problem field {name} is missing")
        return cls(family, *(values.get(name, 0) for name in size_names))

    def __str__(self) -> str:
        return f"{self.num_seqs} x {self.max_seqlen_q} @ {self.max_seqlen_k}, {self.family}"


def _require_integer(name: str, value: object, low: int, high: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be an integer {limit}, not {value!r}")


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
