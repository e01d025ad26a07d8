from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from attn_tune.evaluate.source import kernel_source_hash

DEVICE_CODE = "@triton.jit\ndef kernel(): ...\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A new importable package with one module, named after the test."""
    folder = tmp_path / f"package_{abs(hash(request.node.nodeid))}"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "kernel.py").write_text(DEVICE_CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def fresh_hash(name: str) -> str:
    """The hash as another process would compute it."""
    importlib.invalidate_caches()
    kernel_source_hash.cache_clear()
    return kernel_source_hash(name)


def test_the_hash_of_this_project_is_eight_hex_digits() -> None:
    assert re.fullmatch("[0-9a-f]{8}", kernel_source_hash())


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("kernel.py", DEVICE_CODE + "x = 2\n"),
        ("more.py", DEVICE_CODE),
        ("__init__.py", "@gluon.jit\ndef kernel(): ...\n"),
        ("deeper/part.py", DEVICE_CODE),
    ],
)
def test_any_change_of_device_code_changes_the_hash(package: Path, file: str, content: str) -> None:
    before = fresh_hash(package.name)
    assert fresh_hash(package.name) == before
    (package / file).parent.mkdir(exist_ok=True)
    (package / file).write_text(content)
    assert fresh_hash(package.name) != before


@pytest.mark.parametrize(("file", "content"), [("notes.txt", DEVICE_CODE), ("host.py", "x = 1\n")])
def test_other_files_do_not_change_the_hash(package: Path, file: str, content: str) -> None:
    before = fresh_hash(package.name)
    (package / file).write_text(content)
    assert fresh_hash(package.name) == before


def test_a_single_module_is_hashed_by_its_file(package: Path) -> None:
    module = f"{package.name}.kernel"
    before = fresh_hash(module)
    (package / "more.py").write_text("x = 1\n")
    assert fresh_hash(module) == before
    (package / "kernel.py").write_text("x = 2\n")
    assert fresh_hash(module) != before


@pytest.mark.parametrize("name", ["no_such_package", "no_such_package.kernels", "sys"])
def test_a_package_without_source_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        kernel_source_hash(name)
