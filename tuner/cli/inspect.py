"""`attn-tune inspect`: what the chosen config compiles to, and the compiled objects in a folder."""

from __future__ import annotations

import json as json_text
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console

from ..arch import ArchSpec, get_arch
from ..evaluate.dump import dump_launches, prepare_folder
from ..evaluate.estimate import estimate_resources
from ..evaluate.launches import CompiledLaunch, compile_launches
from ..evaluate.model import Prediction, predict, tiles_per_iteration
from ..kernels import Config, get_kernel
from ..problem import AttentionFamily, AttentionProblem
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
from .inspect_view import print_inspection

Route = Annotated[Optional[str], typer.Option("--route", help="Instead of the table's.")]  # noqa: UP045
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads it at run time
    typer.Option("--config", metavar="KEY=VALUE", help="Instead of the table's; repeat or join with commas."),
]
Dump = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--dump", metavar="DIR", help="Write objects, assembly and how to launch them to a new folder."),
]


@dataclass(frozen=True)
class Inspection:
    """A call, how it is computed, and what that compiles to; the attention kernel is the first launch."""

    arch: ArchSpec
    problem: AttentionProblem
    answer: Answer
    route: str
    config: Config
    launches: Sequence[CompiledLaunch]
    prediction: Prediction
    tiles_per_pass: int
    """Tiles that one pass of the inner loop covers: more than 1 when it is unrolled."""

    @property
    def overridden(self) -> bool:
        """Whether this is something else than the table's answer."""
        return self.route != self.answer.route or dict(self.config) != dict(self.answer.config)

    def occupancy(self, launch: CompiledLaunch) -> int:
        """Programs of a launch resident on one unit."""
        resources = launch.object.resources
        return self.arch.programs_per_unit(resources.num_warps, resources.registers, resources.lds_bytes)


@family_options
def inspect(
    arch: Arch,
    num_seqs: NumSeqs,
    max_seqlen_q: MaxSeqlenQ,
    max_seqlen_k: MaxSeqlenK,
    shape: Shape,
    model: Model = None,
    tp: Tp = None,
    num_tokens: NumTokens = 0,
    route: Route = None,
    config: Overrides = None,
    dump: Dump = None,
    json: Json = False,
) -> None:
    """Compile the chosen config: its registers, LDS and inner loop, and what the model makes of them."""
    spec = get_arch(arch)
    problem = AttentionProblem(_family(model, tp, shape), num_seqs, max_seqlen_q, max_seqlen_k, num_tokens)
    if dump is not None:
        prepare_folder(dump)
    found = inspect_problem(problem, spec, route, parse_overrides(config or []))
    files: list[Path] = []
    if dump is not None:
        files = dump_launches(problem, found.route, found.config, spec, dump, found.launches)
    if json:
        typer.echo(json_text.dumps(_to_dict(found, files), indent=2, allow_nan=False))
    else:
        print_inspection(found, files, Console(highlight=False))


def inspect_problem(
    problem: AttentionProblem, arch: ArchSpec, route: str | None, overrides: dict[str, int]
) -> Inspection:
    """Look the problem up, lay the overrides over the answer, and compile it.

    A route other than the table's gets, unless told, the NUM_SEGMENTS that the model prefers.

    Raises:
        ValueError: the route or a key of the config is unknown, or it does not compile.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no tuned config")  # the answer's source says so
        answer = get_config(
            arch=arch.name,
            **vars(problem.family),
            num_seqs=problem.num_seqs,
            max_seqlen_q=problem.max_seqlen_q,
            max_seqlen_k=problem.max_seqlen_k,
            num_tokens=problem.num_tokens,
        )
    kernel = get_kernel(route or answer.route)
    known = {*answer.config, *(name for config in kernel.space(problem.family, arch) for name in config)}
    for name in overrides:
        if name not in known | {"maxnreg"}:
            raise ValueError(f"--config: {kernel.name} has no {name!r}; it has {', '.join(sorted(known))}")
    config = kernel.complete({**answer.config, **overrides}, arch)
    if kernel.name != answer.route and "NUM_SEGMENTS" not in overrides:
        config["NUM_SEGMENTS"] = _segments(problem, kernel.name, config, arch)
    launches = compile_launches(problem, kernel.name, config, arch)
    work, resources = kernel.work(problem, config), launches[0].object.resources
    prediction = predict(work, resources, arch)
    tiles_per_pass = tiles_per_iteration(work, resources, arch)
    return Inspection(arch, problem, answer, kernel.name, config, launches, prediction, tiles_per_pass)


def parse_overrides(texts: Sequence[str]) -> dict[str, int]:
    """``["BLOCK_M=64", "num_warps=2,num_stages=1"]`` as a config. Raises ValueError naming what is malformed."""
    out: dict[str, int] = {}
    for text in (part for item in texts for part in item.split(",")):
        name, _, value = text.partition("=")
        try:
            out[name.strip()] = int(value)
        except ValueError:
            raise ValueError(f"--config: {text!r} is not KEY=INTEGER, such as BLOCK_M=64") from None
    return out


def _segments(problem: AttentionProblem, route: str, config: Config, arch: ArchSpec) -> int:
    kernel = get_kernel(route)

    def estimated_us(segments: int) -> float:
        full = {**config, "NUM_SEGMENTS": segments}
        work = kernel.work(problem, full)
        return predict(work, estimate_resources(work, problem.family, full, arch), arch).us

    return min(kernel.segments(problem, config, arch, 2), key=estimated_us, default=1)


def _family(model: str | None, tp: int | None, shape: Shape) -> AttentionFamily:
    families = choose_families(model, tp, shape)
    if len(families) > 1:
        options = ", ".join(narrowing(families, model, tp))
        raise ValueError(f"{len(families)} kinds of layer and cache match; choose with {options}")
    return families[0]


def _to_dict(found: Inspection, files: Sequence[Path]) -> dict[str, Any]:
    us = found.prediction.us
    return {
        "arch": found.arch.name,
        "problem": found.problem.to_dict(),
        "route": found.route,
        "config": dict(found.config),
        "overridden": found.overridden,
        "answer": {
            "route": found.answer.route,
            "config": dict(found.answer.config),
            "source": found.answer.source,
            "evidence": found.answer.evidence,
            "us": found.answer.us,
            "chain": list(found.answer.chain),
        },
        "prediction": {
            "us": us if math.isfinite(us) else None,
            "programs_per_unit": found.prediction.occupancy,
            "terms_us": dict(found.prediction.terms),
        },
        "tiles_per_pass": found.tiles_per_pass,
        "launches": [
            {
                "kernel": launch.object.name,
                "grid": list(launch.launch.grid),
                "programs_per_unit": found.occupancy(launch),
                "resources": launch.object.resources.to_dict(),
            }
            for launch in found.launches
        ],
        "files": [str(path) for path in files],
    }
