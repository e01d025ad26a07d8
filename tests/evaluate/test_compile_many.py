from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton
from sample_kernels import SampleRoute

from attn_tune.arch import ARCHS, get_arch
from attn_tune.evaluate.cache import CompileCache
from attn_tune.evaluate.compile_many import CompileOutcome, CompileRequest, compile_configs
from attn_tune.kernels import register, registry
from attn_tune.problem import AttentionFamily

FAMILY = AttentionFamily(8, 1, 64)
TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])
PAGED, COPY, REFUSED, ABORTING, HANGING = range(5)


@pytest.fixture(autouse=True)
def sample_route() -> Iterator[None]:
    register(SampleRoute())
    yield
    registry._KERNELS.pop("sample")


def request_for(kernel: int, **config: int) -> CompileRequest:
    return CompileRequest("sample", FAMILY, (("KERNEL", kernel), *config.items()))


def compile_all(
    requests: list[CompileRequest], folder: Path, arch: str = "gfx950", time_limit: float = 60.0
) -> dict[CompileRequest, CompileOutcome]:
    cache = CompileCache(folder)
    return dict(compile_configs(requests, arch=get_arch(arch), jobs=2, time_limit=time_limit, cache=cache))


@pytest.mark.parametrize("arch", ARCHS)
def test_the_split_route_compiles_with_its_reduce_for_every_arch(arch: str, tmp_path: Path) -> None:
    if arch == "gfx1250" and TRITON < (3, 7):
        pytest.skip("Triton 3.6 cannot link for gfx1250")
    config = (("BLOCK_M", 16), ("TILE_SIZE", 32), ("NUM_SEGMENTS", 8), ("num_warps", 2), ("num_stages", 2))
    request = CompileRequest("paged_3d", FAMILY, config)
    outcome = compile_all([request], tmp_path, arch)[request]
    assert (outcome.status, outcome.message, outcome.cached) == ("ok", "", False)
    attention, reduce = outcome.resources
    assert attention.num_warps == 2
    assert attention.loop.total > reduce.loop.total > 0
    assert 0 < reduce.registers < attention.registers
    again = compile_all([request], tmp_path, arch)[request]
    assert again.cached
    assert again.resources == outcome.resources


def test_failures_are_outcomes_and_are_not_repeated(tmp_path: Path) -> None:
    requests = [request_for(kernel) for kernel in (REFUSED, ABORTING, HANGING, COPY)]
    outcomes = compile_all(requests, tmp_path, time_limit=6.0)
    refused, aborted, hung, good = (outcomes[request] for request in requests)
    assert refused.status == "compile_error"
    assert "this size is not for me" in refused.message
    assert aborted.status == "crash"
    assert aborted.message == "SIGABRT: LLVM ERROR: cannot select"
    assert (hung.status, hung.message) == ("timeout", "killed after 6 s")
    assert good.status == "ok"
    start = time.monotonic()
    again = compile_all(requests, tmp_path, time_limit=6.0)
    assert time.monotonic() - start < 1
    assert all(outcome.cached for outcome in again.values())
    assert {(o.status, o.message) for o in again.values()} == {(o.status, o.message) for o in outcomes.values()}


def test_too_much_lds_names_the_required_bytes_and_the_limit(tmp_path: Path) -> None:
    request = request_for(PAGED, BLOCK_M=16, TILE_SIZE=128, num_stages=4)
    outcome = compile_all([request], tmp_path, "gfx942")[request]
    required = outcome.resources[0].lds_bytes
    assert required > 65536
    assert (outcome.status, outcome.message) == ("out_of_resources", f"LDS: required {required} bytes, limit 65536")


def test_a_launch_that_requests_share_is_compiled_once(tmp_path: Path) -> None:
    requests = [request_for(PAGED, TILE_SIZE=32), request_for(PAGED, TILE_SIZE=64), request_for(COPY)]
    outcomes = compile_all(requests, tmp_path)
    assert [len(outcomes[request].resources) for request in requests] == [2, 2, 1]
    assert len(list(tmp_path.iterdir())) == 3  # two attention kernels and one copy kernel


def test_cached_results_come_before_a_worker_starts(tmp_path: Path) -> None:
    compile_all([request_for(COPY)], tmp_path)
    results = compile_configs(
        [request_for(HANGING), request_for(COPY)], arch=get_arch("gfx950"), jobs=1, time_limit=600,
        cache=CompileCache(tmp_path),
    )  # fmt: skip
    start = time.monotonic()
    request, outcome = next(results)
    results.close()
    assert (request, outcome.cached) == (request_for(COPY), True)
    assert time.monotonic() - start < 1


def test_a_config_that_the_plan_refuses_is_an_outcome(tmp_path: Path) -> None:
    request = CompileRequest("paged_2d", FAMILY, (("TILE_SIZE", 32),))
    outcome = compile_all([request], tmp_path)[request]
    assert outcome.status == "compile_error"
    assert "BLOCK_M" in outcome.message


def test_an_unknown_kernel_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nonesuch"):
        compile_all([CompileRequest("nonesuch", FAMILY, ())], tmp_path)


def test_the_user_cache_folder_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_TUNE_CACHE_DIR", str(tmp_path))
    ((_, outcome),) = compile_configs([request_for(COPY)], arch=get_arch("gfx950"), jobs=1, time_limit=60)
    (file,) = tmp_path.iterdir()
    assert outcome.status == json.loads(file.read_text())["status"] == "ok"
