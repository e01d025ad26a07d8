"""Random cells between the tuned sizes, as a file for ``attn-tune bench --cells``: does a table hold in between?

    python benchmarks/cells_between.py 17 > cells.yaml
    attn-tune bench --cells cells.yaml

36 cells for each family of the benchmark, decode, verify and chunks of prompts, the same for the same number.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

import yaml

from attn_tune.cells import FAMILIES

CELLS_OF_A_FAMILY = 36
MAX_CACHE_BYTES = 30e9


def random_sizes(rng: random.Random) -> tuple[str, tuple[int, int, int]]:
    """A kind of batch, and its (num_seqs, max_seqlen_q, max_seqlen_k)."""

    def one_of(values: Sequence[int]) -> int:
        return rng.choice(values)

    kind = rng.choices(("decode", "verify", "prefill"), (16, 16, 4))[0]
    if kind == "decode":
        keys = (300, 700, 2048, 3000, 4096, 5000, 12000, 16384, 24000, 50000, 65536, 100000)
        return kind, (one_of((1, 2, 3, 4, 6, 12, 16, 24, 48, 64, 96, 160, 256)), 1, one_of(keys))
    if kind == "verify":
        keys = (500, 2048, 3000, 4096, 16384, 20000, 32768, 40000, 120000)
        num_seqs, queries = one_of((1, 2, 3, 4, 6, 12, 16, 32, 48, 96)), one_of((2, 3, 4, 5, 6, 7, 8, 12, 16))
        return kind, (num_seqs, queries, one_of(keys))
    num_seqs, queries, context = (
        one_of((1, 2, 3, 6)),
        one_of((128, 512, 700, 1024, 3000)),
        one_of((0, 1000, 8000, 20000)),
    )
    return kind, (num_seqs, queries, queries + context)


def main() -> None:
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        raise SystemExit("usage: python benchmarks/cells_between.py NUMBER > cells.yaml")
    rng = random.Random(int(sys.argv[1]))
    cells = []
    for name, family in FAMILIES.items():
        seen: set[tuple[int, int, int]] = set()
        while len(seen) < CELLS_OF_A_FAMILY:
            kind, sizes = random_sizes(rng)
            if sizes in seen or sizes[0] * sizes[2] * family.bytes_per_token > MAX_CACHE_BYTES:
                continue
            seen.add(sizes)
            own = dict(zip(("num_seqs", "max_seqlen_q", "max_seqlen_k"), sizes, strict=True))
            title = "{}x{}@{}".format(*sizes)
            cells.append({"name": f"{name}/{kind}/{title}", **vars(family), **own})
    yaml.safe_dump(cells, sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
