"""The routes by name; third parties add theirs with :func:`register`."""

from __future__ import annotations

from .protocol import Kernel
from .routes import ROUTES

_KERNELS: dict[str, Kernel] = dict(ROUTES)


def register(kernel: Kernel) -> None:
    """Add a route. Raises ValueError if the name is taken."""
    if kernel.name in _KERNELS:
        raise ValueError(f"kernel {kernel.name!r} is already registered")
    _KERNELS[kernel.name] = kernel


def get_kernel(name: str) -> Kernel:
    """The route of this name. Raises ValueError listing the known ones."""
    try:
        return _KERNELS[name]
    except KeyError:
        raise ValueError(f"kernel {name!r} is unknown; known kernels: {', '.join(_KERNELS)}") from None


def kernel_names() -> tuple[str, ...]:
    """Every registered route, in the order of registration."""
    return tuple(_KERNELS)
