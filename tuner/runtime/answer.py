"""The answer to a lookup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """Which kernel to run, how, and how well that is known.

    ``source`` is ``"exact"`` (the table knows the family), ``"nearest"`` (the table's nearest family answers) or
    ``"rule"`` (no table does). ``evidence`` is that of the row: ``measured``, ``modelled`` or ``rule``. ``us`` is the
    row's time in microseconds at its largest tuned size, None for a rule. ``beyond`` names the sizes asked for that are
    larger than any that was tuned. ``chain`` is how the answer came about, one step a line.
    """

    route: str
    config: Mapping[str, int]
    source: str
    evidence: str
    us: float | None
    chain: tuple[str, ...]
    built_with: Mapping[str, str]
    beyond: tuple[str, ...] = ()

    def explain(self) -> str:
        """The chain that led to the answer, as text."""
        steps = [*self.chain]
        if self.stale:
            steps.append(f"stale: the table was built with Triton {self.built_with['triton']}, not the one installed")
        return "\n".join(steps)

    @property
    def stale(self) -> bool:
        """Whether the table was built with another Triton than the installed one; asks the installation's metadata."""
        from importlib.metadata import PackageNotFoundError, version

        built = self.built_with.get("triton")
        try:
            return built is not None and built != version("triton")
        except PackageNotFoundError:
            return False
