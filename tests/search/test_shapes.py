from __future__ import annotations

from pathlib import Path

import pytest

from attn_tune.problem import AttentionFamily
from attn_tune.search.shapes import load_shapes
from attn_tune.store.table import TableError

TEXT = """\
# heads of one GPU
- {num_query_heads: 16, num_kv_heads: 1, head_size: 256, kv_dtype: fp8}
- num_query_heads: 8
  num_kv_heads: 8
  head_size: 64
  sliding_window: 128
  sinks: true
"""


def test_shapes_are_families_with_the_usual_defaults(tmp_path: Path) -> None:
    path = tmp_path / "shapes.yaml"
    path.write_text(TEXT)
    assert load_shapes(path) == [
        AttentionFamily(16, 1, 256, kv_dtype="fp8_e4m3", kv_scales="per_tensor"),
        AttentionFamily(8, 8, 64, sliding_window=128, sinks=True),
    ]


def test_a_shape_that_appears_twice_is_tuned_once(tmp_path: Path) -> None:
    path = tmp_path / "shapes.yaml"
    path.write_text(TEXT + TEXT.splitlines()[1].replace("fp8}", "float8_e4m3fn, page_size: 16}\n"))
    assert len(load_shapes(path)) == 2


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("head_size: 256", "head_size: 2"), r":2: \[0\]: head_size must be an integer from 8 to 1024, not 2"),
        (("  head_size: 64\n", ""), r":3: \[1\]: problem field head_size is missing"),
        (("sinks: true", "sink: true"), r":3: \[1\]: unknown problem field 'sink'"),
        (("sinks: true", "sinks: on"), r":7: \[1\]\.sinks: write true or false"),
        (("sliding_window: 128", "sliding_window: 0120"), r":6: \[1\]\.sliding_window: must be an integer"),
        (("  sinks: true\n", "  sinks: true\n  head_size: 32\n"), r":8: \[1\]: duplicate key 'head_size', already on"),
        (("kv_dtype: fp8}", "kv_dtype: fp4}"), r":2: \[0\]: kv_dtype must be one of "),
        (("kv_dtype: fp8}", "kv_dtype: fp8"), r"is not valid YAML"),
        ((TEXT, "[]\n"), r":1: no shapes in the file"),
        ((TEXT, "# nothing\n"), r"the file is empty"),
        ((TEXT, "shapes: []\n"), r":1: must be a list, not a mapping"),
        (("sinks: true\n", "sinks: true"), r":7: the file ends inside a line"),
    ],
)
def test_a_mistake_names_its_line_and_field(tmp_path: Path, edit: tuple[str, str], message: str) -> None:
    path = tmp_path / "shapes.yaml"
    assert edit[0] in TEXT
    path.write_text(TEXT.replace(*edit))
    with pytest.raises(TableError, match=message) as caught:
        load_shapes(path)
    assert str(caught.value).startswith(str(path))


def test_a_file_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.yaml"):
        load_shapes(tmp_path / "none.yaml")
