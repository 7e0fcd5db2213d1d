"""Every tracker, by its `provider_key`."""

from collections.abc import Mapping
from typing import Final

from schemas.trackers.exchange import Tracker
from schemas.trackers.gitea import GiteaTracker
from schemas.trackers.github import GitHubTracker
from schemas.trackers.gitlab import GitLabTracker
from schemas.trackers.jira import JiraTracker
from schemas.trackers.linear import LinearTracker
from schemas.trackers.redmine import RedmineTracker

GENERIC_WEBHOOK: Final = "generic_webhook"

#: In the order in which people see them.
_OFFERED: Final[tuple[Tracker, ...]] = (
    GitHubTracker(),
    GitLabTracker(),
    JiraTracker(),
    GiteaTracker(),
    LinearTracker(),
    RedmineTracker(),
)
TRACKERS: Final[Mapping[str, Tracker]] = {tracker.key: tracker for tracker in _OFFERED}

#: After this many seconds, a lookup certainly finds an issue at every tracker.
LONGEST_LOOKUP_S: Final = max(tracker.lookup_delay_s for tracker in _OFFERED)


def provider_keys() -> tuple[str, ...]:
    """Return every allowed `provider_key`."""
    return (GENERIC_WEBHOOK, *TRACKERS)
