"""How well a time is known, weakest first.

``rule``: a baseline rule chose the configuration and nobody looked further. ``modelled``: really compiled for the
architecture and ranked by the model. ``measured``: timed on the architecture, its output checked.
"""

from __future__ import annotations

from collections.abc import Iterable

EVIDENCE = ("rule", "modelled", "measured")


def weakest(kinds: Iterable[str]) -> str:
    """The weakest of some kinds of evidence. Raises ValueError when there is none or one is unknown."""
    return min(kinds, key=EVIDENCE.index)
