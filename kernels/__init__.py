"""The attention kernels and what they tell the tuner.

Importing this package loads neither torch nor triton; the functions that need them do.
"""

from .protocol import COMPILE_OPTIONS, Config, Kernel, Launch, Work
from .registry import get_kernel, kernel_names, register

__all__ = ["COMPILE_OPTIONS", "Config", "Kernel", "Launch", "Work", "get_kernel", "kernel_names", "register"]
