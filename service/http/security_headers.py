"""What every answer says to a browser that comes upon it, also where no application was reached.

It imports nothing: gunicorn's parent process loads it before gevent has patched anything.
"""

from typing import Final

#: The API serves data: nothing of it may be sniffed, kept, framed or referred to. `service.openapi.docs_page` says what its
#: one document may do.
SAFE_HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    # What `default-src` does not stand in for is named as well.
    ("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
)
