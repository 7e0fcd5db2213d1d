"""Preferences that a browser stores in a cookie: the last target of each project's approvals, and whether shortcuts are off.

One cookie, for the console only, contains all of them. It is not secret, and a wrong value has no effect, because every
choice is checked.
"""

from collections.abc import Collection, Mapping
from typing import Final

import falcon

from service.console.sessions import SessionGate
from storage.db import identifiers

_COOKIE: Final = "riskrelay_preferences"
_NO_KEYS: Final = "no-keys"
#: Separators between the parts of the cookie, and between a project and its target.
_PART_SEPARATOR: Final = "."
_TARGET_SEPARATOR: Final = ":"
_YEAR_S: Final = 365 * 24 * 3600
#: Maximum number of projects whose target is stored, those with the newest approvals. With ids of seven digits these are up
#: to 3.9 KB of the 4 KB that a cookie may have.
_MAX_PROJECTS: Final = 100


def last_target_id(req: falcon.Request, project_ids: Collection[int | None]) -> str | None:
    """Return the target of the last approval in these projects; None if they have different targets.

    A preselected target of another client would be a mistake.
    """
    targets = _targets(req)
    last = {targets.get(_key(each)) for each in project_ids}
    return last.pop() if len(last) == 1 else None


def has_shortcuts(req: falcon.Request) -> bool:
    """Return whether keyboard shortcuts are on, which is the default."""
    return _NO_KEYS not in _parts(req)


def store_target(
    req: falcon.Request, resp: falcon.Response, gate: SessionGate, target_id: str, project_ids: Collection[int | None]
) -> None:
    """Store the target of an approval for these projects."""
    newest = {_key(each): target_id for each in project_ids}
    others = {key: target for key, target in _targets(req).items() if key not in newest}
    _set_cookie(resp, gate, newest | others, are_on=has_shortcuts(req))


def store_shortcuts(req: falcon.Request, resp: falcon.Response, gate: SessionGate, *, are_on: bool) -> None:
    """Store whether keyboard shortcuts are on."""
    _set_cookie(resp, gate, _targets(req), are_on=are_on)


def _key(project_id: int | None) -> str:
    return str(project_id or 0)


def _targets(req: falcon.Request) -> dict[str, str]:
    """Return the last target of each project, newest first."""
    pairs = (part.partition(_TARGET_SEPARATOR) for part in _parts(req))
    return {key: target for key, _, target in pairs if key.isdecimal() and identifiers.is_id(identifiers.TARGET, target)}


def _parts(req: falcon.Request) -> list[str]:
    return (req.get_cookie_values(_COOKIE) or [""])[0].split(_PART_SEPARATOR)


def _set_cookie(resp: falcon.Response, gate: SessionGate, targets: Mapping[str, str], *, are_on: bool) -> None:
    """Store the target last chosen in each project, and whether keyboard shortcuts are on."""
    pairs = [f"{key}{_TARGET_SEPARATOR}{target}" for key, target in targets.items()][:_MAX_PROJECTS]
    parts = [*pairs, *([] if are_on else [_NO_KEYS])]
    resp.set_cookie(
        _COOKIE,
        _PART_SEPARATOR.join(parts),
        max_age=_YEAR_S,
        http_only=True,
        same_site="Strict",
        secure=gate.is_secure,
        path=f"{gate.root}/console",
    )
