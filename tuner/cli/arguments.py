"""Command-line options that several verbs share: an architecture, a model, a family's fields, the sizes of a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, Optional, get_type_hints

import typer

from ..models import find_model
from ..problem import AttentionFamily, dtype_name

Arch = Annotated[str, typer.Option("--arch", help="Architecture or marketing name, such as gfx950.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Model = Annotated[Optional[str], typer.Option("--model", help="A model of models.yaml, such as Llama-3-70B.")]  # noqa: UP045
Tp = Annotated[Optional[int], typer.Option("--tp", help="GPUs per copy of the model; all listed ones if left out.")]  # noqa: UP045

NumSeqs = Annotated[int, typer.Option("--num-seqs", min=1, help="Sequences in the batch.")]
MaxSeqlenQ = Annotated[int, typer.Option("--max-seqlen-q", min=1, help="Longest query, in tokens.")]
MaxSeqlenK = Annotated[int, typer.Option("--max-seqlen-k", min=1, help="Longest sequence with the new tokens.")]
NumTokens = Annotated[int, typer.Option("--num-tokens", min=0, help="Query tokens; 0: num_seqs * max_seqlen_q.")]

Shape = Mapping[str, Any]
"""Fields of a family as given on the command line, by field name; those left out are absent."""

_FIELD_HELP = {
    "num_query_heads": "Query heads of one GPU.",
    "num_kv_heads": "KV heads of one GPU.",
    "head_size": "Elements of one head.",
    "page_size": "Tokens per page of the KV cache.",
    "q_dtype": "bf16, fp16 or fp8_e4m3.",
    "kv_dtype": "bf16, fp16, fp8_e4m3 or int8.",
    "kv_scales": "none, per_tensor or per_token_head.",
    "kv_layout": "paged or shuffled.",
    "value_head_size": "If it differs from the head size.",
    "sliding_window": "Keys that a query sees; 0: all.",
    "causal": "A query sees no later keys.",
    "sinks": "One sink logit per head.",
    "softcap": "Logits capped with tanh.",
    "alibi": "ALiBi slopes.",
    "qq_bias": "Bias among the query tokens.",
}


def family_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Replace a verb's parameter ``shape`` by one option per field of a family (``--num-query-heads``, ``--sinks``).

    The verb is called with ``shape`` holding the options that were given: see :data:`Shape`.
    """
    types = get_type_hints(AttentionFamily)
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                Optional[types[field.name]],  # noqa: UP045 - typer reads it at run time
                typer.Option(help=_FIELD_HELP[field.name], rich_help_panel="Family", show_default=False),
            ],
        )
        for field in fields(AttentionFamily)
    ]
    hints = get_type_hints(verb, include_extras=True)
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, parameter in inspect.signature(verb).parameters.items()
        if name != "shape"
    ]

    @functools.wraps(verb)
    def call(**values: Any) -> Any:
        shape = {option.name: values.pop(option.name) for option in options}
        return verb(shape={name: value for name, value in shape.items() if value is not None}, **values)

    # Typer asks both: the signature for the order and the annotations for the types.
    call.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *options)}
    return call


def choose_families(model: str | None, tp: int | None, shape: Shape) -> list[AttentionFamily]:
    """The families of a model at a tensor-parallel degree (None: all listed), narrowed by the given family fields; or
    the one family that the fields spell out when there is no model.

    Raises:
        ValueError: the model or a field is unknown or missing, or nothing of the model matches.
    """
    if model is None:
        if tp is not None:
            raise ValueError("--tp needs --model")
        for field in fields(AttentionFamily):
            if field.default is MISSING and field.name not in shape:
                raise ValueError(f"{_flag(field.name)} is missing (or give --model)")
        return [AttentionFamily.from_dict(shape)]
    families = find_model(model).families(tp)
    left = matching(families, shape)
    if not left:
        wanted = ", ".join(f"{_flag(name)} {value}" for name, value in shape.items())
        raise ValueError(f"no attention layer of {model} has {wanted}; it has {'; '.join(map(str, families))}")
    return left


def matching(families: Sequence[AttentionFamily], shape: Shape) -> list[AttentionFamily]:
    """The families whose fields equal the given ones, dtypes in any of their spellings."""
    wanted = {name: dtype_name(value) if name.endswith("_dtype") else value for name, value in shape.items()}
    return [f for f in families if all(getattr(f, name) == value for name, value in wanted.items())]


def narrowing(families: Sequence[AttentionFamily], model: str | None = None, tp: int | None = None) -> list[str]:
    """The options that tell families apart, with their values: ``["--page-size 16|64", "--sinks or --no-sinks"]``.

    Given the model that they are of, its tensor-parallel sizes stand for the head counts.
    """
    texts = []
    sizes = find_model(model).tp if model is not None and tp is None else ()
    if len(sizes) > 1:
        texts.append(f"--tp {'|'.join(map(str, sizes))}")
    for field in fields(AttentionFamily):
        values = dict.fromkeys(getattr(family, field.name) for family in families)
        if len(values) < 2 or (texts and field.name in ("num_query_heads", "num_kv_heads")):
            continue
        if field.type == "bool":
            texts.append(f"{_flag(field.name)} or {_flag('no_' + field.name)}")
        else:
            texts.append(f"{_flag(field.name)} {'|'.join(map(str, values))}")
    return texts


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
