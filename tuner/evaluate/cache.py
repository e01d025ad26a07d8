"""Compile results on disk, good and bad, so that no configuration is compiled twice and no failure is repeated.

One JSON file per compilation, named by the hash of everything that decides its result. Files are written whole and
renamed into place: concurrent runs share the folder without locks, and the last writer of equal results wins.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from .resources import Resources
from .source import KERNELS_PACKAGE, kernel_source_hash
from .specialize import Specialization

_FORMAT = 1  # of the records, and of what read_resources counts


@dataclass(frozen=True)
class CompileRecord:
    """The result of one compilation: ``ok`` with resources, or ``compile_error``, ``timeout`` or ``crash``.

    ``time_limit`` (seconds) is the limit that a timeout ran into.
    """

    status: str
    message: str
    seconds: float
    time_limit: float
    resources: Resources | None = None


def cache_folder() -> Path:
    """``$ATTN_TUNE_CACHE_DIR``, else ``attn-tune/compiles`` in the XDG cache folder."""
    if folder := os.environ.get("ATTN_TUNE_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attn-tune" / "compiles"


def cache_key(specialization: Specialization) -> str:
    """SHA-256 over the specialization, the source of the kernel's package, the Triton version and Triton's settings."""
    import triton
    from triton._C.libtriton import get_cache_invalidating_env_vars

    module = specialization.kernel.partition(":")[0]
    package = module.rpartition(".")[0] or module
    source = kernel_source_hash(KERNELS_PACKAGE if package.startswith(KERNELS_PACKAGE) else package)
    settings = sorted(get_cache_invalidating_env_vars().items())
    text = f"{_FORMAT}\n{specialization}\n{source}\n{triton.__version__}\n{settings}"
    return hashlib.sha256(text.encode()).hexdigest()


class CompileCache:
    """The records in one folder. A record that cannot be read is a miss; one that cannot be written is a warning."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder()

    def get(self, key: str, time_limit: float) -> CompileRecord | None:
        """The record of a key, or None. A timeout counts only if its limit was at least ``time_limit`` seconds."""
        try:
            values = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
            found = values.pop("resources")
            record = CompileRecord(resources=None if found is None else Resources.from_dict(found), **values)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return None if record.status == "timeout" and record.time_limit < time_limit else record

    def put(self, key: str, record: CompileRecord) -> None:
        """Store a record atomically."""
        values = {
            "status": record.status,
            "message": record.message,
            "seconds": round(record.seconds, 3),
            "time_limit": record.time_limit,
            "resources": record.resources.to_dict() if record.resources else None,
        }
        temporary = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.folder, prefix=f".{key[:16]}-", delete=False, encoding="utf-8"
            ) as file:
                temporary = file.name
                json.dump(values, file)
            os.replace(temporary, self.folder / f"{key}.json")
        except OSError as error:
            warnings.warn(f"compile results are not cached in {self.folder}: {error}", stacklevel=2)
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
