"""Every tracker, by its `provider_key`."""

from collections.abc import Mapping
from typing import Final

from schemas.trackers.exchange import Tracker

GENERIC_WEBHOOK: Final = "generic_webhook"

#: In the order in which people are offered them.
TRACKERS: Final[Mapping[str, Tracker]] = {}


def provider_keys() -> tuple[str, ...]:
    """Return every allowed `provider_key`."""
    return (GENERIC_WEBHOOK, *TRACKERS)
