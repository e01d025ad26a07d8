"""One grid of cases and checks for any route on any device; third parties run it on the kernels that they register.

The project's tests run it on Triton's interpreter, ``benchmarks/correctness.py`` on a GPU. It lies outside the kernels'
package so that a new case leaves the kernels' source hash, and with it journals and tables, as they were.
"""

from .case import Case
from .grid import CASES, LARGE_CASES, LONG_CASES
from .outcome import Outcome, compare, poison, run_case
from .properties import PROPERTIES, SPLIT_PROPERTIES

__all__ = [
    "CASES",
    "LARGE_CASES",
    "LONG_CASES",
    "PROPERTIES",
    "SPLIT_PROPERTIES",
    "Case",
    "Outcome",
    "compare",
    "poison",
    "run_case",
]
