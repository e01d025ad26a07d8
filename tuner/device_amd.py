"""AMD GPUs, from the sysfs files of the kernel's compute driver (KFD)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path


def amd_device(index: int, sysfs: Path, environment: Mapping[str, str]) -> tuple[str, int, str, str] | None:
    """(arch, compute units, name, partition) of the GPU at a place among the visible ones, or None.

    Visible are those that ROCR_VISIBLE_DEVICES and then HIP_VISIBLE_DEVICES (else CUDA_VISIBLE_DEVICES, which HIP reads
    too) leave, each a list of places or of ``GPU-<unique id>``. The fields are those of the kernel's
    ``amdkfd/kfd_topology.h``.
    """
    gpus = _gpus(sysfs)
    if "ROCR_VISIBLE_DEVICES" in environment:
        gpus = _visible(gpus, environment["ROCR_VISIBLE_DEVICES"])
    chosen = environment.get("HIP_VISIBLE_DEVICES") or environment.get("CUDA_VISIBLE_DEVICES")
    if chosen:
        gpus = _visible(gpus, chosen)
    if index >= len(gpus):
        return None
    properties = gpus[index]
    arch = _arch_name(properties["gfx_target_version"])
    pci = sysfs / "bus/pci/devices" / _pci_address(properties)
    units = properties["simd_count"] // max(properties.get("simd_per_cu", 0), 1)
    return arch, units, _text(pci / "product_name") or arch, _text(pci / "current_compute_partition")


def _gpus(sysfs: Path) -> list[dict[str, int]]:
    """The properties of every node that is a GPU this process may use, in the driver's order."""
    nodes = sysfs / "class/kfd/kfd/topology/nodes"
    try:
        numbers = sorted(int(node.name) for node in nodes.iterdir() if node.name.isdecimal())
    except OSError:
        return []
    found = [_properties(nodes / str(number) / "properties") for number in numbers]
    return [node for node in found if node.get("simd_count") and node.get("gfx_target_version")]


def _properties(file: Path) -> dict[str, int]:
    """The ``name value`` lines of a properties file; none for a GPU that a container may not use."""
    properties = {}
    for line in _text(file).splitlines():
        name, _, value = line.partition(" ")
        with contextlib.suppress(ValueError):
            properties[name] = int(value)
    return properties


def _visible(gpus: list[dict[str, int]], chosen: str) -> list[dict[str, int]]:
    """The GPUs that a list names, in its order, up to its first entry that names none."""
    visible: list[dict[str, int]] = []
    for entry in (part.strip() for part in chosen.split(",")):
        if entry.isdecimal():
            matches = gpus[int(entry) : int(entry) + 1]
        else:
            matches = [gpu for gpu in gpus if f"gpu-{gpu.get('unique_id', 0):016x}" == entry.lower()]
        if not matches or matches[0] in visible:
            break
        visible += matches[:1]
    return visible


def _arch_name(version: int) -> str:
    """90500 -> gfx950, 90010 -> gfx90a: two decimal digits each for minor and stepping, which a name has in hex."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _pci_address(properties: Mapping[str, int]) -> str:
    location = properties.get("location_id", 0)  # the bits above 16 number the partitions of one device
    return f"{properties.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7:x}"


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""
