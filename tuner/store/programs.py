"""NUM_PROGRAMS, which stands for NUM_SEGMENTS in a table: as many segments as make so many programs.

The best number of segments is a matter of how many programs fill the device, and the batch multiplies it: 13 segments
that fill 132 units twice for 20 sequences leave a third wave nearly empty for 24. A row holds for many batch sizes, so
it names the programs.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..problem import AttentionFamily
from .table import Sizes

RUN_TIME_PARAMETERS = ("NUM_SEGMENTS", "NUM_PROGRAMS")
"""The entries of a config that are not compiled in."""


def compiled_entries(config: Mapping[str, int]) -> dict[str, int]:
    """The entries of a config that are compiled in, in its order."""
    return {name: value for name, value in config.items() if name not in RUN_TIME_PARAMETERS}


def exchanged(config: Mapping[str, int], old: str, new: str, value: int) -> dict[str, int]:
    """A config with another entry in the place of one that it has."""
    return dict((new, value) if name == old else (name, own) for name, own in config.items())


def by_programs(
    config: Mapping[str, int], family: AttentionFamily, sizes: Sizes, compute_units: int
) -> Mapping[str, int]:
    """A config for a table's row: with NUM_PROGRAMS instead of NUM_SEGMENTS where its programs fill the device.

    Where they do not, more programs were no gain, and the segments stay what they are. Of the programs that make the
    same segments, a multiple of the compute units is taken, so that neighbouring sizes tend to agree.
    """
    segments = config.get("NUM_SEGMENTS", 1)
    num_seqs, max_seqlen_q, _ = sizes
    unsplit = num_seqs * -(-max_seqlen_q // (config["BLOCK_M"] // family.group_size)) * family.num_kv_heads
    fewest = segments * unsplit
    if segments == 1 or fewest < compute_units:
        return config
    rounded = -(-fewest // compute_units) * compute_units
    programs = rounded if rounded < fewest + unsplit else fewest
    return exchanged(config, "NUM_SEGMENTS", "NUM_PROGRAMS", programs)
