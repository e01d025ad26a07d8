"""The wheel: what `pip install` puts on a machine that has no clone of the repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TREES = {"tuner": "attn_tune", "kernels": "attn_tune/kernels", "configs": "attn_tune/configs"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, since setuptools writes beside the sources."""
    clone, dist = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    for tree in TREES:
        shutil.copytree(ROOT / tree, clone / tree)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(dist), str(clone)]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    (path,) = dist.glob("attn_tune-*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
@pytest.mark.parametrize("tree", TREES)
def test_the_wheel_holds_every_module_and_data_file(wheel: zipfile.ZipFile, tree: str) -> None:
    names = set(wheel.namelist())
    expected = [
        f"{TREES[tree]}/{path.relative_to(ROOT / tree).as_posix()}"
        for pattern in ("*.py", "*.yaml", "py.typed")
        for path in (ROOT / tree).rglob(pattern)
    ]
    assert expected
    assert [name for name in expected if name not in names] == []


@pytest.mark.slow
def test_the_wheel_holds_nothing_but_the_package_and_its_metadata(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"attn_tune"}


@pytest.mark.slow
def test_the_wheel_names_its_command_its_python_and_its_licence(wheel: zipfile.ZipFile) -> None:
    texts = {name.split("/", 1)[1]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "attn-tune = attn_tune.cli:main" in wheel.read(texts["entry_points.txt"]).decode()
    metadata = wheel.read(texts["METADATA"]).decode()
    assert "Requires-Python: >=3.10" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert "Apache License" in wheel.read(texts["licenses/LICENSE"]).decode()
