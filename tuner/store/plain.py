"""Read the text that ``dump_table`` writes without a YAML parser, which takes longer to import than this takes to run.

Whatever a person may have written differently is left to the parser: a function that is not sure returns None.
"""

from __future__ import annotations

import math
import re

from ..problem import AttentionFamily
from .table import SCHEMA, Box, ConfigRow, FamilyTable, RoutingRow, Table
from .yaml_text import yaml_scalar

Blocks = dict[AttentionFamily, tuple[int, int]]
"""Where the block of each family starts and ends in the text of its file."""

_FIRST = re.compile(r"^( *)- problem:", re.MULTILINE)
_HEADER_END = re.compile(r"^families: *(#.*)?\n( *(#.*)?\n)*\Z", re.MULTILINE)
_PROBLEM = re.compile(r" *- problem: \{([^{}]*)\}[ ]*(?:#.*)?")
_PAIR = re.compile(r"([a-z_]+): (?:(true|false)|(0|[1-9][0-9]{0,17})|([a-z][a-z0-9_]*))")
_YAML_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "null", "true", "false"))
# Anchors, tags, quotes and block text could hide or share what looks like the start of a family.
_UNSAFE = "&*!\"'|>%\t\r\x85\u2028\u2029"

_INTERVAL = r"\[([1-9][0-9]{0,17}), ([1-9][0-9]{0,17}|\.inf)\]"
_NUMBER = r"((?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?)"
_ENTRY = r"[A-Za-z_]+: (?:0|[1-9][0-9]{0,17})"
_HEADER = re.compile(
    rf"(?:#.*\n)*schema: {SCHEMA}\n"
    r"arch: \{name: (\S+), compute_units: ([1-9][0-9]{0,17}), wave_size: ([1-9][0-9]{0,17})\}\n"
    r"built_with: \{(.*)\}\nfamilies:\n"
)
_TUNED = re.compile(
    r"    tuned_up_to: \{num_seqs: ([1-9][0-9]{0,17}), max_seqlen_q: ([1-9][0-9]{0,17}), "
    r"max_seqlen_k: ([1-9][0-9]{0,17})\}\n"
)
_ROUTING = re.compile(rf"      - \{{max_seqlen_q: {_INTERVAL}, num_seqs: {_INTERVAL}, routes: \{{(.*)\}}\}}\n")
_ROUTE = re.compile(r"([1-9][0-9]{0,17}): ([a-z][a-z0-9_]*)")
_KERNEL = re.compile(r"      ([a-z][a-z0-9_]*):\n")
_CONFIG = re.compile(
    rf"        - when: \{{max_seqlen_q: {_INTERVAL}, num_seqs: {_INTERVAL}, max_seqlen_k: {_INTERVAL}\}}\n"
    rf"          config: \{{((?:{_ENTRY}, )*{_ENTRY})\}}\n"
    rf"(?:          us: (?:{_NUMBER}|\[{_NUMBER}, {_NUMBER}\])\n)?"
    r"          evidence: (measured|modelled|rule)\n"
    rf"(?:          regret: {_NUMBER}\n)?(?:          best_rule: {_NUMBER}\n)?(?:          spread: {_NUMBER}\n)?"
    rf"(?:          samples: ([1-9][0-9]{{0,17}})\n)?(?:          error: {_NUMBER}\n)?"
)


def split_families(text: str) -> tuple[str, Blocks] | None:
    """The header of a table's text, and where the blocks of its families are, which may be laid out by hand.

    None when only a full parse can tell the families apart.
    """
    first = _FIRST.search(text)
    if first is None or not _HEADER_END.search(text[: first.start()]):
        return None
    if any(text.find(char, first.start()) >= 0 for char in _UNSAFE):
        return None
    blocks: Blocks = {}
    cuts = _cuts(text, first.start(), first[1])
    for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True):
        line = text[start : text.index("\n", start)]
        family = _plain_problem(line) if line.startswith(first[0]) else None
        if family is None or family in blocks:
            return None
        blocks[family] = start, end
    return text[: first.start()], blocks


def plain_header(text: str) -> Table | None:
    """A table without its families."""
    match = _HEADER.fullmatch(text)
    pairs = [item.split(": ") for item in match[4].split(", ")] if match else []
    if match is None or any(len(pair) != 2 or not all(map(_is_plain_text, pair)) for pair in pairs):
        return None
    built_with = {name: value for name, value in pairs}  # noqa: C416 - dict() of lists does not type-check
    if len(built_with) != len(pairs) or not _is_plain_text(match[1]):
        return None
    return Table(match[1], int(match[2]), int(match[3]), built_with, ())


def plain_family(family: AttentionFamily, block: str, skipped_lines: int) -> FamilyTable | None:
    """The rows of a family's block, which starts after ``skipped_lines`` lines of its file."""
    position = block.index("\n") + 1
    line = skipped_lines + 3
    tuned_up_to = None
    if match := _TUNED.match(block, position):
        tuned_up_to = int(match[1]), int(match[2]), int(match[3])
        position, line = match.end(), line + 1
    if not block.startswith("    routing:\n", position):
        return None
    position += len("    routing:\n")
    routing: list[RoutingRow] = []
    while match := _ROUTING.match(block, position):
        pairs = [_ROUTE.fullmatch(item) for item in match[5].split(", ")]
        routes = {int(pair[1]): pair[2] for pair in pairs if pair and pair[2] not in _YAML_WORDS}
        if len(routes) != len(pairs) or not _in_order(match, 2):
            return None
        routing.append(RoutingRow(_interval(match, 1), _interval(match, 3), routes, line))
        position, line = match.end(), line + 1
    if not block.startswith("    configs:\n", position):
        return None
    position, line = position + len("    configs:\n"), line + 1
    configs: dict[str, tuple[ConfigRow, ...]] = {}
    while kernel := _KERNEL.match(block, position):
        rows: list[ConfigRow] = []
        position, line = kernel.end(), line + 1
        while match := _CONFIG.match(block, position):
            row = _config_row(match, line)
            if row is None:
                return None
            rows.append(row)
            position, line = match.end(), line + match[0].count("\n")
        if not rows or kernel[1] in configs:
            return None
        configs[kernel[1]] = tuple(rows)
    if position < len(block):
        return None
    return FamilyTable(family, tuple(routing), configs, tuned_up_to, skipped_lines + 1)


def _cuts(text: str, first: int, margin: str) -> list[int]:
    """Where lines start that are indented no deeper than ``margin``, from ``first`` on, but for blanks and comments."""
    cuts = [first]
    while (end := text.find(f"\n{margin}- ", cuts[-1])) >= 0:
        cuts.append(end + 1)
    # Counting is many times faster than looking at each line, and tells whether the others are all deeper.
    if text.count("\n", first) == text.count(f"\n{margin} ", first) + len(cuts):
        return cuts
    shallow = re.compile(rf"^ {{0,{len(margin)}}}(?=[^ #\n])", re.MULTILINE)
    return [match.start() for match in shallow.finditer(text, first)]


def _plain_problem(line: str) -> AttentionFamily | None:
    """The family on a ``- problem: {...}`` line that needs no YAML parser to be understood."""
    match = _PROBLEM.fullmatch(line)
    values: dict[str, bool | int | str] = {}
    for item in match[1].split(", ") if match else ():
        pair = _PAIR.fullmatch(item)
        if pair is None or pair[1] in values or pair[4] in _YAML_WORDS:
            return None
        values[pair[1]] = pair[2] == "true" if pair[2] else int(pair[3]) if pair[3] else pair[4]
    try:
        return AttentionFamily.from_dict(values)
    except ValueError:
        return None


def _config_row(match: re.Match[str], line: int) -> ConfigRow | None:
    us = (float(match[8] or match[9]), float(match[8] or match[10])) if match[8] or match[9] else None
    pairs = [item.split(": ") for item in match[7].split(", ")]
    config = {name: int(value) for name, value in pairs}
    if not _in_order(match, 3) or len(config) != len(pairs):
        return None
    if match[11] != "rule" if us is None else not 0 < us[0] <= us[1]:
        return None
    regret, best_rule, spread, error = (float(match[i]) if match[i] else None for i in (12, 13, 14, 16))
    when = Box(_interval(match, 1), _interval(match, 3), _interval(match, 5))
    return ConfigRow(when, config, match[11], us, regret, best_rule, spread, int(match[15] or 0), error, line)


def _interval(match: re.Match[str], group: int) -> tuple[int, float]:
    high = match[group + 1]
    return int(match[group]), math.inf if high == ".inf" else int(high)


def _in_order(match: re.Match[str], intervals: int) -> bool:
    return all(low <= high for low, high in (_interval(match, 1 + 2 * i) for i in range(intervals)))


def _is_plain_text(text: str) -> bool:
    """Whether YAML reads the bare word as text: then it is what the writer would have written."""
    return yaml_scalar(text) == text
