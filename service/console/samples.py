"""Sample requests of each inbound source to paste into a shell, with URL, credential and a valid body.

No sample contains a secret: its first line reads one from the user's `.env` or prompts for it. All samples are dry runs, so
that none creates a ticket. Prompts are in braces. Otherwise a shell that runs pasted lines one by one would read the next
line as the input of the prompt.
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

#: A shop that does not exist, for samples.
_SHOP: Final = "snow.shops.example"
_DRY_RUN: Final = "?dry_run=true"
_JSON: Final = "-H 'Content-Type: application/json'"
#: The command; it prints the status below the response.
_CURL: Final = "curl -s -w '\\n%{http_code}\\n'"


class SampleValues(NamedTuple):
    """The values in samples: the service's base URL, a project and one of its scan runs."""

    base_url: str
    project_id: int
    scan_run_id: int


def with_secret(source: InboundSource, path: str, values: SampleValues, variable: str, *, is_in_env: bool) -> str:
    """Return a sample for a source with a shared secret, which is in the shell variable `variable`."""
    if source is InboundSource.COMPLIANCE:
        request = _signed(f"{values.base_url}{path}{_DRY_RUN}", variable)
    else:
        header = {InboundSource.SCANNER: "X-Scanner-Secret", InboundSource.EMAIL: "X-Email-Webhook-Secret"}[source]
        request = _request(f"{values.base_url}{path}{_DRY_RUN}", f"{header}: ${variable}", _body(source, values))
    return f". ./.env\n{request}" if is_in_env else _prompt(variable, "Secret", request)


def with_token(source: InboundSource, path: str, values: SampleValues, commands: Sequence[str]) -> str:
    """Return a sample for a source with a token. The last of `commands` prints the token; without any, it prompts."""
    request = _request(f"{values.base_url}{path}{_DRY_RUN}", "Authorization: Bearer $TOKEN", _body(source, values))
    if not commands:
        return _prompt("TOKEN", "Token", request)
    return "\n".join([*commands[:-1], f"TOKEN=$({commands[-1]})", request])


def token_command(email: str, ability: Ability) -> str:
    """Return the command that creates a token with an ability for a user."""
    return f"bin/riskrelay token create --user {quote(email)} --kind platform --ability {ability.value}"


def grant_command(email: str, project_id: int) -> str:
    """Return the command that lets a user manage a project."""
    return f"bin/riskrelay grant add --user {quote(email)} --project {project_id}"


def _prompt(variable: str, label: str, request: str) -> str:
    return f"{{ printf '{label}: '; read -rs {variable}; echo\n{request}\n}}"


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


def _body(source: InboundSource, values: SampleValues) -> Any:
    project_id, page = values.project_id, "https://shop.example/"
    scanned = {
        "scanRunId": values.scan_run_id,
        "status": "completed",
        "page": {"url": page},
        "issues": [{"code": "img-alt"}],
    }
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
