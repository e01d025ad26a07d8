"""Whether a config can be launched at all: tile sizes that the matrix unit takes, and shared memory (LDS) that fits.

An estimate made before compiling, so that rules never answer and sweeps never compile what cannot run.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..arch import ArchSpec
from ..problem import DTYPE_BYTES, AttentionFamily

SAFE_SHARE = 0.9  # of a program's LDS: the compiler adds scratch of its own for reductions and layout changes


def fits_lds(config: Mapping[str, int], family: AttentionFamily, arch: ArchSpec) -> bool:
    """Whether the estimated LDS of a config is at most 0.9 of what a program may ask for on the arch."""
    return lds_estimate(config, family, arch) <= SAFE_SHARE * arch.lds_per_program


def lds_estimate(config: Mapping[str, int], family: AttentionFamily, arch: ArchSpec) -> int:
    """Bytes of LDS that a config needs: the K and V tiles that the pipeline holds and, on NVIDIA, the query and the
    16-bit copy of a tile of an 8-bit cache, which the matrix unit reads from there.

    An estimate from above, since the compiler lets buffers that do not live at once share memory.
    """
    tile = config["TILE_SIZE"] * (next_power_of_two(family.head_size) + next_power_of_two(family.value_head_size))
    kv_bytes = DTYPE_BYTES[family.kv_dtype]
    num_stages = max(config["num_stages"], 1)
    if arch.backend == "hip":
        # AMD's pipeline holds one stage in registers, but no fewer than two buffers once it prefetches.
        return max(num_stages - 1, min(num_stages, 2)) * tile * kv_bytes
    query = config["BLOCK_M"] * next_power_of_two(family.head_size) * 2
    converted = tile * 2 if kv_bytes == 1 else 0
    # Triton's pipeliner spends stages beyond the third on the page table; read from compiled sizes on sm_90.
    buffers = max(num_stages - 2, min(num_stages, 2))
    return buffers * tile * kv_bytes + query + converted


def fitted(config: Mapping[str, int], family: AttentionFamily, arch: ArchSpec) -> dict[str, int]:
    """The config made launchable: TILE_SIZE and BLOCK_M raised to their minimum, then num_stages lowered, then
    TILE_SIZE halved, then BLOCK_M halved, until the LDS estimate fits.

    Some families have no config that fits: head sizes over 512 with 64 KiB of LDS, or hundreds of query heads on one
    KV head. They get the smallest one, which :func:`fits_lds` still refuses.
    """
    low = {"num_stages": 1, "TILE_SIZE": min_tile_size(family), "BLOCK_M": min_block_m(family)}
    out = {name: max(value, low.get(name, value)) for name, value in config.items()}
    for name, least in low.items():
        while out[name] > least and not fits_lds(out, family, arch):
            out[name] = out[name] - 1 if name == "num_stages" else out[name] // 2
    return out


def min_block_m(family: AttentionFamily) -> int:
    """The smallest BLOCK_M: all query heads of a KV head in one program, and 16 rows for the matrix unit."""
    return max(16, next_power_of_two(family.group_size))


def min_tile_size(family: AttentionFamily) -> int:
    """The smallest TILE_SIZE that the matrix unit takes: 32 when query and cache are both fp8, else 16."""
    return 32 if family.q_dtype == family.kv_dtype == "fp8_e4m3" else 16


def next_power_of_two(x: int) -> int:
    """The smallest power of two that is at least ``x`` >= 1."""
    return 1 << (x - 1).bit_length()
