"""Families to tune from a file that a user wrote."""

from __future__ import annotations

import os

from ..problem import AttentionFamily
from ..store.table import TableError
from ..store.yaml_nodes import compose, read_text


def load_shapes(path: str | os.PathLike[str]) -> list[AttentionFamily]:
    """The families of a YAML file: a list of mappings with the fields of a table's ``problem``.

    Raises:
        TableError: the file is not such a list; the message names line and field.
        OSError: the file cannot be read.
    """
    families = []
    for entry in compose(path, read_text(path)).items():
        fields = {name: value.scalar() for name, value in entry.mapping().items()}
        try:
            families.append(AttentionFamily.from_dict(fields))
        except ValueError as error:
            raise TableError(path, entry.line, entry.name, str(error)) from error
    if not families:
        raise TableError(path, 1, "", "no shapes in the file")
    return list(dict.fromkeys(families))
