"""Both routes on the short cases, on Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from attn_tune.testing import CASES, PROPERTIES, SPLIT_PROPERTIES, Case, run_case
from attn_tune.testing.properties import Property

ROUTES = ("paged_2d", "paged_3d")
CONFIG = {"BLOCK_M": 16, "TILE_SIZE": 32, "NUM_SEGMENTS": 3, "num_warps": 4, "num_stages": 2}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("route", ROUTES)
def test_output_agrees_with_the_reference(interpret: Callable[..., Any], route: str, case: Case) -> None:
    assert interpret(run_case, case, route, CONFIG, "cpu").fault is None


@pytest.mark.parametrize("check", PROPERTIES, ids=lambda check: check.__name__)
@pytest.mark.parametrize("route", ROUTES)
def test_property_of_a_route(interpret: Callable[..., Any], route: str, check: Property) -> None:
    assert interpret(check, route, CONFIG, "cpu") is None


@pytest.mark.parametrize("check", SPLIT_PROPERTIES, ids=lambda check: check.__name__)
def test_property_of_the_split_route(interpret: Callable[..., Any], check: Property) -> None:
    assert interpret(check, "paged_3d", CONFIG, "cpu") is None
