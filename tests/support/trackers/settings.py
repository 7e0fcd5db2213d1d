"""Settings of every tracker for tests: what a target of it needs, and everything else that it takes."""

from typing import Any, Final

#: What a target needs, by `provider_key`; trackers that need nothing are absent.
REQUIRED: Final[dict[str, dict[str, Any]]] = {"jira": {"project": "SHOP"}, "linear": {"team": "ENG"}}
#: What a target may have besides, but for what every tracker takes.
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
OF_ALL: Final[dict[str, Any]] = {
    "labels": ["website-risk"],
    "on_fixed": "close",
    "api_base": "https://tracker.example.com/api",
}


def every_setting(key: str) -> dict[str, Any]:
    """Return settings of a tracker that has all of them."""
    return {**REQUIRED.get(key, {}), **OPTIONAL.get(key, {}), **OF_ALL}
