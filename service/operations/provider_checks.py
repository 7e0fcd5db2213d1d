"""Checks the provider's part of a target: the settings of a tracker, and that the target's URL is a page of that tracker."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.content_policy.checked_form import read_checked
from schemas.targets.forms import settings_form
from schemas.targets.target import Target, TargetEdit
from schemas.trackers.registry import TRACKERS

#: The problem code of a URL that is not a page of the target's tracker.
NO_TRACKER_PAGE: Final = "no_tracker_page"

_SETTINGS: Final = "/provider_settings"


def checked_edit(edit: TargetEdit, target: Target) -> TargetEdit:
    """Return an edit whose settings the form of the target's provider has validated.

    Raises ValidationFailed below `/provider_settings`.
    """
    if edit.provider_settings is None:
        return edit
    try:
        settings = read_checked(settings_form(target.provider_key), edit.provider_settings)
    except ValidationFailed as failed:
        problems = [replace(each, path=f"{_SETTINGS}{each.path}") for each in failed.problems]
        raise ValidationFailed(*problems) from None
    return replace(edit, provider_settings=settings or {})


def require_page(provider_key: str, base_url: str, settings: Mapping[str, Any]) -> None:
    """Raise ValidationFailed on `/base_url` unless the URL is a page of the tracker; a webhook accepts every valid URL."""
    tracker = TRACKERS.get(provider_key)
    message = None if tracker is None else tracker.problem_of(base_url, settings)
    if message is not None:
        raise ValidationFailed(FieldProblem("/base_url", NO_TRACKER_PAGE, message))
