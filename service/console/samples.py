"""A request of each inbound source to paste into a shell: where to, with which credential, and a body that passes.

No sample holds a secret: its first line takes one from the reader's own `.env` or asks for it. All of them are dry runs, so
that trying one leaves no ticket behind. What waits for typing stands in braces, because a shell that runs pasted lines one
by one would take the next of them for what is typed.
"""

import json
from collections.abc import Sequence
from shlex import quote
from typing import Any, Final, NamedTuple

from schemas.base.principal import Ability
from schemas.compliance.requests import SHOP_HEADER, TOPIC_HEADER, Topic
from schemas.intake.diagnostics import Platform
from schemas.intake.sources import InboundSource
from service.http.auth import StorefrontSignature

#: Of a shop that nobody has.
_SHOP: Final = "snow.shops.example"
_TRIED: Final = "?dry_run=true"
_JSON: Final = "-H 'Content-Type: application/json'"
#: The status stands below the answer.
_CURL: Final = "curl -s -w '\\n%{http_code}\\n'"


class Known(NamedTuple):
    """What samples are filled with: where the service is reached, a project to try it with and a run of it."""

    base_url: str
    project_id: int
    scan_run_id: int


def with_secret(source: InboundSource, path: str, known: Known, variable: str, *, is_in_env: bool) -> str:
    """Return a sample of a source that is known by a shared secret, which `variable` holds."""
    if source is InboundSource.COMPLIANCE:
        request = _signed(f"{known.base_url}{path}{_TRIED}", variable)
    else:
        header = {InboundSource.SCANNER: "X-Scanner-Secret", InboundSource.EMAIL: "X-Email-Webhook-Secret"}[source]
        request = _request(f"{known.base_url}{path}{_TRIED}", f"{header}: ${variable}", _body(source, known))
    return f". ./.env\n{request}" if is_in_env else _asked(variable, "Secret", request)


def with_token(source: InboundSource, path: str, known: Known, making: Sequence[str]) -> str:
    """Return a sample of a source that is known by a token: the last command `making` it prints one, none asks for one."""
    request = _request(f"{known.base_url}{path}{_TRIED}", "Authorization: Bearer $TOKEN", _body(source, known))
    if not making:
        return _asked("TOKEN", "Token", request)
    return "\n".join([*making[:-1], f"TOKEN=$({making[-1]})", request])


def making_a_token(email: str, ability: Ability) -> str:
    """Return the command that makes a token of a user with an ability."""
    return f"bin/riskrelay token create --user {quote(email)} --kind platform --ability {ability.value}"


def granting(email: str, project_id: int) -> str:
    """Return the command that lets a user manage a project."""
    return f"bin/riskrelay grant add --user {quote(email)} --project {project_id}"


def _asked(variable: str, called: str, request: str) -> str:
    return f"{{ printf '{called}: '; read -rs {variable}; echo\n{request}\n}}"


def _request(url: str, header: str, body: Any) -> str:
    return f'{_CURL} {quote(url)} \\\n  -H "{header}" {_JSON} \\\n  -d {quote(json.dumps(body))}'


def _signed(url: str, variable: str) -> str:
    body = quote(json.dumps({"shop_domain": _SHOP}))
    return (
        f"BODY={body}\n"
        f'SIGNATURE=$(printf %s "$BODY" | openssl dgst -sha256 -hmac "${variable}" -binary | openssl base64 -A)\n'
        f"{_CURL} {quote(url)} \\\n"
        f'  -H "{StorefrontSignature.HEADER}: $SIGNATURE" {_JSON} \\\n'
        f"  -H '{TOPIC_HEADER}: {Topic.SHOP_REDACT.value}' -H '{SHOP_HEADER}: {_SHOP}' \\\n"
        f'  -d "$BODY"'
    )


def _body(source: InboundSource, known: Known) -> Any:
    project_id, page = known.project_id, "https://shop.example/"
    scanned = {"scanRunId": known.scan_run_id, "status": "completed", "page": {"url": page}, "issues": [{"code": "img-alt"}]}
    bodies: dict[InboundSource, Any] = {
        InboundSource.SCANNER: scanned,
        InboundSource.EMAIL: {
            "message_id": "<sample@mail.example>",
            "from": "jane@mail.example",
            "to": f"inbox+p{project_id}@service.example",
        },
        InboundSource.BROWSER_EXTENSION: {"project_id": project_id, "page_url": page},
        InboundSource.CMS_PLUGIN: {
            "project_id": project_id,
            "platform": Platform.CMS_COMMERCE.value,
            "site_url": page,
            "diagnostics": {},
        },
        InboundSource.STOREFRONT_APP: {
            "project_id": project_id,
            "shop_domain": _SHOP,
            "granted_scopes": ["read_themes"],
            "diagnostics": {},
        },
    }
    return bodies[source]
