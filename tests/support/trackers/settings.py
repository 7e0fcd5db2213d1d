"""Provider settings of each tracker for tests: the required and the optional ones."""

from typing import Any, Final

#: Required settings by `provider_key`; trackers without required settings are absent.
REQUIRED: Final[dict[str, dict[str, Any]]] = {"jira": {"project": "SHOP"}, "linear": {"team": "ENG"}}
#: Optional settings by `provider_key`, without those in OF_ALL.
OPTIONAL: Final[dict[str, dict[str, Any]]] = {
    "github": {"assignees": ["ada"]},
    "gitlab": {"assignees": ["ada"]},
    "gitea": {"assignees": ["ada"]},
    "jira": {
        "issue_type": "Bug",
        "priority_by_severity": dict.fromkeys(("critical", "high", "medium", "low", "info"), "High"),
        "assignee": "ada",
        "api_version": 2,
    },
    "redmine": {"tracker": "Bug", "priority_by_severity": {"high": "High"}, "assignee": "ada"},
}
#: Optional settings of every tracker.
OF_ALL: Final[dict[str, Any]] = {
    "labels": ["website-risk"],
    "on_fixed": "close",
    "api_base": "https://tracker.example.com/api",
}


def every_setting(key: str) -> dict[str, Any]:
    """Return a value for every setting of a tracker."""
    return {**REQUIRED.get(key, {}), **OPTIONAL.get(key, {}), **OF_ALL}
