"""Which distributions claim an import package, and whether their files are the ones on disk.

ROCm's and Intel's torch wheels bring Triton under other distribution names, and pip lets two of them write the same
directory: the last one wins file by file, and uninstalling either breaks the other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions


@dataclass(frozen=True)
class Provider:
    """A distribution that provides a package; ``faults`` are its files that are missing or not those it installed."""

    name: str
    version: str
    location: str
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.version} in {self.location}"


def providers(package: str, path: Iterable[str] | None = None) -> list[Provider]:
    """Every distribution on ``path`` (sys.path by default) that provides a top-level package, in the path's order."""
    found = {}
    for distribution in distributions() if path is None else distributions(path=list(path)):
        if package in _top_level(distribution):
            location = os.path.realpath(str(distribution.locate_file("")))  # lib64 may be a link to lib
            key = normalized(distribution.metadata["Name"] or ""), location
            if key not in found:
                faults = tuple(_faults(distribution, package))
                found[key] = Provider(key[0], distribution.version, location, faults)
    return list(found.values())


def required_by(distribution: str, names: Iterable[str], path: Iterable[str] | None = None) -> str | None:
    """The first of some distribution names that an installed distribution requires, or None."""
    found = distributions(name=distribution) if path is None else distributions(name=distribution, path=list(path))
    for installed in found:
        required = {normalized(re.split(r"[^\w.-]", requirement)[0]) for requirement in installed.requires or ()}
        return next((name for name in names if name in required), None)
    return None


def normalized(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _top_level(distribution: Distribution) -> set[str]:
    listed = distribution.read_text("top_level.txt")
    if listed is not None:
        return set(listed.split())
    return {file.parts[0] for file in distribution.files or () if len(file.parts) > 1}


def _faults(distribution: Distribution, package: str) -> Iterator[str]:
    for file in distribution.files or ():
        if file.parts[0] != package or file.size is None:
            continue  # without a recorded size it is no part of the wheel, but something compiled later
        try:
            size = os.stat(str(file.locate())).st_size
        except OSError:
            yield f"{file} is missing"
            continue
        if size != file.size:
            yield f"{file} has {size} bytes, not {file.size}"
