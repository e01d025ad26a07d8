from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from attn_tune.store.load import LazyTable, load_table, open_table
from attn_tune.store.table import Table, TableError

READERS = pytest.mark.parametrize("read", [load_table, open_table])


@READERS
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"# nothing\n", "the file is empty"),
        (b"schema: 1", "ends inside a line"),
        (b"\xff\xfes\0c\0\n\0", "not UTF-8"),
        (b"schema: 1\n\x00\n", "not valid YAML"),
        (b"schema: [1\n", "not valid YAML"),
        (b"[" * 5000 + b"\n", "not"),
        (b"- 1\n", "must be a mapping"),
        (b"just text\n", "must be a mapping"),
        (b"schema: 1\n---\nschema: 1\n", "not valid YAML"),
        (b"schema: 1\nschema: 1\n", "duplicate key 'schema', already on line 1"),
        (b"schema: 1\n", "field arch is missing"),
        (b"arch: 1\n", "field schema is missing"),
    ],
)
def test_a_file_that_is_no_table_is_refused(
    tmp_path: Path, read: Callable[[Path], Table | LazyTable], data: bytes, reason: str
) -> None:
    (tmp_path / "t.yaml").write_bytes(data)
    with pytest.raises(TableError, match=reason):
        read(tmp_path / "t.yaml")


@READERS
def test_a_huge_file_or_no_file_is_refused(tmp_path: Path, read: Callable[[Path], Table | LazyTable]) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing.yaml")
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(TableError, match="larger than 64 MiB"):
        read(tmp_path / "huge.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path, tmp_path / "pipe.yaml"):
        with pytest.raises(TableError, match="not a regular file"):
            read(path)
