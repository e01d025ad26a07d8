"""The staged search against an exhaustive one on recorded measurements; needs no GPU.

    python benchmarks/staged_search.py [--journal benchmarks/data/sm_90_exhaustive.trials.jsonl.xz]

The journal is one of ``attn-tune sweep --search exhaustive``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from attn_tune.search.bench import geomean
from attn_tune.store.journal import Journal
from attn_tune.testing.replay import recorded_cells, replay

JOURNAL = Path(__file__).parent / "data" / "sm_90_exhaustive.trials.jsonl.xz"


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--journal", type=Path, default=JOURNAL, help="trials of an exhaustive sweep")
    cells = recorded_cells(Journal(parser.parse_args().journal).load().values())
    if not cells:
        raise SystemExit("the journal has no measured cell")
    print(f"{'cell':57} {'best us':>8} {'staged us':>9} {'ratio':>6} {'timed':>6} {'of':>5}")
    results = [replay(cell) for cell in cells]
    for item in results:
        print(
            f"{item.cell.problem!s:57} {item.cell.best_us:8.1f} {item.us:9.1f} {item.ratio:6.3f} "
            f"{item.timed:6} {len(item.cell.trials):5}"
        )
    timed, recorded = sum(item.timed for item in results), sum(len(item.cell.trials) for item in results)
    print(
        f"geomean {geomean(item.ratio for item in results):.4f}, worst {max(item.ratio for item in results):.3f}, "
        f"timed {timed} of {recorded} ({timed / recorded:.1%})"
    )


if __name__ == "__main__":
    main()
