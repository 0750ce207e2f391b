"""Every test runs on one thread, so that two workers share two cores and float results do not depend on the machine."""

import gc
import itertools
import os
import shutil
import sys

import huge_pages
import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Threads of the tests that use two wait asleep; busy waiting beside the other worker takes eight times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# A machine that is busy with other work makes an example slow, and says nothing about the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
# Whatever plugins are installed here; tests that have one of their own name it.
os.environ["DARE_BENCH_PLUGINS"] = ""
# Runs, checkpoints and journals are flushed to the disk thousands of times. In memory that takes no time, and a process
# that is killed loses as much or as little. Small shared memory (64 MB in many containers) is left alone.
if sys.platform == "linux" and os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 2 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")
# Hundreds of processes import the same modules: they are compiled once, also where Python is told to keep no bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A quarter of a minute and more each on one core, or a single test that takes that long.
LONG = (
    "test_large_board",  # all its tests share a site: one worker begins with it
    *("test_additions", "test_hostile_runs", "test_train_rl", "test_train_served", "test_train", "test_regress"),
    *("test_guard", "test_ray_cluster", "test_frames", "test_drafts", "test_trace", "test_recipe"),
    *("test_site_pages", "test_board_page", "test_sample_pages", "test_sharding", "test_rescore", "test_model_class"),
    *("test_limits", "test_attacks", "test_docs", "test_invariance", "test_newer_families"),
    *("test_gradient_card", "test_rl_training", "test_train_dry_run", "test_tiny", "test_fingerprint"),
    *("test_training", "test_plugins", "test_submit", "test_train_processes", "test_compare_page"),
)
gc.disable()  # until all tests are collected: imports and test items are no garbage, and looking for some takes seconds


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What is imported by now stays: collecting garbage need not look at it, and forks need not copy its page table."""
    gc.freeze()
    huge_pages.collapse()
    gc.enable()


_modules = 0  # imported when objects were last frozen


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The same after each file, and after a test that imported a library: accelerate collects garbage at each training,
    and looks through everything that is not frozen."""
    global _modules
    grown = len(sys.modules) > _modules + 100
    if nextitem is None or nextitem.path != item.path or grown:
        _modules = len(sys.modules)
        gc.collect()
        gc.freeze()
    if grown:
        huge_pages.collapse()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first in each worker's share, so that short ones are left to help with at the end.

    xdist gives each worker as many tests as the others, in their order, and lets one that is done take half of what
    another has not begun.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path.stem, []).append(item)
    long: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for number, stem in enumerate(LONG):
        long[number % workers] += files.pop(stem, ())
    rest = itertools.chain.from_iterable(files.values())
    size = len(items) // workers
    items[:] = [
        *(item for first in long for item in (*first, *itertools.islice(rest, max(0, size - len(first))))),
        *rest,
    ]
