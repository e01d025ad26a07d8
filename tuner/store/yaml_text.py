"""YAML values written so that every reader gets back what was meant.

YAML 1.1 reads ``1e-3`` as a string, ``on`` as true and ``012`` as ten, and 1.2 disagrees: numbers are written without
an exponent, and text is quoted wherever either version could take it for something else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

Interval = tuple[int, float]
"""(low, high), both included; ``math.inf`` leaves it open."""

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_NUMBER_LIKE = re.compile(r"[0-9eE_.+-]+|0[xobXOB].*")
_VERSION = re.compile(r"\d+(\.\d+){2,}")
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"))


def yaml_scalar(value: object) -> str:
    """A bool, an int or text. Raises ValueError for text with characters that do not print."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if not text.isprintable():
        raise ValueError(f"a table cannot hold the name {text!r}")
    number_like = _NUMBER_LIKE.fullmatch(text) and not _VERSION.fullmatch(text)
    if _PLAIN.fullmatch(text) and not number_like and text.lower() not in _WORDS:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def yaml_mapping(values: Mapping[int, object] | Mapping[str, object]) -> str:
    """A mapping of scalars on one line."""
    return "{" + ", ".join(f"{yaml_scalar(name)}: {yaml_scalar(value)}" for name, value in values.items()) + "}"


def yaml_interval(interval: Interval) -> str:
    """``[1, 64]`` or ``[65, .inf]``."""
    return "[" + ", ".join(".inf" if end == math.inf else f"{end:.0f}" for end in interval) + "]"


def yaml_number(value: float) -> str:
    """A finite number without an exponent. Raises ValueError when it is not finite."""
    if not math.isfinite(value):
        raise ValueError(f"a table cannot hold {value}")
    from decimal import Decimal  # not needed to read a table, and slow to import

    return format(Decimal(repr(value)), "f")
