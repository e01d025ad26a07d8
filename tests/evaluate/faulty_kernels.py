"""Routes with every fault that measuring must notice, made from a sound one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import triton
import triton.language as tl

from attn_tune.kernels import get_kernel, register
from attn_tune.kernels.protocol import Launch


@triton.jit
def scale_kernel(out_ptr, FACTOR: tl.constexpr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    value = tl.load(out_ptr + offsets).to(tl.float32)
    tl.store(out_ptr + offsets, (value * FACTOR).to(out_ptr.dtype.element_ty))


@triton.jit
def garbage_kernel(out_ptr, VALUE: tl.constexpr, SIZE: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, SIZE), tl.full([SIZE], VALUE, tl.float32).to(out_ptr.dtype.element_ty))


@triton.jit
def refused_kernel(out_ptr):
    tl.static_assert(False, "this size is not for me")


@dataclass(frozen=True)
class FaultyRoute:
    """``base`` with one fault."""

    base: str
    fault: str

    @property
    def name(self) -> str:
        return f"{self.base}: {self.fault}"

    def supports(self, family: Any, arch: Any) -> str | None:
        return f"{self.name}: head_size is not mine" if self.fault == "pruned" else None

    def plan(self, inputs: Any, config: Any, workspace: Any = None) -> Sequence[Launch]:
        plan = get_kernel(self.base).plan(inputs, config, workspace)
        after = {"out_ptr": inputs.out}, {"SIZE": inputs.out.numel()}
        if self.fault == "scaled":
            return [*plan, Launch(f"{__name__}:scale_kernel", (1, 1, 1), after[0], {"FACTOR": 1.1} | after[1], {})]
        if self.fault == "NaN":
            nan = {"VALUE": float("nan")}
            return [*plan, Launch(f"{__name__}:garbage_kernel", (1, 1, 1), after[0], nan | after[1], {})]
        if self.fault == "garbage":
            return [Launch(f"{__name__}:garbage_kernel", (1, 1, 1), after[0], {"VALUE": 0.5} | after[1], {})]
        if self.fault == "partial":  # the last programs are missing; the reduce, if there is one, is whole
            x, y, z = plan[0].grid
            grid = (x - 1, y, z) if x > 1 else (x, y - 1, z)
            return [replace(plan[0], grid=grid), *plan[1:]]
        if self.fault == "idle":
            return []
        if self.fault == "refused":
            return [Launch(f"{__name__}:refused_kernel", (1, 1, 1), {"out_ptr": inputs.out}, {}, {})]
        if self.fault == "silent":
            raise AssertionError
        if self.fault == "out of memory":
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
        if self.fault == "out of resources":
            raise RuntimeError("out of resource: shared memory, Required: 294912, Hardware limit: 232448.")
        if self.fault == "illegal access":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return plan


FAULTS = (
    "scaled", "NaN", "garbage", "partial", "idle", "refused", "silent", "pruned", "out of memory", "out of resources",
    "illegal access",
)  # fmt: skip


def register_all() -> None:
    """Register each fault of both routes, once a process."""
    for base in ("paged_2d", "paged_3d"):
        for fault in FAULTS:
            try:
                get_kernel(FaultyRoute(base, fault).name)
            except ValueError:
                register(FaultyRoute(base, fault))  # type: ignore[arg-type]
