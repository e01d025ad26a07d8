"""Read tables: all of one, strictly, or one family at a time, fast."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ..problem import AttentionFamily
from .check import check_family, check_table
from .evidence import EVIDENCE
from .plain import plain_family, plain_header, split_families
from .table import SCHEMA, SIZE_NAMES, Box, ConfigRow, FamilyTable, RoutingRow, Sizes, Table, TableError
from .yaml_nodes import Value, compose, read_text

T = TypeVar("T")


def load_table(path: str | os.PathLike[str]) -> Table:
    """The whole table, every field and the coverage of every family checked.

    Raises:
        FileNotFoundError: there is no file.
        TableError: anything else, with file, line and field.
    """
    return _whole(path, read_text(path))


def read_with_faults(path: str | os.PathLike[str]) -> tuple[Table, list[TableError]]:
    """The table without the rows that are not valid, and everything that is wrong with it: for a person to mend.

    The coverage of a family is checked once all of its rows are valid.

    Raises:
        FileNotFoundError: there is no file.
        TableError: the file or its header cannot be read.
    """
    faults: list[TableError] = []
    return _whole(path, read_text(path), faults), faults


@dataclass(frozen=True)
class LazyTable:
    """A table whose families are parsed and checked when first asked for.

    ``families`` holds the families of the file in its order, each with the start and end of its block in ``text``.
    """

    path: str | os.PathLike[str]
    arch: str
    compute_units: int
    wave_size: int
    built_with: Mapping[str, str]
    families: Mapping[AttentionFamily, tuple[int, int]]
    text: str = field(repr=False)
    _parsed: dict[AttentionFamily, FamilyTable] = field(default_factory=dict, repr=False, compare=False)

    def family(self, family: AttentionFamily) -> FamilyTable:
        """The rows of one family.

        Raises:
            KeyError: the table does not have the family.
            TableError: its block is not valid.
        """
        if family not in self._parsed:
            start, end = self.families[family]
            block, skipped_lines = self.text[start:end], self.text.count("\n", 0, start)
            parsed = plain_family(family, block, skipped_lines)
            if parsed is None:
                (value,) = compose(self.path, block, skipped_lines).items()
                parsed = _family(replace(value, name=f"families[{list(self.families).index(family)}]"))
            for fault in check_family(parsed, self.path):
                raise fault
            self._parsed[family] = parsed
        return self._parsed[family]


def open_table(path: str | os.PathLike[str]) -> LazyTable:
    """Open a table without parsing its rows: for serving, where one or two of many families are ever asked for.

    A file whose layout was changed so that it cannot be cut safely is loaded whole.

    Raises:
        FileNotFoundError: there is no file.
        TableError: the file or its header is not valid; errors inside a family come from :meth:`LazyTable.family`.
    """
    text = read_text(path)
    split = split_families(text)
    if split is None:
        table = _whole(path, text)
        places = {item.family: (0, 0) for item in table.families}
        parsed = {item.family: item for item in table.families}
        return LazyTable(path, table.arch, table.compute_units, table.wave_size, table.built_with, places, "", parsed)
    header_text, places = split
    header = plain_header(header_text) or _header(compose(path, header_text))[0]
    for fault in check_table(header, path):
        raise fault
    return LazyTable(path, header.arch, header.compute_units, header.wave_size, header.built_with, places, text)


def _whole(path: str | os.PathLike[str], text: str, faults: list[TableError] | None = None) -> Table:
    """The table; what is wrong with it is raised, or added to ``faults`` if those are collected."""
    header, families = _header(compose(path, text))
    tables: dict[AttentionFamily, FamilyTable] = {}
    found = [] if faults is None else faults
    found += check_table(header, path)

    def add(value: Value) -> None:
        before = len(found)
        item = _family(value, faults)
        if item.family in tables:
            value.fail(f"the family is already on line {tables[item.family].line}")
        tables[item.family] = item
        if len(found) == before:
            found.extend(check_family(item, path))

    _each(families.items(), add, faults)
    if faults is None:
        for fault in found:
            raise fault
    return replace(header, families=tuple(tables.values()))


def _header(root: Value) -> tuple[Table, Value]:
    """A table without its families, and the value of its families."""
    schema = root.mapping().get("schema")
    if schema is None:
        root.fail("field schema is missing")
    if schema.integer() != SCHEMA:
        schema.fail(f"schema {schema.integer()} is not supported; this version of attn-tune reads schema {SCHEMA}")
    values = root.fields(("schema", "arch", "built_with", "families"))
    arch = values["arch"].fields(("name", "compute_units", "wave_size"))
    built_with = {name: value.text() for name, value in values["built_with"].mapping().items()}
    numbers = arch["compute_units"].integer(), arch["wave_size"].integer()
    return Table(arch["name"].text(), *numbers, built_with, ()), values["families"]


def _family(value: Value, faults: list[TableError] | None = None) -> FamilyTable:
    values = value.fields(("problem", "routing", "configs"), ("tuned_up_to",))
    problem = {name: item.scalar() for name, item in values["problem"].mapping().items()}
    family = _build(values["problem"], lambda: AttentionFamily.from_dict(problem))
    routing = _each(values["routing"].items(), _routing_row, faults)
    configs = {kernel: _each(rows.items(), _config_row, faults) for kernel, rows in values["configs"].mapping().items()}
    tuned_up_to: Sizes | None = None
    if "tuned_up_to" in values:
        sizes = values["tuned_up_to"].fields(SIZE_NAMES)
        num_seqs, max_seqlen_q, max_seqlen_k = (sizes[name].integer(low=1) for name in SIZE_NAMES)
        tuned_up_to = num_seqs, max_seqlen_q, max_seqlen_k
    return FamilyTable(family, routing, configs, tuned_up_to, value.line)


def _each(values: Iterable[Value], make: Callable[[Value], T], faults: list[TableError] | None) -> tuple[T, ...]:
    """What ``make`` returns for each value; one that is not valid is left out where faults are collected."""
    made = []
    for value in values:
        try:
            made.append(make(value))
        except TableError as fault:
            if faults is None:
                raise
            faults.append(fault)
    return tuple(made)


def _routing_row(value: Value) -> RoutingRow:
    values = value.fields(("max_seqlen_q", "num_seqs", "routes"))
    routes: dict[int, str] = {}
    for start, kernel in values["routes"].mapping().items():
        if not re.fullmatch(r"[1-9][0-9]{0,17}", start):
            kernel.fail("a route starts at a max_seqlen_k of 1 or more")
        routes[int(start)] = kernel.text()
    plane = values["max_seqlen_q"].interval(), values["num_seqs"].interval()
    return _build(value, lambda: RoutingRow(*plane, routes, value.line))


def _config_row(value: Value) -> ConfigRow:
    numbers = ("regret", "best_rule", "spread", "error")
    values = value.fields(("when", "config", "evidence"), ("us", "samples", *numbers))
    when = values["when"].fields(("max_seqlen_q", "num_seqs", "max_seqlen_k"))
    intervals = [when[name].interval() for name in ("max_seqlen_q", "num_seqs", "max_seqlen_k")]
    evidence = values["evidence"].text()
    if evidence not in EVIDENCE:
        values["evidence"].fail(f"must be one of {', '.join(EVIDENCE)}, not {evidence!r}")
    if "us" not in values and evidence != "rule":
        value.fail(f"field us is missing, which a {evidence} row must have")
    return ConfigRow(
        when=_build(values["when"], lambda: Box(*intervals)),
        config={name: item.integer(low=0) for name, item in values["config"].mapping().items()},
        evidence=evidence,
        us=_times(values["us"]) if "us" in values else None,
        samples=values["samples"].integer(low=0) if "samples" in values else 0,
        line=value.line,
        **{name: values[name].number() for name in numbers if name in values},
    )


def _times(value: Value) -> tuple[float, float]:
    import yaml

    ends = [item.number() for item in (value.items() if isinstance(value.node, yaml.SequenceNode) else [value] * 2)]
    if len(ends) != 2 or not 0 < ends[0] <= ends[1]:
        value.fail("must be a time above 0 or [shortest, longest]")
    return ends[0], ends[1]


def _build(value: Value, make: Callable[[], T]) -> T:
    """What ``make`` returns, with its ValueError placed in the file."""
    try:
        return make()
    except TableError:
        raise
    except ValueError as error:
        value.fail(str(error))
