"""Run a dumped call from its JSON files alone, on Triton's interpreter, and compare it with the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from attn_tune.kernels.inputs import AttentionInputs
from attn_tune.kernels.launch import kernel_function
from attn_tune.kernels.reference import reference_attention, relative_error


def error_of_dumped_call(folder: Path) -> float:
    """The relative error of the output that the described launches write."""
    problem = json.loads((folder / "problem.json").read_text())
    launches = [json.loads((folder / name).read_text()) for name in problem["launches"]]
    tensors: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for launch in launches:
        for argument in launch["arguments"]:
            if "shape" in argument and argument["name"] not in tensors:
                tensors[argument["name"]] = _tensor(argument, problem["sizes"], generator)
    for launch in launches:
        arguments = {
            item["name"]: tensors[item["name"]] if "shape" in item else item["value"]
            for item in launch["arguments"]
            if "hidden" not in item
        }
        kernel_function(launch["source"])[tuple(launch["grid"])](**arguments)
    inputs = _inputs(tensors, problem, launches[0])
    return relative_error(inputs.out, reference_attention(inputs))


def _tensor(argument: dict[str, Any], sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor:
    name, shape = argument["name"].removesuffix("_ptr"), argument["shape"]
    dtype = getattr(torch, argument["dtype"])
    if name == "cu_seqlens_q":
        tensor = torch.arange(shape[0], dtype=dtype) * sizes["max_seqlen_q"]
    elif name == "seqused_k":
        tensor = torch.full(shape, sizes["max_seqlen_k"], dtype=dtype)
    elif name == "block_table":
        tensor = torch.arange(shape[0] * shape[1], dtype=dtype).view(shape)
    elif argument["role"] == "input":
        tensor = (torch.rand(shape, generator=generator) + (0.5 if name.endswith("scale") else -0.5)).to(dtype)
    else:
        tensor = torch.full(shape, float("nan")).to(dtype)
    assert list(tensor.stride()) == argument["strides"]
    return tensor


def _inputs(tensors: dict[str, torch.Tensor], problem: dict[str, Any], launch: dict[str, Any]) -> AttentionInputs:
    scalars = {item["name"]: item["value"] for item in launch["arguments"] if "value" in item}
    named = {name.removesuffix("_ptr"): tensor for name, tensor in tensors.items() if not name.startswith("partial")}
    return AttentionInputs(
        **named,
        max_seqlen_q=problem["sizes"]["max_seqlen_q"],
        max_seqlen_k=problem["sizes"]["max_seqlen_k"],
        softmax_scale=scalars["softmax_scale"],
        sliding_window=problem["family"]["sliding_window"],
    )
