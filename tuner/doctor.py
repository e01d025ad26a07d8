"""Is this installation able to do its work? One check after another, none of which can take the caller down."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from .arch import ARCHS, find_arch
from .device import LocalDevice, local_device
from .evaluate.workers import Outcome, WorkerStartError, run_tasks
from .installed import Provider, providers, required_by
from .probe import compile_for, import_module
from .store.load import LazyTable, open_table
from .store.overlay import table_paths
from .store.table import TableError

MIN_TRITON = (3, 6)
OK, WARNING, BROKEN = "ok", "warning", "broken"


@dataclass(frozen=True)
class Check:
    """One finding: ``status`` is ok, warning or broken, ``fix`` what to do about it."""

    subject: str
    status: str
    detail: str
    fix: str = ""


def diagnose(time_limit: float = 120.0) -> Iterator[Check]:
    """Check versions, Triton's installation, what it compiles for, the device and the tables.

    Args:
        time_limit: seconds for one import or one compilation, after which its process is killed.
    """
    yield Check("python", OK, f"{sys.version.split()[0]} at {sys.executable}")
    yield _own_version()
    yield check_triton_install(providers("triton"), required_by("torch", [found.name for found in providers("triton")]))
    imports = [check_import(name, time_limit) for name in ("triton", "torch")]
    yield from imports
    device = local_device()
    if imports[0].status != BROKEN:
        yield from check_archs(device, time_limit)
    yield _device_check(device)
    for arch in ARCHS:
        for path in table_paths(arch):
            if path.exists():
                yield check_table(arch, path)
    if not any(path.exists() for arch in ARCHS for path in table_paths(arch)):
        yield Check("tables", WARNING, "none found: lookups answer with rules", "attn-tune sweep --arch ARCH")


def check_triton_install(found: list[Provider], wanted: str | None) -> Check:
    """Whether exactly one distribution provides Triton, whole. ``wanted`` is the one that torch requires, if any."""
    subject = "triton install"
    if not found:
        return Check(subject, BROKEN, "no distribution provides the module triton", "pip install 'triton>=3.6'")
    keep = next((provider for provider in found if provider.name == wanted), found[0])
    reinstall = f"pip install --force-reinstall --no-deps {keep.name}=={keep.version}"
    if keep.name != "triton":
        reinstall += " (from the index that torch came from)"
    faults = [fault for provider in found for fault in provider.faults]
    broken = f"; {len(faults)} files are not as installed: {faults[0]}" if faults else ""
    if len(found) > 1:
        fix = f"pip uninstall -y {' '.join(dict.fromkeys(provider.name for provider in found))} && {reinstall}"
        detail = f"{len(found)} distributions provide the module triton: {', '.join(map(str, found))}"
        return Check(subject, BROKEN if faults else WARNING, detail + broken, fix)
    return Check(subject, BROKEN if faults else OK, f"{found[0]}{broken}", reinstall if faults else "")


def check_import(name: str, time_limit: float) -> Check:
    """Import triton or torch in a process of its own and say which version came from where."""
    spec = find_spec(name)
    if spec is None:
        return Check(name, BROKEN, "is not installed", f"pip install {name}")
    place = os.path.dirname(spec.origin) if spec.origin else "a directory without __init__.py"
    try:
        ((_, outcome),) = run_tasks(import_module, [name], workers=1, time_limit=time_limit)
    except WorkerStartError as error:
        outcome = Outcome("crash", None, str(error), 0.0)
    if outcome.value is None:
        return Check(name, BROKEN, f"import {name} fails ({outcome.status}): {outcome.message}", f"reinstall {name}")
    found, built_for = outcome.value
    detail = f"{found}{f' for {built_for}' if built_for else ''} in {place}"
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
    if name == "triton" and numbers < MIN_TRITON:
        needed = ".".join(map(str, MIN_TRITON))
        return Check(name, BROKEN, f"{detail} is older than {needed}", f"pip install 'triton>={needed}'")
    return Check(name, OK, detail)


def check_archs(device: LocalDevice | None, time_limit: float) -> Iterator[Check]:
    """Compile a small kernel for every known arch. A failure counts as broken for the device's own arch, or for all."""
    outcomes: dict[str, Outcome[str]] = {}
    try:
        for arch, outcome in run_tasks(compile_for, ARCHS, workers=os.cpu_count() or 1, time_limit=time_limit):
            outcomes[arch] = outcome
    except WorkerStartError as error:
        yield Check("compile", BROKEN, str(error))
        return
    some_work = any(outcome.status == "ok" for outcome in outcomes.values())
    for arch in ARCHS:
        outcome = outcomes[arch]
        if outcome.value:
            yield Check(f"compile {arch}", OK, f"{outcome.value}, {outcome.seconds:.1f} s")
        elif outcome.status == "ok":
            detail = "compiles, but without matrix instructions: this Triton is too old for the arch"
            yield Check(f"compile {arch}", WARNING, detail, "a newer triton")
        else:
            own = device is not None and device.arch == arch
            status = BROKEN if own or not some_work else WARNING
            yield Check(f"compile {arch}", status, f"{outcome.status}: {outcome.message}")


def check_table(arch: str, path: Path) -> Check:
    """Read a whole table, family by family, and count its families by their weakest evidence."""
    subject = f"table {arch}"
    try:
        table = open_table(path)
        evidence = [table.family(family).evidence for family in table.families]
    except (OSError, TableError) as error:
        return Check(subject, BROKEN, str(error), f"attn-tune check {path}")
    counts = ", ".join(f"{evidence.count(kind)} {kind}" for kind in sorted(set(evidence)))
    return Check(subject, OK, f"{len(evidence)} families ({counts or 'empty'}), {_built_with(table)}, {path}")


def _built_with(table: LazyTable) -> str:
    return "built with " + " ".join(f"{name} {value}" for name, value in table.built_with.items())


def _own_version() -> Check:
    place = Path(__file__).parent
    try:
        return Check("attn-tune", OK, f"{version('attn-tune')} in {place}")
    except PackageNotFoundError:
        return Check("attn-tune", WARNING, f"runs from {place} without being installed", "pip install -e .")


def _device_check(device: LocalDevice | None) -> Check:
    if device is None:
        return Check("device", OK, "none found: tables can be built and asked for, kernels not run")
    partition = f", partition {device.partition}" if device.partition else ""
    detail = f"{device.name}: {device.arch}, {device.compute_units} units{partition}"
    spec = find_arch(device.arch)
    if spec is None:
        return Check("device", WARNING, f"{detail}; no facts are known about this arch: lookups answer with rules")
    if spec.compute_units != device.compute_units:
        detail += f" (the whole {spec.name} has {spec.compute_units})"
    return Check("device", OK, detail)
