from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from dumped_call import error_of_dumped_call
from triton import knobs

from attn_tune.arch import get_arch
from attn_tune.evaluate.abi import type_size
from attn_tune.evaluate.dump import dump_launches
from attn_tune.evaluate.specialize import load_kernel
from attn_tune.problem import AttentionFamily, AttentionProblem

TRITON = tuple(int(part) for part in version("triton").split(".")[:2])
OLD = pytest.mark.skipif(TRITON < (3, 7), reason="Triton 3.6 does not compile this for gfx1250")
AMD = ["gfx950", pytest.param("gfx1250", marks=OLD)]
ARCHS = [*AMD, "sm_90"]
PROBLEM = AttentionProblem(AttentionFamily(16, 1, 64, kv_dtype="fp8_e4m3"), 20, 4, 70000)
CONFIG = {"BLOCK_M": 64, "TILE_SIZE": 32, "NUM_SEGMENTS": 8, "num_warps": 4, "num_stages": 2}
PAGES = 20 * 4375
Dumped = tuple[Path, dict[str, Any], dict[str, Any], dict[str, Any]]
"""The folder, and the JSON of the problem, of the attention kernel's launch and of the reduce's."""


def read(folder: Path, name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / name).read_text())
    return values


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Dumped]:
    done: dict[str, Dumped] = {}

    def call(arch: str) -> Dumped:
        if arch not in done:
            folder = tmp_path_factory.mktemp("dump") / "new" / arch
            dump_launches(PROBLEM, "paged_3d", CONFIG, get_arch(arch), folder)
            names = ("problem.json", "0-paged_attention.json", "1-reduce_segments.json")
            done[arch] = (folder, *(read(folder, name) for name in names))  # type: ignore[assignment]
        return done[arch]

    return call


def recorded_layout(folder: Path, launch: dict[str, Any]) -> list[tuple[int, int]]:
    """(offset, size) of the arguments that the caller passes, as the object itself has them."""
    if launch["target"]["backend"] == "hip":
        return [(item[".offset"], item[".size"]) for item in amd_arguments(folder, launch) if not is_hidden(item)]
    [cubin] = [folder / name for name in launch["files"] if name.endswith(".cubin")]
    text = subprocess.check_output([knobs.nvidia.cuobjdump.path, "-elf", cubin], text=True)
    found = re.findall(r"EIATTR_KPARAM_INFO.*?Ordinal\s*:\s*(\w+)\s+Offset\s*:\s*(\w+)\s+Size\s*:\s*(\w+)", text, re.S)
    by_ordinal = sorted(tuple(int(number, 16) for number in item) for item in found)
    return [(offset, size) for _, offset, size in by_ordinal]


def amd_metadata(folder: Path, launch: dict[str, Any]) -> dict[str, Any]:
    [name] = [name for name in launch["files"] if name.endswith(".amdgcn")]
    text = (folder / name).read_text().partition(".amdgpu_metadata")[2].partition(".end_amdgpu_metadata")[0]
    kernel: dict[str, Any] = yaml.safe_load(text.replace("\t", ""))["amdhsa.kernels"][0]
    return kernel


def amd_arguments(folder: Path, launch: dict[str, Any]) -> list[dict[str, Any]]:
    arguments: list[dict[str, Any]] = amd_metadata(folder, launch)[".args"]
    return arguments


def is_hidden(item: dict[str, Any]) -> bool:
    return str(item[".value_kind"]).startswith("hidden_")


@pytest.mark.parametrize("launch", [0, 1], ids=["attention", "reduce"])
@pytest.mark.parametrize("arch", ARCHS)
def test_the_layout_is_the_one_that_the_object_records(dump: Callable[[str], Dumped], arch: str, launch: int) -> None:
    folder, _, *launches = dump(arch)
    described = launches[launch]
    passed = [item for item in described["arguments"] if item["passed"]]
    assert [(item["offset"], item["size"]) for item in passed] == recorded_layout(folder, described)
    assert described["kernarg_bytes"] == passed[-1]["offset"] + passed[-1]["size"]


@pytest.mark.parametrize("launch", [0, 1], ids=["attention", "reduce"])
@pytest.mark.parametrize("arch", AMD)
def test_amd_metadata_agrees_on_pointers_and_on_what_the_runtime_fills_in(
    dump: Callable[[str], Dumped], arch: str, launch: int
) -> None:
    folder, _, *launches = dump(arch)
    described = launches[launch]
    recorded = amd_arguments(folder, described)
    kinds = [
        "global_buffer" if item["type"][0] == "*" else "by_value" for item in described["arguments"] if item["passed"]
    ]
    assert kinds == [item[".value_kind"] for item in recorded if not is_hidden(item)]
    hidden = [(item[".value_kind"], item[".offset"], item[".size"]) for item in recorded if is_hidden(item)]
    assert hidden == [(item["name"], item["offset"], item["size"]) for item in described["runtime_arguments"]]
    if not hidden:
        assert described["kernarg_bytes"] == amd_metadata(folder, described)[".kernarg_segment_size"]


@pytest.mark.parametrize("launch", [0, 1], ids=["attention", "reduce"])
@pytest.mark.parametrize("arch", ARCHS)
def test_every_parameter_is_listed_in_order(dump: Callable[[str], Dumped], arch: str, launch: int) -> None:
    described = dump(arch)[2:][launch]
    parameters = [parameter.name for parameter in load_kernel(described["source"]).params]
    hidden = [item["name"] for item in described["arguments"] if item.get("hidden") == "triton"]
    assert hidden == ["global_scratch_ptr", "profile_scratch_ptr"]
    assert [item["name"] for item in described["arguments"]] == parameters + hidden
    for item in described["arguments"]:
        if not item["name"].isupper() and item["name"] not in hidden:
            assert item["meaning"], item["name"]
            assert item["role"] in ("input", "output", "workspace", "scalar")
        assert ("shape" in item) != ("value" in item)


@pytest.mark.parametrize(
    ("name", "value"),
    [("q_scale_ptr", None), ("sinks_ptr", None), ("stride_k_dim", 1), ("BLOCK_M", 64), ("SPLIT", True)],
)
def test_what_the_compiler_folded_is_not_passed(dump: Callable[[str], Dumped], name: str, value: object) -> None:
    attention = dump("gfx950")[2]
    [item] = [item for item in attention["arguments"] if item["name"] == name]
    assert (item["passed"], item["type"], item["value"]) == (False, "constexpr", value)
    assert "offset" not in item


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("q_ptr", {"type": "*bf16", "shape": [80, 16, 64], "strides": [1024, 64, 1], "dtype": "bfloat16"}),
        ("k_ptr", {"type": "*fp8e4nv", "shape": [PAGES, 16, 1, 64], "strides": [1024, 64, 64, 1], "role": "input"}),
        ("out_ptr", {"shape": [80, 16, 64], "role": "output"}),
        ("partial_ptr", {"shape": [80 * 16 * 8 * 64], "dtype": "float32", "role": "workspace"}),
        ("block_table_ptr", {"type": "*i32", "shape": [20, 4375]}),
        ("cu_seqlens_q_ptr", {"shape": [21], "contents": "s * 4 for s = 0 ... 20"}),
        ("softmax_scale", {"type": "fp32", "value": 0.125, "size": 4}),
        ("num_segments", {"type": "i32", "value": 8}),
        ("stride_block_table", {"type": "i32", "value": 4375}),
        ("stride_k_page", {"type": "i32", "value": 1024, "divisible_by": 16}),
    ],
)
@pytest.mark.parametrize("arch", ARCHS)
def test_arguments_are_those_of_the_problem_at_hand(
    dump: Callable[[str], Dumped], arch: str, name: str, expected: dict[str, Any]
) -> None:
    [item] = [item for item in dump(arch)[2]["arguments"] if item["name"] == name]
    assert {field: item[field] for field in expected} == expected


@pytest.mark.parametrize("arch", ARCHS)
def test_the_code_assumes_no_small_cache(dump: Callable[[str], Dumped], arch: str) -> None:
    by_name = {item["name"]: item for item in dump(arch)[2]["arguments"]}
    assert by_name["k_ptr"]["shape"][0] * 16 * 64 < 2**31  # though this problem's would be small
    assert "max_bytes" not in by_name["k_ptr"]
    assert "max_bytes" not in by_name["v_ptr"]
    assert by_name["q_ptr"].get("max_bytes") == (2**31 - 1 if arch.startswith("gfx") else None)


@pytest.mark.parametrize("arch", ARCHS)
def test_launches_say_how_to_be_launched(dump: Callable[[str], Dumped], arch: str) -> None:
    folder, problem, attention, reduce = dump(arch)
    wave_size = get_arch(arch).wave_size
    assert attention["target"] == {"backend": get_arch(arch).backend, "arch": arch, "wave_size": wave_size}
    assert attention["grid"] == [20, 8, 1]
    assert attention["threads_per_block"] == [4 * wave_size, 1, 1]
    assert 0 < attention["lds_bytes"] <= get_arch(arch).lds_per_program
    assert reduce["grid"] == [80 * 16, 1, 1]
    assert problem["launches"] == ["0-paged_attention.json", "1-reduce_segments.json"]
    assert problem["family"] == vars(PROBLEM.family)
    assert CONFIG.items() <= problem["config"].items()
    for launch in (attention, reduce):
        objects = [folder / name for name in launch["files"] if name.endswith((".hsaco", ".cubin"))]
        assert [path.read_bytes()[:4] for path in objects] == [b"\x7fELF"]
        assert launch["kernel"].encode() in objects[0].read_bytes()
    listed = {name for launch in (attention, reduce) for name in launch["files"]}
    assert {path.name for path in folder.iterdir()} == listed | {"problem.json", *problem["launches"]}


@pytest.mark.parametrize("arch", ["gfx950", "sm_90"])
def test_files_are_the_same_when_compiled_anew(
    dump: Callable[[str], Dumped], arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    again = dump_launches(PROBLEM, "paged_3d", CONFIG, get_arch(arch), tmp_path / "again")
    first = dump(arch)[0]
    assert {path.name for path in again} == {path.name for path in first.iterdir()}
    assert [path.name for path in again if path.read_bytes() != (first / path.name).read_bytes()] == []


@pytest.mark.parametrize(("route", "launches"), [("paged_2d", 1), ("paged_3d", 2)])
def test_the_folder_is_enough_to_run_and_check_the_call(
    interpret: Callable[..., Any], tmp_path: Path, route: str, launches: int
) -> None:
    family = AttentionFamily(4, 2, 32, kv_dtype="fp8_e4m3", sliding_window=50, sinks=True)
    config = {"BLOCK_M": 16, "TILE_SIZE": 32, "NUM_SEGMENTS": 3, "num_warps": 1, "num_stages": 1}
    dump_launches(AttentionProblem(family, 2, 3, 100), route, config, get_arch("gfx950"), tmp_path)
    assert len(read(tmp_path, "problem.json")["launches"]) == launches
    assert interpret(error_of_dumped_call, tmp_path) < 1e-2


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(FileExistsError, match=re.escape(f"{tmp_path} is not empty")):
        dump_launches(PROBLEM, "paged_3d", CONFIG, get_arch("gfx950"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(("name", "message"), [("file", "is not a folder"), ("file/below", "cannot write to folder")])
def test_a_folder_that_cannot_be_made(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=message) as caught:
        dump_launches(PROBLEM, "paged_3d", CONFIG, get_arch("gfx950"), tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    ("route", "changes", "message"),
    [
        ("paged_9d", {}, "paged_9d"),
        ("paged_2d", {"num_warps": 3}, "num_warps"),
        ("paged_2d", {"TILE_SIZE": 48}, "does not compile for gfx950"),
    ],
)
def test_what_does_not_compile_is_a_value_error(
    tmp_path: Path, route: str, changes: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dump_launches(PROBLEM, route, CONFIG | changes, get_arch("gfx950"), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "size"),
    [("*fp8e4nv", 8), ("i1", 1), ("i8", 1), ("u16", 2), ("bf16", 2), ("i32", 4), ("fp32", 4), ("i64", 8)],
)
def test_sizes_of_argument_types(kind: str, size: int) -> None:
    assert type_size(kind, "x") == size


@pytest.mark.parametrize("kind", ["tensordesc<fp16[16, 16]>", ("i32", "i32")])
def test_types_without_a_fixed_layout_are_refused(kind: object) -> None:
    with pytest.raises(ValueError, match="argument lengths"):
        type_size(kind, "lengths")
