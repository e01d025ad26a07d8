"""A strict view of YAML: every value knows its line and name, and nothing is converted behind the reader's back."""

from __future__ import annotations

import math
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from .table import TableError
from .yaml_text import Interval

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 64 << 20

_INTEGER = re.compile(r"0|[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+][0-9]+)?")
_TAG = "tag:yaml.org,2002:"


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a table file, without a byte-order mark and with plain line ends.

    Raises:
        FileNotFoundError: there is no file.
        TableError: it is empty, cut off inside a line, larger than 64 MiB, not UTF-8, not a file, or unreadable.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise TableError(path, 0, "", "is not a regular file")
        if status.st_size > MAX_BYTES:
            raise TableError(path, 0, "", f"is larger than {MAX_BYTES >> 20} MiB")
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TableError(path, 0, "", f"cannot be read: {error.strerror}") from error
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise TableError(path, data.count(b"\n", 0, error.start) + 1, "", "is not UTF-8 text") from error
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if not text or text.isspace():
        raise TableError(path, 0, "", "the file is empty")
    # Half a number is still a number, so a cut inside a line cannot be left to the YAML parser.
    if not text.endswith("\n"):
        raise TableError(path, text.count("\n") + 1, "", "the file ends inside a line: cut off, or no final line end")
    return text


def compose(path: str | os.PathLike[str], text: str, skipped_lines: int = 0) -> Value:
    """The root of a YAML text that starts after ``skipped_lines`` lines of the file. Raises TableError."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = skipped_lines + mark.line + 1 if mark else 0
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "not readable"
        raise TableError(path, line, "", f"is not valid YAML: {reason}") from error
    except RecursionError as error:
        raise TableError(path, 0, "", "is not a table: nested too deeply") from error
    if root is None:
        raise TableError(path, 0, "", "the file is empty")
    return Value(path, root, "", skipped_lines)


@dataclass(frozen=True)
class Value:
    """A YAML node with its place in the file. Every method raises TableError when the node is something else."""

    path: str | os.PathLike[str]
    node: yaml.Node
    name: str  # dotted path of fields
    skipped_lines: int

    @property
    def line(self) -> int:
        """Line in the file, from 1."""
        return int(self.node.start_mark.line) + self.skipped_lines + 1

    def fail(self, reason: str) -> NoReturn:
        """Raise TableError for this value."""
        raise TableError(self.path, self.line, self.name, reason)

    def mapping(self) -> dict[str, Value]:
        """The values by the text of their keys; a duplicate key is an error."""
        import yaml

        if not isinstance(self.node, yaml.MappingNode):
            self.fail(f"must be a mapping, not {self._describe()}")
        out: dict[str, Value] = {}
        for key_node, node in self.node.value:
            key = Value(self.path, key_node, self.name, self.skipped_lines)
            if not isinstance(key_node, yaml.ScalarNode):
                key.fail("a key must be a single word")
            name = str(key_node.value)
            if name in out:
                key.fail(f"duplicate key {name!r}, already on line {out[name].line}")
            out[name] = Value(self.path, node, f"{self.name}.{name}" if self.name else name, self.skipped_lines)
        return out

    def fields(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Value]:
        """A mapping with exactly the fields named."""
        values = self.mapping()
        for name, value in values.items():
            if name not in required + optional:
                value.fail(f"unknown field; known: {', '.join(required + optional)}")
        for name in required:
            if name not in values:
                self.fail(f"field {name} is missing")
        return values

    def items(self) -> list[Value]:
        """The values of a sequence."""
        import yaml

        if not isinstance(self.node, yaml.SequenceNode):
            self.fail(f"must be a list, not {self._describe()}")
        return [
            Value(self.path, node, f"{self.name}[{i}]", self.skipped_lines) for i, node in enumerate(self.node.value)
        ]

    def integer(self, low: int = 1) -> int:
        """A plain decimal integer of at least ``low``."""
        text = self._plain("int")
        if text is None or not _INTEGER.fullmatch(text) or int(text) < low:
            self.fail(f"must be an integer from {low} on, not {self._describe()}")
        return int(text)

    def number(self) -> float:
        """A finite number of at least 0."""
        text = self._plain("float") or self._plain("int")
        if text is None or not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            self.fail(f"must be a number such as 0.001, not {self._describe()}")
        return float(text)

    def interval(self) -> Interval:
        """[low, high]; ``.inf`` leaves it open."""
        ends = self.items()
        if len(ends) != 2:
            self.fail(f"must be [low, high], not {len(ends)} values")
        low, high = ends
        if (high._plain("float") or "").lower() == ".inf":
            return low.integer(), math.inf
        return low.integer(), high.integer()

    def text(self) -> str:
        """A string."""
        if self.node.tag != _TAG + "str":
            self.fail(f"must be text, not {self._describe()}")
        return str(self.node.value)

    def scalar(self) -> bool | int | str:
        """``true`` or ``false``, a decimal integer, or text."""
        kind = self.node.tag.removeprefix(_TAG)
        if kind == "bool":
            if self.node.value not in ("true", "false"):
                self.fail(f"write true or false, or quote the text: {self._describe()}")
            return bool(self.node.value == "true")
        if kind == "str":
            return self.text()
        return self.integer(low=0)

    def _plain(self, kind: str) -> str | None:
        """The text of an unquoted scalar that YAML resolves to ``kind`` by itself."""
        import yaml

        is_plain = isinstance(self.node, yaml.ScalarNode) and not self.node.style
        return str(self.node.value) if is_plain and self.node.tag == _TAG + kind else None

    def _describe(self) -> str:
        import yaml

        if not isinstance(self.node, yaml.ScalarNode):
            return "a mapping" if isinstance(self.node, yaml.MappingNode) else "a list"
        kinds = {"str": "text", "int": "an integer", "float": "a number", "bool": "true or false", "null": "nothing"}
        kind = self.node.tag.removeprefix(_TAG)
        return f"{self.node.value!r}, which YAML reads as {kinds.get(kind, kind)}"
