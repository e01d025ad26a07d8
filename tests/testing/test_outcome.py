"""The comparison with the reference sees each fault that it is there for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from attn_tune.kernels.inputs import AttentionInputs
from attn_tune.kernels.reference import reference_attention
from attn_tune.problem import AttentionFamily
from attn_tune.testing import Case, Outcome, compare, poison
from attn_tune.testing.case import Variation
from attn_tune.testing.variations import clamped_output, padded, padding_rows

# The output is a view with gaps, and has five rows that belong to no sequence.
CASE = Case(
    "small",
    AttentionFamily(4, 2, 64, q_dtype="fp16", kv_dtype="fp16"),
    (3, 0, 5),
    (40, 0, 9),
    {},
    (padding_rows, padded),
)


def outcome_of(case: Case, edit: Callable[[torch.Tensor], object]) -> Outcome:
    """The outcome of a perfect route whose output is then edited."""
    inputs: AttentionInputs = case.inputs("cpu")
    expected = reference_attention(inputs)
    poison(inputs)
    written = ~expected.isnan()
    inputs.out[written] = expected[written].clamp(-448, 448).to(inputs.out.dtype)
    edit(inputs.out)
    return compare(inputs, expected)


@pytest.mark.parametrize("variations", [(), (padded,), (padding_rows, padded), (clamped_output, padded)])
def test_a_perfect_output_has_no_fault(variations: tuple[Variation, ...]) -> None:
    assert outcome_of(replace(CASE, variations=variations), lambda out: None).fault is None


def miss_an_element(out: torch.Tensor) -> None:
    out[1, 2, 3] = float("nan")


def write_padding(out: torch.Tensor) -> None:
    out[-1, 0, 0] = 0.0


def write_a_gap(out: torch.Tensor) -> None:
    out.as_strided((1,), (1,), out.storage_offset() + 64)[0] = 1.0


def write_nan_into_a_gap(out: torch.Tensor) -> None:
    out.as_strided((1,), (1,), out.storage_offset() + 64)[0] = float("nan")


def shift_an_element(out: torch.Tensor) -> None:
    out[0, 0, 0] += 0.02


def add_noise(out: torch.Tensor) -> None:
    out.mul_(1 + 0.01 * torch.randn(out.shape, generator=torch.Generator().manual_seed(0)))


def shrink(out: torch.Tensor) -> None:
    out.mul_(0.999)


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (miss_an_element, "relative error inf"),
        (write_padding, "relative error inf"),
        (write_a_gap, "1 elements written beside the output"),
        (write_nan_into_a_gap, "1 elements written beside the output"),
        (shift_an_element, "an element differs"),
        (add_noise, "relative error "),
        (shrink, "bias -"),
    ],
)
def test_each_fault_is_named(edit: Callable[[torch.Tensor], object], fault: str) -> None:
    assert str(outcome_of(CASE, edit).fault).startswith(fault)


def test_the_scatter_of_a_mean_is_not_taken_for_a_bias() -> None:
    few = Outcome(error=4e-3, bias=4.2e-3, elements=25)
    assert few.fault is None
    assert replace(few, elements=10**8).fault is not None
