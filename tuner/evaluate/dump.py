"""Write the compiled objects of a call to a folder, with all that is needed to launch and check them elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .. import __version__
from ..arch import ArchSpec
from ..kernels import Config, get_kernel
from ..problem import AttentionProblem
from .abi import Argument, buffer_bytes, kernel_arguments
from .launches import CompiledLaunch, compile_launches
from .source import kernel_source_hash

SCHEMA = 1  # of the JSON files
_POINTER_RANGE_BYTES = {32: 2**31 - 1}  # Triton: offsets fit 32 bits and stay under 2 GiB


def dump_launches(
    problem: AttentionProblem,
    route: str,
    config: Config,
    arch: ArchSpec,
    folder: Path,
    compiled: Sequence[CompiledLaunch] | None = None,
) -> list[Path]:
    """Write object (``.hsaco``, ``.cubin``), assembly and a JSON file of every launch of a call, and ``problem.json``.

    The files are the same from run to run with the same versions of everything. ``problem.json`` comes last: a folder
    without it is incomplete. docs/inspect.md describes the contents.

    Args:
        folder: made if it does not exist; one that exists must be empty.
        compiled: the result of :func:`~attn_tune.evaluate.launches.compile_launches` for the same call, if at hand.

    Returns:
        The files, those of the first launch first.

    Raises:
        ValueError: the route does not compute the problem, or the config does not compile.
        OSError: the folder is not empty, not a folder, or cannot be written.
    """
    prepare_folder(folder)
    launches = compile_launches(problem, route, config, arch) if compiled is None else compiled
    written: list[Path] = []
    names: list[str] = []
    for index, item in enumerate(launches):
        stem = f"{index}-{item.object.name}"
        contents = _object_files(stem, item)
        names.append(f"{stem}.json")
        described = _describe_launch(problem, item, arch, sorted(contents))
        for name, content in {**contents, names[-1]: _json(described)}.items():
            written.append(folder / name)
            written[-1].write_bytes(content)
    written.append(folder / "problem.json")
    written[-1].write_bytes(_json(_describe_problem(problem, route, config, arch, names)))
    return written


def prepare_folder(folder: Path) -> None:
    """Make sure that a folder is there, empty and writable, so that no compilation is in vain.

    Raises:
        OSError: it is not; the message names it.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        empty = not any(folder.iterdir())
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise type(error)(f"cannot write to folder {folder}: {error.strerror}") from error
    if not empty:
        raise FileExistsError(f"folder {folder} is not empty")


def _object_files(stem: str, item: CompiledLaunch) -> dict[str, bytes]:
    """The object and its assembly, by file name."""
    asm, binary = item.object.asm, item.object.binary
    if "amdgcn" in asm:
        return {f"{stem}.hsaco": binary, f"{stem}.amdgcn": asm["amdgcn"].encode()}
    from .sass import disassemble

    return {f"{stem}.cubin": binary, f"{stem}.ptx": asm["ptx"].encode(), f"{stem}.sass": disassemble(binary).encode()}


def _describe_launch(
    problem: AttentionProblem, item: CompiledLaunch, arch: ArchSpec, files: Sequence[str]
) -> dict[str, Any]:
    from ..kernels.description import argument_meanings

    metadata, target = item.metadata, item.object.target
    arguments = kernel_arguments(item.launch, item.specialization, item.object.asm)
    ours = [argument for argument in arguments if argument.hidden != "runtime"]
    meanings = argument_meanings(problem)
    return {
        "schema": SCHEMA,
        "kernel": item.object.name,
        "source": item.launch.kernel,
        "files": list(files),
        "target": {"backend": target.backend, "arch": arch.name, "wave_size": target.warp_size},
        "grid": list(item.launch.grid),
        "threads_per_block": [item.object.num_warps * target.warp_size, 1, 1],
        "num_warps": item.object.num_warps,
        "num_ctas": metadata.get("num_ctas", 1),
        "lds_bytes": item.object.lds_bytes,
        "scratch": {
            "private_bytes_per_thread": item.object.resources.scratch_bytes,
            "global_bytes_per_block": metadata.get("global_scratch_size") or 0,
            "profile_bytes_per_block": metadata.get("profile_scratch_size") or 0,
        },
        "cooperative_grid": bool(metadata.get("launch_cooperative_grid")),
        "programmatic_dependent_launch": bool(metadata.get("launch_pdl")),
        "kernarg_bytes": buffer_bytes(arguments),
        "arguments": [_describe_argument(argument, meanings) for argument in ours],
        "runtime_arguments": [
            {"name": argument.name, "offset": argument.offset, "size": argument.size}
            for argument in arguments
            if argument.hidden == "runtime"
        ],
    }


def _describe_argument(argument: Argument, meanings: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"name": argument.name, "type": argument.type, "passed": argument.passed}
    if argument.passed:
        out |= {"offset": argument.offset, "size": argument.size}
    if argument.hidden:
        out |= {"hidden": argument.hidden}
    value = argument.value
    if hasattr(value, "stride"):  # a tensor
        out |= {
            "shape": list(value.shape),
            "strides": list(value.stride()),
            "dtype": str(value.dtype).removeprefix("torch."),
        }
    else:
        out |= {"value": value if isinstance(value, (bool, int, float, type(None))) else str(value)}
    if "tt.divisibility" in argument.attributes:
        out |= {"divisible_by": argument.attributes["tt.divisibility"]}
    if limit := _POINTER_RANGE_BYTES.get(argument.attributes.get("tt.pointer_range", 0)):
        out |= {"max_bytes": limit}
    if meaning := meanings.get(argument.name):
        out |= {"role": meaning.role, "meaning": meaning.text}
        if meaning.contents and value is not None:
            out |= {"contents": meaning.contents}
    return out


def _describe_problem(
    problem: AttentionProblem, route: str, config: Config, arch: ArchSpec, launches: Sequence[str]
) -> dict[str, Any]:
    from ..kernels.description import reference_formulas

    family = problem.family
    return {
        "schema": SCHEMA,
        "arch": arch.name,
        "route": route,
        "config": get_kernel(route).complete(config, arch),
        "family": vars(family),
        "sizes": {
            "num_seqs": problem.num_seqs,
            "max_seqlen_q": problem.max_seqlen_q,
            "max_seqlen_k": problem.max_seqlen_k,
            "num_tokens": problem.num_tokens,
        },
        "launches": list(launches),
        "order": "one after the other on one stream",
        "reference": reference_formulas(family),
        "tolerance": {
            "relative_l2_error": 5e-3 if family.kv_scales == "none" else 1e-2,
            "formula": "norm(out - reference) / norm(reference) over all rows, the reference in fp32 on the "
            "dequantised cache",
        },
        "built_with": {
            "attn_tune": __version__,
            "triton": version("triton"),
            "kernels": kernel_source_hash(),
        },
    }


def _json(values: Mapping[str, Any]) -> bytes:
    return (_text(values, "") + "\n").encode()


def _text(value: Any, indent: str) -> str:
    """JSON with an object that holds no other object, such as an argument, on a line of its own."""
    deeper = indent + "  "
    if isinstance(value, Mapping) and (not indent or any(isinstance(item, Mapping) for item in value.values())):
        lines = [f"{deeper}{json.dumps(name)}: {_text(item, deeper)}" for name, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, (Mapping, str)) for item in value):
        lines = [deeper + _text(item, deeper) for item in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)
