"""One evaluated configuration: the record that journals keep and tables are built from."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from ..arch import canonical_arch
from ..problem import AttentionFamily
from .evidence import EVIDENCE

STATUSES = (
    "ok",
    "pruned",
    "compile_error",
    "out_of_resources",
    "wrong_result",
    "invalid_time",
    "timeout",
    "crash",
)


@dataclass(frozen=True)
class Trial:
    """One configuration of one kernel, tried on one architecture. Failures are trials too.

    ``sizes`` is (num_seqs, max_seqlen_q, max_seqlen_k); None marks a compile-only trial, whose predicted times follow
    from ``resources`` and are therefore not stored. ``us`` is microseconds of one call, ``spread`` its relative spread
    over ``samples`` samples, ``error`` the relative L2 error against the reference. ``environment`` names the versions
    (``triton``, ``kernels``, ``policy``, ``attn_tune``, ...) that the trial ran under.

    A trial that claims to be ok with a time that is not finite and positive becomes ``invalid_time``, one with an error
    that is not finite becomes ``wrong_result``: neither can ever be selected.

    Raises:
        ValueError: a field is out of range; the message names it.
    """

    family: AttentionFamily
    sizes: tuple[int, int, int] | None
    kernel: str
    config: Mapping[str, int]
    arch: str
    compute_units: int
    status: str
    evidence: str
    us: float | None = None
    spread: float | None = None
    samples: int = 0
    error: float | None = None
    message: str = ""
    resources: Mapping[str, Any] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.family, AttentionFamily):
            raise ValueError(f"family must be an AttentionFamily, not {self.family!r}")
        if self.sizes is not None and (len(self.sizes) != 3 or not all(_is_integer(size, 1) for size in self.sizes)):
            raise ValueError(f"sizes must be three positive integers or None, not {self.sizes!r}")
        if not all(isinstance(name, str) and _is_integer(value, 0) for name, value in self.config.items()):
            raise ValueError(f"config must map names to integers from 0 on, not {dict(self.config)!r}")
        if not all(isinstance(text, str) for pair in self.environment.items() for text in pair):
            raise ValueError(f"environment must map names to strings, not {dict(self.environment)!r}")
        for name in ("kernel", "arch", "message"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a string, not {getattr(self, name)!r}")
        for name, low in (("compute_units", 1), ("samples", 0)):
            if not _is_integer(getattr(self, name), low):
                raise ValueError(f"{name} must be an integer from {low} on, not {getattr(self, name)!r}")
        for name, choices in (("status", STATUSES), ("evidence", EVIDENCE)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        put = object.__setattr__
        put(self, "sizes", None if self.sizes is None else tuple(self.sizes))
        put(self, "arch", canonical_arch(self.arch))
        self._refuse_impossible_numbers()

    def _refuse_impossible_numbers(self) -> None:
        """Numbers that mean nothing become None, so that they neither win nor break JSON; the message keeps them."""
        put = object.__setattr__
        given = {name: getattr(self, name) for name in ("us", "spread", "error")}
        for name, value in given.items():
            number = _as_float(name, value)
            bad = number is not None and (not math.isfinite(number) or number < 0 or (name == "us" and number == 0))
            put(self, name, None if bad else number)
            if bad:
                put(self, "message", "; ".join(filter(None, [self.message, f"{name} was {number}"])))
        if self.status == "ok" and self.sizes is not None and self.us is None:
            put(self, "status", "invalid_time")
        if self.status == "ok" and given["error"] is not None and self.error is None:
            put(self, "status", "wrong_result")

    @cached_property
    def identity(self) -> str:
        """A stable hash, 16 hex digits, of what makes a rerun of this trial redundant.

        That is: family, sizes, kernel, config, arch and compute units, Triton version, kernel sources and policy.
        """
        versions = [self.environment.get(name, "") for name in ("triton", "kernels", "policy")]
        key = [self.family.to_dict(), self.sizes, self.kernel, dict(self.config), self.arch, self.compute_units]
        text = json.dumps([*key, versions], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """One line of JSON without its line end. Raises ValueError when ``resources`` is not JSON."""
        values: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        values["family"] = self.family.to_dict()
        for name in ("config", "environment", "resources"):
            values[name] = None if values[name] is None else dict(values[name])
        try:
            return json.dumps(values, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"resources cannot be stored: {error}") from error

    @classmethod
    def from_json(cls, line: str) -> Trial:
        """The inverse of :meth:`to_json`. Raises ValueError naming an unknown, missing or bad field."""
        try:
            values = json.loads(line)
        except RecursionError as error:
            raise ValueError("a trial is nested too deeply") from error
        if not isinstance(values, dict):
            raise ValueError("a trial must be a JSON object")
        known = [item.name for item in fields(cls)]
        for problem, names in (("unknown", values.keys() - set(known)), ("missing", set(known) - values.keys())):
            if names:
                raise ValueError(f"{problem} trial field: {', '.join(sorted(names))}")
        for name in ("family", "config", "environment", "resources"):
            if not isinstance(values[name], dict) and (name != "resources" or values[name] is not None):
                raise ValueError(f"{name} must be a JSON object, not {values[name]!r}")
        if not isinstance(values["sizes"], list | None):
            raise ValueError(f"sizes must be a list or null, not {values['sizes']!r}")
        return cls(**values | {"family": AttentionFamily.from_dict(values["family"])})


def _is_integer(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _as_float(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number or None, not {value!r}")
    return float(value)
