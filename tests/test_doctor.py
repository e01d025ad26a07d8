from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attn_tune.arch import ARCHS
from attn_tune.device import LocalDevice
from attn_tune.doctor import BROKEN, OK, WARNING, check_archs, check_import, check_table, check_triton_install
from attn_tune.installed import providers, required_by
from attn_tune.problem import AttentionFamily
from attn_tune.store.table import Box, ConfigRow, FamilyTable, RoutingRow, Table, write_table


def install(site: Path, name: str, version: str, files: dict[str, str], requires: str = "") -> None:
    """What pip leaves behind: the files, and the distribution's metadata with a record of them."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata + (f"Requires-Dist: {requires}\n" if requires else ""))
    record = []
    for file, text in files.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(text)
        record.append(f"{file},sha256=x,{len(text)}")
    (info / "RECORD").write_text("\n".join([*record, f"{info.name}/RECORD,,"]) + "\n")


TRITON = {"triton/__init__.py": "__version__ = '3.9.0'\n", "triton/language.py": "x = 1\n"}


def install_check(site: Path) -> tuple[str, str, str]:
    found = providers("triton", [str(site)])
    wanted = required_by("torch", [provider.name for provider in found], [str(site)])
    check = check_triton_install(found, wanted)
    return check.status, check.detail, check.fix


def test_one_whole_triton_is_fine(tmp_path: Path) -> None:
    install(tmp_path, "triton", "3.9.0", TRITON)
    install(tmp_path, "triton-viz", "1.0", {"triton_viz/__init__.py": ""})
    status, detail, fix = install_check(tmp_path)
    assert (status, fix) == (OK, "")
    assert "triton 3.9.0" in detail


def test_no_triton_is_broken(tmp_path: Path) -> None:
    status, _, fix = install_check(tmp_path)
    assert status == BROKEN
    assert "pip install" in fix


@pytest.mark.parametrize("other", ["pytorch-triton-rocm", "triton-rocm", "pytorch_triton_xpu"])
def test_a_doubled_triton_is_a_warning_that_keeps_what_torch_requires(tmp_path: Path, other: str) -> None:
    install(tmp_path, "triton", "3.9.0", TRITON)
    install(tmp_path, other, "3.6.0", TRITON)
    install(tmp_path, "torch", "2.10", {"torch/__init__.py": ""}, f'{other} (==3.6.0) ; platform_system == "Linux"')
    other = other.replace("_", "-")
    status, detail, fix = install_check(tmp_path)
    assert status == WARNING
    assert "triton 3.9.0" in detail
    assert f"{other} 3.6.0" in detail
    uninstall, _, keep = fix.partition("&&")
    assert set(uninstall.split()[3:]) == {"triton", other}
    assert f"{other}==3.6.0" in keep


def test_a_triton_overwritten_by_another_is_broken(tmp_path: Path) -> None:
    install(tmp_path, "pytorch-triton-rocm", "3.6.0", TRITON)
    install(tmp_path, "triton", "3.9.0", TRITON | {"triton/language.py": "another = 1\n"})
    status, detail, _ = install_check(tmp_path)
    assert status == BROKEN
    assert "triton/language.py" in detail


def test_missing_files_are_broken(tmp_path: Path) -> None:
    install(tmp_path, "triton", "3.9.0", TRITON)
    (tmp_path / "triton/language.py").unlink()
    status, detail, fix = install_check(tmp_path)
    assert status == BROKEN
    assert "triton/language.py is missing" in detail
    assert "triton==3.9.0" in fix


def test_a_shadowed_triton_is_a_warning(tmp_path: Path) -> None:
    for directory in ("first", "second"):
        install(tmp_path / directory, "triton", "3.9.0", TRITON)
    (tmp_path / "link").symlink_to("second")  # as lib64 is to lib
    found = providers("triton", [str(tmp_path / name) for name in ("first", "second", "link")])
    assert [Path(provider.location).name for provider in found] == ["first", "second"]
    assert check_triton_install(found, None).status == WARNING


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("raises", "raise OSError('libamdhip64.so: cannot open')", "libamdhip64.so"),
        ("aborts", "import os; os.abort()", "SIGABRT"),
        ("hangs", "import time; time.sleep(60)", "timeout"),
    ],
)
def test_a_failing_import_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str, reason: str
) -> None:
    (tmp_path / f"{name}_on_import.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    check = check_import(f"{name}_on_import", 2)
    assert check.status == BROKEN
    assert reason in check.detail


def test_a_module_that_is_not_installed() -> None:
    check = check_import("no_module_of_this_name", 2)
    assert check.status == BROKEN
    assert "pip install" in check.fix


@pytest.mark.parametrize(("version", "status"), [("3.4.0", BROKEN), ("3.6.0+rocm", OK), ("4.0", OK)])
def test_an_old_triton_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, status: str) -> None:
    install(tmp_path, "triton", version, {"triton/__init__.py": f"__version__ = {version!r}\n"})
    monkeypatch.syspath_prepend(str(tmp_path))
    check = check_import("triton", 30)
    assert check.status == status
    assert version in check.detail


def test_every_arch_compiles() -> None:
    checks = {check.subject: check for check in check_archs(None, 120)}
    assert list(checks) == [f"compile {arch}" for arch in ARCHS]
    assert {check.status for check in checks.values()} == {OK}
    assert "v_mfma_f32" in checks["compile gfx950"].detail
    assert "v_wmma_f32" in checks["compile gfx1250"].detail


def test_a_compiler_that_is_too_slow_breaks_the_devices_arch() -> None:
    statuses = {check.subject: check.status for check in check_archs(LocalDevice("gfx950", 256, "MI355X"), 1e-3)}
    assert set(statuses.values()) == {BROKEN}  # none compiles


FAMILY = AttentionFamily(16, 1, 256)
TABLE = Table(
    "gfx950",
    256,
    64,
    {"attn_tune": "0.1.0", "triton": "3.9.0"},
    (
        FamilyTable(
            FAMILY,
            (RoutingRow((1, float("inf")), (1, float("inf")), {1: "paged_2d"}),),
            {"paged_2d": (ConfigRow(Box((1, float("inf")), (1, float("inf"))), {"BLOCK_M": 16}, "rule"),)},
        ),
    ),
)


def test_a_table_is_counted_by_evidence(tmp_path: Path) -> None:
    write_table(tmp_path / "gfx950.yaml", TABLE)
    check = check_table("gfx950", tmp_path / "gfx950.yaml")
    assert check.status == OK
    assert "1 families (1 rule)" in check.detail
    assert "triton 3.9.0" in check.detail


def run_doctor(tmp_path: Path, **environment: str) -> tuple[int, str]:
    code = (
        "import typer; from attn_tune.cli.doctor import doctor; app = typer.Typer(); "
        "app.command()(doctor); app.callback()(lambda: None); app()"
    )
    environment = {**os.environ, "ATTN_TUNE_CONFIG_DIR": str(tmp_path), **environment}
    command = [sys.executable, "-c", code, "doctor", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_the_command_passes_here(tmp_path: Path) -> None:
    write_table(tmp_path / "gfx950.yaml", TABLE)
    code, text = run_doctor(tmp_path)
    report = json.loads(text)
    subjects = [check["subject"] for check in report["checks"]]
    assert code == 0
    assert report["ok"]
    for subject in ("python", "attn-tune", "triton install", "triton", "torch", "compile gfx1250", "device"):
        assert subject in subjects
    assert any(str(tmp_path) in check["detail"] for check in report["checks"])


def test_the_command_fails_on_a_broken_table_and_a_broken_triton(tmp_path: Path) -> None:
    (tmp_path / "gfx950.yaml").write_text("schema: 1\narch: {name: gfx950\n")
    broken = tmp_path / "site/triton"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libtriton.so is missing')\n")
    code, text = run_doctor(tmp_path, PYTHONPATH=str(tmp_path / "site"))
    report = json.loads(text)
    details = {check["subject"]: check["detail"] for check in report["checks"] if check["status"] == BROKEN}
    assert code == 1
    assert not report["ok"]
    assert "libtriton.so is missing" in details["triton"]
    assert "gfx950.yaml" in details["table gfx950"]
