"""Routes by name."""

from __future__ import annotations

import pytest

from attn_tune.kernels import get_kernel, kernel_names, register, registry
from attn_tune.kernels.routes import PagedAttention


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the routes of other tests alone."""
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))


def test_both_routes_are_registered() -> None:
    assert kernel_names()[:2] == ("paged_2d", "paged_3d")
    assert get_kernel("paged_3d").name == "paged_3d"


@pytest.mark.usefixtures("own_registry")
def test_a_third_party_adds_its_kernel() -> None:
    mine = PagedAttention("mine", split=False)
    register(mine)
    assert get_kernel("mine") is mine
    assert kernel_names()[-1] == "mine"


@pytest.mark.usefixtures("own_registry")
def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match="'paged_2d' is already registered"):
        register(PagedAttention("paged_2d", split=False))


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'paged_4d' is unknown.*paged_2d, paged_3d"):
        get_kernel("paged_4d")
