"""Preferences that a browser keeps in a cookie: the last target of an approval, and whether shortcuts are off.

Both are in one cookie, for the console alone. It is no secret, and a wrong value has no effect: every choice is checked.
"""

from typing import Final

import falcon

from service.console.sessions import SessionGate
from storage.db import identifiers

_COOKIE: Final = "riskrelay_preferences"
_NO_KEYS: Final = "no-keys"
#: Between the parts of the cookie.
_DOT: Final = "."
_YEAR_S: Final = 365 * 24 * 3600


def last_target_id(req: falcon.Request) -> str | None:
    """Return the target of the last approval."""
    return next((part for part in _parts(req) if identifiers.is_id(identifiers.TARGET, part)), None)


def uses_keys(req: falcon.Request) -> bool:
    """Return whether keyboard shortcuts are on, as they are by default."""
    return _NO_KEYS not in _parts(req)


def remember_target(req: falcon.Request, resp: falcon.Response, gate: SessionGate, target_id: str) -> None:
    """Keep the target of an approval."""
    _keep(resp, gate, [target_id, *([] if uses_keys(req) else [_NO_KEYS])])


def remember_keys(req: falcon.Request, resp: falcon.Response, gate: SessionGate, *, are_on: bool) -> None:
    """Keep whether shortcuts are on."""
    target_id = last_target_id(req)
    _keep(resp, gate, [*([target_id] if target_id else []), *([] if are_on else [_NO_KEYS])])


def _parts(req: falcon.Request) -> list[str]:
    return (req.get_cookie_values(_COOKIE) or [""])[0].split(_DOT)


def _keep(resp: falcon.Response, gate: SessionGate, parts: list[str]) -> None:
    resp.set_cookie(
        _COOKIE,
        _DOT.join(parts),
        max_age=_YEAR_S,
        http_only=True,
        same_site="Strict",
        secure=gate.is_secure,
        path=f"{gate.root}/console",
    )
