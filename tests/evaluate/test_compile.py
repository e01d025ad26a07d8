from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
from sample_kernels import one_tensor_launch, paged_launch

from attn_tune.arch import ARCHS, get_arch
from attn_tune.evaluate.compile import compile_launch
from attn_tune.evaluate.specialize import specialize
from attn_tune.kernels.protocol import Launch

TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])
FP8_CONVERSIONS = {"gfx950": 80, "gfx1250": 48, "sm_90": 64, "sm_100": 64}  # in the loop of the sample kernel


def integers_launch(**changes: object) -> Launch:
    output = torch.empty(64, dtype=torch.float32, device="meta")
    values = {"output": output, "one": 1, "sixteen": 48, "big": 1 << 40, "free": 1, "absent": None, "flag": True}
    return Launch("sample_kernels:integers_kernel", (1, 1, 1), values | changes, {}, {"num_warps": 1})


@pytest.mark.parametrize("arch", ARCHS)
def test_the_loop_of_a_paged_kernel_is_read_from_the_object(arch: str) -> None:
    if arch == "gfx1250" and TRITON < (3, 7):
        pytest.skip("Triton 3.6 has no matrix instructions for gfx1250")
    compiled = compile_launch(paged_launch(BLOCK_M=128, TILE_SIZE=64, num_warps=4), get_arch(arch))
    resources = compiled.resources
    assert compiled.name == "paged_kernel"
    assert compiled.binary[:4] == b"\x7fELF"
    assert compiled.target.warp_size == get_arch(arch).wave_size
    assert 64 <= resources.registers <= get_arch(arch).max_registers
    assert resources.lds_bytes == compiled.lds_bytes > 0
    assert (resources.num_warps, len(resources.loops)) == (4, 1)
    loop = resources.loop
    # Q K^T and P V of a 128 x 64 tile of 128 columns, over four waves; tcgen05's mnemonic has no shape.
    assert loop.matrix_flops == (0 if arch == "sm_100" else 4 * 128 * 64 * 128 // 4)
    assert loop.matrix_count > 0
    # K and V of the tile in 16-byte pieces, one per lane: alignment reached the compiler.
    pieces = 2 * 64 * 128 * 2 // (16 * 4 * get_arch(arch).wave_size)
    assert loop.async_copies.get(16, 0) + loop.global_loads.get(16, 0) == pieces
    assert loop.transcendental >= 128 * 64 // (4 * get_arch(arch).wave_size)
    assert loop.vector > 0
    assert (loop.scratch > 0) <= (resources.spills > 0)


@pytest.mark.parametrize("arch", FP8_CONVERSIONS)
def test_conversions_of_an_fp8_cache_are_counted(arch: str) -> None:
    needed = {"gfx950": (3, 7), "gfx1250": (3, 8)}.get(arch, (3, 6))
    if needed > TRITON:
        pytest.skip("this Triton converts fp8 with integer instructions there")
    loop = compile_launch(paged_launch(torch.float8_e4m3fn), get_arch(arch)).resources.loop
    from_fp8 = sum(count for name, count in loop.conversions.items() if "FP8" in name.upper() or "E4M3" in name)
    assert from_fp8 == FP8_CONVERSIONS[arch]


@pytest.mark.parametrize("arch", ["gfx950", "sm_90"])
def test_a_misaligned_tensor_costs_wide_loads(arch: str) -> None:
    launch = paged_launch()
    shifted = torch.empty(1 + 64 * 16 * 128, dtype=torch.bfloat16, device="meta")[1:]
    misaligned = replace(launch, arguments={**launch.arguments, "keys": shifted, "values": shifted})
    loop = compile_launch(misaligned, get_arch(arch)).resources.loop
    assert 16 not in loop.global_loads
    assert 16 not in loop.async_copies


@pytest.mark.parametrize("arch", ARCHS)
def test_arguments_are_specialized_as_the_jit_does(arch: str) -> None:
    found = specialize(integers_launch(), get_arch(arch))
    assert dict(found.signature) == {
        "output": "*fp32",
        "one": "constexpr",
        "sixteen": "i32",
        "big": "i64",
        "free": "i32",  # 1, but not to be specialized
        "absent": "constexpr",
        "flag": "u1",
    }
    assert found.constants == {(1,): 1, (5,): None}
    aligned = {path for path, attributes in found.attributes.items() if ["tt.divisibility", 16] in attributes}
    assert aligned == {(0,), (2,), (3,)}


@pytest.mark.parametrize(("num_pages", "small"), [(64, True), (600_000, False)])
def test_only_amd_tensors_under_2_gib_are_marked_small(num_pages: int, small: bool) -> None:
    launch = paged_launch(num_pages=num_pages)
    assert (["tt.pointer_range", 32] in specialize(launch, get_arch("gfx950")).attributes[(1,)]) is small
    assert specialize(launch, get_arch("sm_90")).attributes[(1,)] == [["tt.divisibility", 16]]


def test_waves_per_eu_goes_to_amd_only() -> None:
    launch = paged_launch(waves_per_eu=2)
    assert specialize(launch, get_arch("gfx950")).options["waves_per_eu"] == 2
    assert "waves_per_eu" not in specialize(launch, get_arch("sm_90")).options


def test_a_kernel_without_loop_is_counted_as_a_whole() -> None:
    resources = compile_launch(one_tensor_launch("copy_kernel"), get_arch("gfx950")).resources
    assert resources.loops == ()
    assert sum(resources.loop.global_loads.values()) == sum(resources.loop.global_stores.values()) == 1
    assert resources.loop.matrix_count == 0


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (replace(paged_launch(), kernel="no_such_module:kernel"), "no_such_module"),
        (replace(paged_launch(), kernel="sample_kernels:nothing"), "nothing"),
        (replace(paged_launch(), kernel="sample_kernels:paged_launch"), "not a Triton JIT function"),
        (replace(paged_launch(), constants={}), "needs the argument 'BLOCK_M'"),
        (replace(paged_launch(), constants={**paged_launch().constants, "BLOCK_X": 1}), "no parameter 'BLOCK_X'"),
        (replace(paged_launch(), options={"num_wraps": 4}), "num_wraps"),
        (replace(paged_launch(), options={"num_warps": 3}), "num_warps"),
        (integers_launch(one="text"), "str"),
    ],
)
def test_a_launch_that_does_not_fit_is_named(launch: Launch, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        specialize(launch, get_arch("gfx950"))


def test_an_override_of_the_arch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_OVERRIDE_ARCH", "gfx942")
    with pytest.raises(ValueError, match="TRITON_OVERRIDE_ARCH"):
        specialize(paged_launch(), get_arch("gfx950"))


def test_compiling_never_asks_for_the_local_device() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from triton.runtime import driver\n"
        "from sample_kernels import paged_launch\n"
        "from attn_tune.arch import get_arch\n"
        "from attn_tune.evaluate.compile import compile_launch\n"
        "for arch in ('gfx950', 'sm_90'): compile_launch(paged_launch(), get_arch(arch))\n"
        "sys.exit(driver._active is not None or driver._default is not None)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(Path(__file__).parent)], check=True)
