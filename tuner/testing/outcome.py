"""Run a route on a case and say how its output differs from the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..kernels import Config
from ..kernels.attend import INTERPRETED
from ..kernels.inputs import AttentionInputs
from ..kernels.launch import run
from ..kernels.reference import reference_attention, relative_error
from .case import Case
from .variations import E4M3_MAX, fill_with_nan


@dataclass(frozen=True)
class Tolerance:
    """``error`` and ``bias`` bound the relative L2 error and the relative mean error; an element may differ by
    ``absolute + relative * |expected|``."""

    error: float
    absolute: float
    relative: float
    bias: float = 5e-4


_TOLERANCES = {
    torch.float16: Tolerance(2e-3, 5e-3, 5e-3),
    # Triton's interpreter truncates what it stores as bf16, which is a bias of up to half a unit in the last place.
    torch.bfloat16: Tolerance(5e-3, 1.5e-2, 1e-2, bias=4e-3 if INTERPRETED.value else 5e-4),
    # One rounding to e4m3 is up to 2**-4 of a value. Values are in units of the output scale, hence the absolute part.
    torch.float8_e4m3fn: Tolerance(3e-2, 0.15, 7e-2, bias=2e-3),
}


@dataclass(frozen=True)
class Outcome:
    """How an output differs from the reference.

    ``error`` is the relative L2 error, infinite if a row was not written or one of padding was; ``bias`` the mean error
    in the direction of the expected values, as a share of their mean magnitude; ``worst`` the largest difference of an
    element over what the tolerance allows; ``strays`` counts elements written in the gaps between rows of the output.
    """

    error: float
    bias: float = 0.0
    worst: float = 0.0
    strays: int = 0
    elements: int = 1
    tolerance: Tolerance = _TOLERANCES[torch.bfloat16]

    @property
    def fault(self) -> str | None:
        """None within the tolerance, else what is wrong."""
        limit = self.tolerance
        if not self.error <= limit.error:
            return f"relative error {self.error:.1e} over {limit.error:.1e}"
        if not self.worst <= 1:
            return f"an element differs by {self.worst:.2f} times the tolerance"
        # The mean of independent errors is itself random: five standard deviations are no bias.
        allowed_bias = limit.bias + 5 * self.error / self.elements**0.5
        if not abs(self.bias) <= allowed_bias:
            return f"bias {self.bias:+.1e} over {allowed_bias:.1e}"
        if self.strays:
            return f"{self.strays} elements written beside the output"
        return None


def run_case(case: Case, route: str, config: Config, device: Any) -> Outcome:
    """Compute a case by a route and compare it with the reference. ``config`` is completed by the case's overrides."""
    inputs = case.inputs(device)
    poison(inputs)
    run(route, inputs, case.complete(config))
    return compare(inputs, reference_attention(inputs))


def poison(inputs: AttentionInputs) -> None:
    """Fill the output, and the memory between its rows, with NaN."""
    fill_with_nan(_storage(inputs.out))


def compare(inputs: AttentionInputs, expected: torch.Tensor) -> Outcome:
    """The outcome of a call whose output was poisoned before; ``expected`` is the reference's result."""
    out = inputs.out
    tolerance = _TOLERANCES[out.dtype]
    if out.dtype == torch.float8_e4m3fn:
        expected = expected.clamp(-E4M3_MAX, E4M3_MAX)
    strays = int(_written(_storage(out)).sum() - _written(out).sum())
    error = relative_error(out, expected)
    computed = ~expected.isnan()
    wanted = expected[computed]
    if error == float("inf") or not wanted.numel():
        return Outcome(error, strays=strays, tolerance=tolerance)
    difference = out.float()[computed] - wanted
    return Outcome(
        error=error,
        bias=float((difference * wanted.sign()).sum() / wanted.abs().sum().clamp_min(1e-30)),
        worst=float((difference.abs() / (tolerance.absolute + tolerance.relative * wanted.abs())).max()),
        strays=strays,
        elements=wanted.numel(),
        tolerance=tolerance,
    )


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    """All the memory behind a tensor, flat and in its dtype."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)


def _written(tensor: torch.Tensor) -> torch.Tensor:
    """Which elements no longer hold the NaN of :func:`poison`; results that are NaN hold another one."""
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int8) != -1
