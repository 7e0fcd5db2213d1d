"""How far the search for inputs goes: a few, always the same, in `make test`; many, ever others, in `make fuzz`.

One code path in two sizes: the tests of this folder set no number of examples of their own, they read the profile's.
The profile holds in this folder alone; hypothesis elsewhere keeps the numbers that stand at its tests.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, settings

# A slow machine and a slow database are no finding here, and a fixture may serve all examples of a test.
UNTIMED = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.function_scoped_fixture,
]

# What everyone runs on every change: no example depends on chance, and none on what a run before has left on disk.
settings.register_profile(
    "quick",
    max_examples=15,
    stateful_step_count=20,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=UNTIMED,
)
# Nights and releases: random, and a failure tells how to see it again.
settings.register_profile(
    "long",
    max_examples=1_000,
    stateful_step_count=60,
    derandomize=False,
    deadline=None,
    print_blob=True,
    suppress_health_check=UNTIMED,
)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A test takes its size while its module is imported."""
    with _size_of_the_run(collector.config):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """What is made in the course of a test takes its size there."""
    with _size_of_the_run(item.config):
        yield


@contextmanager
def _size_of_the_run(config: pytest.Config) -> Iterator[None]:
    """Load the profile that was asked for, or `quick`, and put the one before back."""
    before = settings.get_current_profile_name()
    settings.load_profile(config.getoption("--hypothesis-profile") or "quick")
    try:
        yield
    finally:
        settings.load_profile(before)
