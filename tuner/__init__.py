"""attn-tune: the best kernel and configuration for paged attention, per GPU architecture and shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["AttentionFamily", "AttentionProblem", "get_config", "unified_attention"]

if TYPE_CHECKING:
    from .problem import AttentionFamily, AttentionProblem
    from .runtime.dispatch import unified_attention
    from .runtime.lookup import get_config

_HOMES = {
    "AttentionFamily": "problem",
    "AttentionProblem": "problem",
    "get_config": "runtime.lookup",
    "unified_attention": "runtime.dispatch",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: a serving engine that only looks up must not pay for torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
