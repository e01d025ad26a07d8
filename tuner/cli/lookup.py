"""`attn-tune lookup`: what the tables answer for a call, and how the answer was found."""

from __future__ import annotations

import json as json_text
import sys
import warnings
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from ..models import models_of
from ..problem import AttentionProblem
from ..runtime.answer import Answer
from ..runtime.lookup import get_config
from .arguments import (
    Arch,
    Json,
    MaxSeqlenK,
    MaxSeqlenQ,
    Model,
    NumSeqs,
    NumTokens,
    Shape,
    Tp,
    choose_families,
    family_options,
    narrowing,
)

SOURCES = {
    "exact": "the table has this family",
    "nearest": "the table's nearest family answers for this one",
    "rule": "no table answers; this is the default rule's choice",
}
EVIDENCE_MEANS = {
    "measured": "timed on this arch, its output checked",
    "modelled": "compiled for this arch and ranked by a model, not timed",
    "rule": "a rule's choice, neither compiled here nor timed",
}


@family_options
def lookup(
    arch: Arch,
    num_seqs: NumSeqs,
    max_seqlen_q: MaxSeqlenQ,
    max_seqlen_k: MaxSeqlenK,
    shape: Shape,
    model: Model = None,
    tp: Tp = None,
    num_tokens: NumTokens = 0,
    json: Json = False,
) -> None:
    """Look up the route and config of a call, and show the chain that led to them.

    Give --model, or at least --num-query-heads, --num-kv-heads and --head-size. A model with several kinds of layer,
    caches or page sizes gets an answer for each that the other options leave.
    """
    families = choose_families(model, tp, shape)
    problems = [AttentionProblem(family, num_seqs, max_seqlen_q, max_seqlen_k, num_tokens) for family in families]
    answers = [(problem, _ask(arch, problem)) for problem in problems]
    if json:
        found = [_to_dict(problem, answer) for problem, answer in answers]
        typer.echo(json_text.dumps({"arch": arch, "answers": found}, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    for number, (problem, answer) in enumerate(answers):
        if number:
            console.print()
        _print(problem, answer, console)
    if len(families) > 1:
        options = ", ".join(narrowing(families, model, tp))
        console.print(Text(f"\n{len(families)} kinds of layer and cache match; choose with {options}", style="dim"))


def _ask(arch: str, problem: AttentionProblem) -> Answer:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = get_config(
            arch=arch,
            **vars(problem.family),
            num_seqs=problem.num_seqs,
            max_seqlen_q=problem.max_seqlen_q,
            max_seqlen_k=problem.max_seqlen_k,
            num_tokens=problem.num_tokens,
        )
    for warning in caught:
        if str(warning.message).startswith("ignoring a table's rows"):  # the chain tells the others
            print(f"attn-tune: warning: {warning.message}", file=sys.stderr)
    return answer


def _print(problem: AttentionProblem, answer: Answer, console: Console) -> None:
    names = ", ".join(models_of(problem.family))
    console.print(Text(f"{problem}" + (f"  ({names})" if names else ""), style="bold"))
    other = " for that family" if answer.source == "nearest" else ""
    _line(console, "route", answer.route, "bold cyan")
    _line(console, "config", ", ".join(f"{name} {value}" for name, value in answer.config.items()))
    _line(console, "source", f"{answer.source}: {SOURCES[answer.source]}", "" if answer.source == "exact" else "yellow")
    _line(console, "evidence", f"{answer.evidence}{other}: {EVIDENCE_MEANS[answer.evidence]}")
    if answer.us is not None:
        kind = "timed" if answer.evidence == "measured" else "predicted"
        _line(console, "us", f"{answer.us:g} {kind}{other}, at the largest size that the row was tuned for")
    steps = answer.explain().splitlines()
    if problem.num_tokens != problem.num_seqs * problem.max_seqlen_q:
        full = -(-problem.num_tokens // problem.max_seqlen_q)
        steps.insert(1, f"{problem.num_tokens} tokens: looked up like {full} sequences of {problem.max_seqlen_q}")
    for number, step in enumerate(steps):
        _line(console, "" if number else "chain", step, "yellow" if step.startswith(("stale", "beyond")) else "")


def _line(console: Console, label: str, text: str, style: str = "") -> None:
    console.print(Text.assemble((f"  {label:10}", "dim"), (text, style)))


def _to_dict(problem: AttentionProblem, answer: Answer) -> dict[str, Any]:
    return {
        "problem": problem.to_dict(),
        "models": models_of(problem.family),
        "route": answer.route,
        "config": dict(answer.config),
        "source": answer.source,
        "evidence": answer.evidence,
        "us": answer.us,
        "beyond": list(answer.beyond),
        "stale": answer.stale,
        "built_with": dict(answer.built_with),
        "chain": answer.explain().splitlines(),
    }
