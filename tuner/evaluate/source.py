"""A short fingerprint of kernel source, so that results of an older kernel are never taken for those of a newer one."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from pathlib import Path

KERNELS_PACKAGE = __package__.rpartition(".")[0] + ".kernels"


@functools.cache
def kernel_source_hash(package: str = KERNELS_PACKAGE) -> str:
    """Eight hex digits over the names and bytes of a package's files that hold device code, or of a module's one file.

    Host code is left out: what it changes shows in a launch's signature, constants and options.

    The default is this project's kernels; a third party's kernel passes the package or module that holds it.

    Raises:
        ValueError: there is no such package or module, or it has no Python source.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:
        raise ValueError(f"cannot find the source of {package!r}: {error}") from error
    if spec is not None and spec.submodule_search_locations:
        folders = [Path(folder) for folder in spec.submodule_search_locations]
        files = [(str(file.relative_to(folder)), file) for folder in folders for file in folder.rglob("*.py")]
    elif spec is not None and spec.origin and spec.origin.endswith(".py"):
        files = [("", Path(spec.origin))]
    else:
        files = []
    if not files:
        raise ValueError(f"{package!r} has no Python source")
    digest = hashlib.sha256()
    for name, file in sorted(files):
        content = file.read_bytes()
        if name and b"@triton.jit" not in content and b"@gluon.jit" not in content:
            continue
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:8]
