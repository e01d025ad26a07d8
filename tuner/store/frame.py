"""Trials as a pandas table, for looking at a sweep by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .trial import Trial

if TYPE_CHECKING:
    import pandas


def trials_frame(trials: Iterable[Trial]) -> pandas.DataFrame:
    """One row a trial: family and sizes, kernel, one column for each parameter, status, times and error.

    Sizes are missing on compile-only trials, parameters on kernels without them. ``policy`` is how it was timed:
    compare times of one policy only.

        frame = trials_frame(Journal(path).load().values())
        frame[frame.status == "ok"].groupby(["family", "num_seqs", "max_seqlen_q", "max_seqlen_k"])["us"].min()
    """
    import pandas

    frame: pandas.DataFrame = pandas.DataFrame([_row(trial) for trial in trials])
    return frame


def _row(trial: Trial) -> dict[str, object]:
    num_seqs, max_seqlen_q, max_seqlen_k = trial.sizes or (None, None, None)
    return {
        "family": str(trial.family),
        "num_seqs": num_seqs,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
        "arch": trial.arch,
        "kernel": trial.kernel,
        **trial.config,
        "status": trial.status,
        "evidence": trial.evidence,
        "us": trial.us,
        "spread": trial.spread,
        "samples": trial.samples,
        "error": trial.error,
        "message": trial.message,
        **{name: trial.environment.get(name) for name in ("triton", "kernels", "policy")},
    }
