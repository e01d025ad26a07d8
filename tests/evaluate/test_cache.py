from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sample_kernels import paged_launch

from attn_tune.arch import get_arch
from attn_tune.evaluate.cache import CompileCache, CompileRecord, cache_folder, cache_key
from attn_tune.evaluate.resources import InstructionMix, Resources
from attn_tune.evaluate.specialize import specialize

MIX = InstructionMix({"v_mfma_f32_16x16x32_bf16": 4}, 65536, {16: 2}, vector=9)
GOOD = CompileRecord("ok", "", 1.5, 60.0, Resources(120, 0, 0, 4096, 4, MIX, (MIX,)))
REFUSED = CompileRecord("compile_error", "RuntimeError: no", 0.5, 60.0)
CRASHED = CompileRecord("crash", "SIGABRT", 0.5, 60.0)


@pytest.mark.parametrize("record", [GOOD, REFUSED, CRASHED])
def test_good_and_bad_results_come_back(tmp_path: Path, record: CompileRecord) -> None:
    cache = CompileCache(tmp_path / "new" / "folder")
    assert cache.get("key", 60) is None
    cache.put("key", record)
    assert cache.get("key", 600) == record
    assert cache.get("other", 60) is None
    assert [file.name for file in cache.folder.iterdir()] == ["key.json"]


def test_a_timeout_counts_up_to_its_own_limit(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path)
    record = CompileRecord("timeout", "killed after 10 s", 10.0, 10.0)
    cache.put("key", record)
    assert cache.get("key", 10) == record
    assert cache.get("key", 5) == record
    assert cache.get("key", 20) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"status": "ok"}', "\ufeff{}", '{"resources": 3}'])
def test_a_broken_record_is_a_miss_and_is_replaced(tmp_path: Path, content: str) -> None:
    cache = CompileCache(tmp_path)
    (tmp_path / "key.json").write_text(content, encoding="utf-8")
    assert cache.get("key", 60) is None
    cache.put("key", GOOD)
    assert cache.get("key", 60) == GOOD


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="not cached"):
        CompileCache(tmp_path / "file").put("key", GOOD)


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ATTN_TUNE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "attn-tune" / "compiles"
    monkeypatch.setenv("ATTN_TUNE_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_the_key_depends_on_all_that_decides_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    base = paged_launch()
    variants = [
        base,
        paged_launch(torch.float8_e4m3fn),
        paged_launch(num_pages=600_000),  # over 2 GiB
        paged_launch(TILE_SIZE=32),
        paged_launch(num_stages=3),
        paged_launch(waves_per_eu=2),
        replace(base, arguments={**base.arguments, "num_keys": 1024}),  # a multiple of 16
    ]
    keys = [cache_key(specialize(launch, get_arch("gfx950"))) for launch in variants]
    keys.append(cache_key(specialize(base, get_arch("gfx942"))))
    monkeypatch.setenv("TRITON_HIP_USE_ASYNC_COPY", "0")
    keys.append(cache_key(specialize(base, get_arch("gfx950"))))
    assert len(set(keys)) == len(keys)


def test_the_key_does_not_depend_on_sizes_that_the_code_does_not_see() -> None:
    launch = paged_launch()
    longer = replace(launch, arguments={**launch.arguments, "num_keys": 5000 + 1})
    keys = [cache_key(specialize(item, get_arch("gfx950"))) for item in (launch, longer, paged_launch(num_pages=65))]
    assert len(set(keys)) == 1
