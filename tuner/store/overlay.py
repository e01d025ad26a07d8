"""Where tables are found, and which one is believed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from ..arch import canonical_arch
from ..problem import AttentionFamily
from .evidence import EVIDENCE
from .table import FamilyTable


def prefer(shipped: FamilyTable, user: FamilyTable) -> FamilyTable:
    """The table to believe for one family: the better evidence (of its weakest row), then the user's."""
    return shipped if EVIDENCE.index(shipped.evidence) > EVIDENCE.index(user.evidence) else user


def merge_families(shipped: Iterable[FamilyTable], user: Iterable[FamilyTable]) -> tuple[FamilyTable, ...]:
    """Shipped tables with the user's laid over them by :func:`prefer`; families that only the user has come last."""
    merged: dict[AttentionFamily, FamilyTable] = {table.family: table for table in shipped}
    for table in user:
        other = merged.get(table.family)
        merged[table.family] = prefer(other, table) if other else table
    return tuple(merged.values())


def table_paths(arch: str) -> list[Path]:
    """Where the tables of an arch are looked for, whether they exist or not: the user's first, then the shipped one.

    The user's directory is ``$ATTN_TUNE_CONFIG_DIR``, else ``$XDG_CONFIG_HOME/attn-tune``, else
    ``~/.config/attn-tune``.
    """
    # An unknown device's marketing name may hold anything; it must not become a path of its own.
    name = re.sub(r"[^a-z0-9_-]", "_", canonical_arch(arch)) + ".yaml"
    return [directory / name for directory in (user_directory(), _shipped_directory()) if directory]


def all_table_paths() -> list[Path]:
    """Every table file that exists, the user's first, in the order of their names."""
    directories = [directory for directory in (user_directory(), _shipped_directory()) if directory]
    return [path for directory in directories for path in sorted(directory.glob("*.yaml"))]


def user_directory() -> Path | None:
    """The directory of the user's tables; None without a home directory."""
    named = os.environ.get("ATTN_TUNE_CONFIG_DIR")
    if named:
        return Path(os.path.expanduser(named))
    config_home = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG base directory specification says to ignore a relative path.
    home = config_home if os.path.isabs(config_home) else os.path.expanduser("~/.config")
    return Path(home, "attn-tune") if os.path.isabs(home) else None


def _shipped_directory() -> Path | None:
    package = __name__.split(".")[0]
    spec = find_spec(f"{package}.configs")
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None
