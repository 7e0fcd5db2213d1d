"""The number of generated inputs: a few, always the same, in `make test`; many, different in each run, in `make fuzz`.

The tests in this folder set no number of examples; they use that of the Hypothesis profile. The profile applies to this
folder only. Other tests with Hypothesis set their own numbers.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, settings

# Slow examples are not failures here, and all examples of a test may share a fixture.
UNTIMED = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.function_scoped_fixture,
]

# For every change: examples depend neither on chance nor on files of an earlier run.
settings.register_profile(
    "quick",
    max_examples=15,
    stateful_step_count=20,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=UNTIMED,
)
# For nightly runs and releases: random, and a failure prints how to reproduce it.
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
    """Load the profile while modules are imported, because decorators of tests read it then."""
    with _size_of_the_run(collector.config):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Load the profile while a test runs, for settings that are created during the test."""
    with _size_of_the_run(item.config):
        yield


@contextmanager
def _size_of_the_run(config: pytest.Config) -> Iterator[None]:
    """Load the selected profile, by default `quick`, and restore the previous one afterwards."""
    before = settings.get_current_profile_name()
    settings.load_profile(config.getoption("--hypothesis-profile") or "quick")
    try:
        yield
    finally:
        settings.load_profile(before)
