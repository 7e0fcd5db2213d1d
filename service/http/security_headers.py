"""Security headers of every response, including responses to requests that never reach the application.

Imports nothing that gevent patches: gunicorn's parent process loads this module before gevent patches the standard library.
"""

from typing import Final

#: The API serves data, which browsers must not sniff, store or frame, and whose URLs must not leak as a referrer.
#: `service.openapi.docs_page` and `service.console.layout` have the policies of HTML pages.
SAFE_HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    # Lists the directives that `default-src` does not cover, too.
    ("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
)
