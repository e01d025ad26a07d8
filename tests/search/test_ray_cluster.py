"""Sweeps on a Ray cluster of this machine alone, with made-up GPUs: Ray's processes are real, and so is their loss."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import worker_tasks
from measure_tasks import Stub, use_device
from measured_runs import ARCH, PROBLEMS, key_of, log_lines, measured, run, stub_machines
from measured_runs import journal as journal
from measured_runs import log as log

from attn_tune.device import local_device
from attn_tune.evaluate.compile_many import CompileRequest, compile_configs
from attn_tune.evaluate.workers import MachineError, WorkerStartError
from attn_tune.search import ray_cluster as cluster
from attn_tune.search.machines import Machines, WorkerGoneError
from attn_tune.search.measure_cell import RACE_POLICY, SCREEN_POLICY
from attn_tune.search.propose import rule_compilations
from attn_tune.search.ray_cluster import RayWorker, ray_cluster, run_tasks_on_ray
from attn_tune.search.staged import identity
from attn_tune.store.journal import Journal

FOLDERS = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def _cluster() -> Iterator[None]:
    """Two cores and two GPUs that nobody has; its processes find the tests' modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(FOLDERS))
        ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def machines(_cluster: None) -> Callable[..., Machines]:
    """The cluster's machines, with a stub in place of measuring."""

    def make(stub: Stub, gpus: int = 2) -> Machines:
        def worker(_arch: object, stop: threading.Event) -> RayWorker[Any, Any]:
            return RayWorker(stub, partial(use_device, 0), stop)

        return Machines("the cluster", 2, [worker] * gpus, lambda: None, run_tasks_on_ray)

    return make


def wait_for(condition: Callable[[], Any]) -> Any:
    """The condition's first true value."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not come")


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_cluster_finds_what_this_machine_finds(
    machines: Callable[..., Machines], journal: Journal, log: str, tmp_path: Path
) -> None:
    other = Journal(tmp_path / "other.jsonl")
    other.path.write_bytes(journal.path.read_bytes())
    there = run(journal, Stub(log), machines=machines(Stub(log, seconds=0.2)))
    assert there.complete
    assert len({line[1] for line in log_lines(log)}) == 2  # both GPUs worked
    here = run(other, Stub(log), machines=stub_machines(Stub(str(tmp_path / "other.log"))))
    assert there.trials == here.trials
    assert run(journal, Stub(log), machines=machines(Stub(log))).new_trials == 0


@pytest.mark.parametrize("whose", ["worker", "Ray's"])
def test_a_lost_process_loses_no_other_trial(
    machines: Callable[..., Machines], journal: Journal, log: str, whose: str
) -> None:
    """Killed under a task: the candidate's own process counts as its crash, Ray's is replaced and asked again."""
    outcome: list[Any] = []
    stub = Stub(log, seconds=0.3)
    thread = threading.Thread(target=lambda: outcome.append(run(journal, stub, machines=machines(stub, 1))))
    thread.start()
    victim = int(wait_for(lambda: log_lines(log)[2:])[-1][1])
    os.kill(victim if whose == "worker" else parent_of(victim), signal.SIGKILL)
    thread.join(120)
    (result,) = outcome
    assert result.complete
    statuses = Counter(trial.status for trial in measured(journal, SCREEN_POLICY))
    assert statuses.keys() <= {"ok", "crash"}
    assert statuses["crash"] == (1 if whose == "worker" else 0)
    assert {trial.sizes for trial in measured(journal, RACE_POLICY)} == {problem.sizes for problem in PROBLEMS}
    lines = journal.path.read_text().splitlines()
    assert len(lines) == len(set(lines))
    assert len({line[1] for line in log_lines(log)}) == 2


@pytest.mark.parametrize(("fault", "status"), [("hang", "timeout"), ("raise", "crash")])
def test_a_bad_candidate_is_recorded_and_the_next_one_runs(
    machines: Callable[..., Machines], journal: Journal, log: str, fault: str, status: str
) -> None:
    run(journal, Stub(log))
    bad = identity(key_of(measured(journal, SCREEN_POLICY)[0]))
    kept = [line for line in journal.path.read_text().splitlines() if "graph-replay" not in line]
    journal.path.write_text("\n".join(kept) + "\n")
    result = run(journal, Stub(log), machines=machines(Stub(log, {bad: fault})))
    found = {identity(key_of(trial)): trial.status for trial in measured(journal, SCREEN_POLICY)}
    assert result.complete
    assert found.pop(bad) == status
    assert set(found.values()) == {"ok"}


def test_the_deadline_ends_a_run_on_a_cluster(machines: Callable[..., Machines], journal: Journal, log: str) -> None:
    start = time.monotonic()
    result = run(journal, Stub(log), machines=machines(Stub(log, seconds=100)), deadline=start + 4)
    assert time.monotonic() - start < 10
    assert not result.complete
    assert result.new_trials == 0


@pytest.mark.usefixtures("_cluster")
def test_tasks_that_fail_take_nothing_else_with_them() -> None:
    tasks = ["fine", "raise", "abort", "hang", "also fine"]
    found = dict(run_tasks_on_ray(worker_tasks.misbehave, tasks, workers=2, time_limit=2.0))
    assert {task: outcome.status for task, outcome in found.items()} == {
        "fine": "ok",
        "raise": "error",
        "abort": "crash",
        "hang": "timeout",
        "also fine": "ok",
    }
    assert found["fine"].value == "fine"
    assert "the reason" in found["raise"].message


@pytest.mark.usefixtures("_cluster")
def test_tasks_are_taken_only_as_fast_as_they_run() -> None:
    taken: list[float] = []

    def tasks() -> Iterator[float]:
        for seconds in (1.5, 0.1, 0.1, 0.1):
            taken.append(seconds)
            yield seconds

    results = run_tasks_on_ray(worker_tasks.nap, tasks(), workers=1, time_limit=60)
    next(results)
    assert len(taken) == 1
    assert len(list(results)) == 3


@pytest.mark.usefixtures("_cluster")
def test_compiling_on_a_cluster_gives_what_compiling_here_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTN_TUNE_CACHE_DIR", str(tmp_path / "here"))
    kernel, config = sorted(rule_compilations(PROBLEMS[0].family, ARCH))[0]
    request = CompileRequest(kernel, PROBLEMS[0].family, config)
    ((_, here),) = compile_configs([request], arch=ARCH, time_limit=120)
    monkeypatch.setenv("ATTN_TUNE_CACHE_DIR", str(tmp_path / "there"))
    ((_, there),) = compile_configs([request], arch=ARCH, time_limit=120, jobs=2, runner=run_tasks_on_ray)
    assert (there.status, there.resources, there.cached) == ("ok", here.resources, False)


@pytest.mark.usefixtures("_cluster")
def test_another_version_on_a_machine_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "environment", lambda: {"triton": "2.0.0"})
    words = r"has triton \d\S+, where the sweep has 2\.0\.0"
    with pytest.raises(WorkerStartError, match=words):
        list(run_tasks_on_ray(worker_tasks.square, [1], workers=1, time_limit=60))
    with (
        RayWorker(worker_tasks.square, None, threading.Event()) as worker,
        pytest.raises(WorkerStartError, match=words),
    ):
        worker.ask(1, 60)


@pytest.mark.usefixtures("_cluster")
def test_a_worker_that_cannot_start_says_why() -> None:
    with (
        RayWorker(worker_tasks.square, worker_tasks.refuse, threading.Event()) as worker,
        pytest.raises(WorkerStartError, match="no such device"),
    ):
        worker.ask(1, 60)


@pytest.mark.usefixtures("_cluster")
def test_a_machine_without_the_archs_gpu_is_refused_by_name() -> None:
    with (
        cluster._gpu_worker(ARCH, threading.Event()) as worker,
        pytest.raises(WorkerStartError, match=f"not {ARCH.name} with {ARCH.compute_units}"),
    ):
        worker.ask(None, 60)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_cluster")
def test_a_cluster_is_asked_for_its_gpu() -> None:
    assert cluster._find_device(0) is None
    assert cluster._find_device(1) == local_device()


class Broken:
    """Where a package is missing, Ray's process cannot make the worker."""

    def __init__(self, *_: object) -> None:
        raise ImportError("no module named attn_tune")

    def ready(self) -> None: ...


@pytest.mark.usefixtures("_cluster")
def test_a_machine_that_cannot_make_a_worker_is_no_candidates_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_Host", Broken)
    with (
        RayWorker(worker_tasks.square, None, threading.Event()) as worker,
        pytest.raises(WorkerStartError, match="could not start on a machine of the cluster"),
    ):
        worker.ask(1, 60)


class Idle:
    """An actor that holds its GPU."""

    def ready(self) -> None: ...


@pytest.mark.usefixtures("_cluster")
def test_a_worker_without_a_free_gpu_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PLACEMENT_SECONDS", 1.0)
    held = [ray.remote(num_cpus=0, num_gpus=1)(Idle).remote() for _ in range(2)]
    ray.get([actor.ready.remote() for actor in held])
    with (
        RayWorker(worker_tasks.square, None, threading.Event()) as worker,
        pytest.raises(WorkerGoneError, match="within 1 s"),
    ):
        worker.ask(1, 60)
    for actor in held:
        ray.kill(actor)


@pytest.mark.usefixtures("_cluster")
def test_a_full_disk_on_a_machine_ends_the_run() -> None:
    with pytest.raises(MachineError, match="No space left"):
        list(run_tasks_on_ray(worker_tasks.misbehave, ["full"], workers=1, time_limit=60))


def test_an_address_without_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if ray.is_initialized():
        pytest.skip("this process is in a cluster")
    with pytest.raises(ValueError, match="--ray auto: "), ray_cluster("auto"):
        pass


def test_without_ray_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'attn-tune\[ray\]'"), ray_cluster("auto"):
        pass
