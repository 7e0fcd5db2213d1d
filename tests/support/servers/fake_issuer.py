"""An OpenID Connect issuer on loopback that makes those mistakes that a test sets.

Without a mistake it follows the specification: PKCE, one use of each code, the client's secret. `tests/journeys` also uses a
certified issuer.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl, unquote_plus, urlsplit

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

CLIENT_ID: Final = "riskrelay"
CLIENT_SECRET: Final = "secret of the client, 32 bytes or more/+%"
SUBJECT: Final = "248289761001"
EMAIL: Final = "ada@agency.example"

#: Changes the claims of the next ID tokens.
Change = Callable[[dict[str, Any]], Any]


@cache
def make_key(kid: str, name: str = "", use: str = "sig") -> RSAKey:
    """Return the key with a `kid`. Another `name` gives another key with the same `kid`. Each key is generated once."""
    return RSAKey.generate_key(2048, {"kid": kid, "use": use})


class FakeIssuer:
    """An issuer. Tests change its responses through its attributes; `requests` has the path of each request."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.key = make_key("first")
        self.published = [self.key]
        self.alg = "RS256"
        self.claims: dict[str, Any] = {"email": EMAIL, "email_verified": True, "groups": ["triage"]}
        self.user_info: dict[str, Any] = {"sub": SUBJECT}
        self.change: Change = dict
        self.described: dict[str, Any] = {}
        #: By path, the bytes to send as the complete response; None drips a header that never ends.
        self.raw: dict[str, bytes | None] = {}
        self.requests: list[str] = []
        self.codes: dict[str, dict[str, str]] = {}
        self.used_codes: set[str] = set()
        #: Values that RiskRelay must neither store nor log.
        self.canaries: set[str] = set()

    def authorize(self, url: str) -> dict[str, str]:
        """Sign the user in at the authorization URL that RiskRelay built; return the parameters of the redirect back."""
        query = dict(parse_qsl(urlsplit(url).query))
        assert url.startswith(f"{self.url}/authorize?")
        assert (query["response_type"], query["client_id"], query["code_challenge_method"]) == ("code", CLIENT_ID, "S256")
        code = secrets.token_urlsafe(24)
        self.codes[code] = query
        self.canaries |= {code, query["state"], query["nonce"]}
        return {"code": code, "state": query["state"], "iss": self.url}

    def answer(self, path: str, headers: Any, body: str) -> tuple[int, Any]:
        """Return the status and the JSON body of the response of an endpoint."""
        self.requests.append(path)
        if path == "/.well-known/openid-configuration":
            return 200, self._description()
        if path == "/jwks":
            return 200, {"keys": [each.as_dict(private=False) for each in self.published]}
        if path == "/userinfo":
            return 200, self.user_info
        return self._token(dict(parse_qsl(body)), headers.get("Authorization", "")) if path == "/token" else (404, {})

    def _description(self) -> dict[str, Any]:
        names = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint", "end_session_endpoint")
        paths = ("authorize", "token", "jwks", "userinfo", "end")
        described = {name: f"{self.url}/{path}" for name, path in zip(names, paths, strict=True)}
        return {
            "issuer": self.url,
            "authorization_response_iss_parameter_supported": True,
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            **described,
            **self.described,
        }

    def _token(self, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        given = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        if [unquote_plus(part) for part in given.split(":")] != [CLIENT_ID, CLIENT_SECRET]:
            return 401, {"error": "invalid_client"}
        asked = self.codes.get(form["code"])
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
        is_fit = asked is not None and (asked["code_challenge"], asked["redirect_uri"]) == (challenge, form["redirect_uri"])
        if asked is None or not is_fit or form["code"] in self.used_codes:
            return 400, {"error": "invalid_grant"}
        self.used_codes.add(form["code"])
        access_token = secrets.token_urlsafe(24)
        id_token = self._id_token(asked["nonce"], access_token)
        self.canaries |= {access_token, id_token, form["code_verifier"]}
        return 200, {"access_token": access_token, "token_type": "Bearer", "id_token": id_token}

    def _id_token(self, nonce: str, access_token: str) -> str:
        now = int(time.time())
        half = hashlib.sha256(access_token.encode()).digest()[:16]
        claims = {
            "iss": self.url,
            "sub": SUBJECT,
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            "nonce": nonce,
            "at_hash": base64.urlsafe_b64encode(half).decode().rstrip("="),
            **self.claims,
        }
        self.change(claims)
        if self.alg == "none":
            parts = ({"alg": "none"}, claims)
            return ".".join([_base64(json.dumps(each).encode()) for each in parts]) + "."
        key = OctKey.import_key(CLIENT_SECRET) if self.alg == "HS256" else self.key
        header = {"alg": self.alg, "kid": self.key.kid}
        return jwt.encode(header, claims, key, [self.alg])


@contextmanager
def fake_issuer() -> Iterator[FakeIssuer]:
    """Serve an issuer during the block."""
    served: dict[str, FakeIssuer] = {}

    class IssuerHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send("")

        def do_POST(self) -> None:
            self._send(self.rfile.read(int(self.headers["Content-Length"])).decode())

        def _send(self, body: str) -> None:
            issuer, path = served["issuer"], urlsplit(self.path).path
            if path in issuer.raw:
                _send_raw(self, issuer.raw[path])
                return
            status, content = issuer.answer(path, self.headers, body)
            sent = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), IssuerHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        served["issuer"] = FakeIssuer(f"http://127.0.0.1:{server.server_port}")
        yield served["issuer"]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def parameters_of(url: str) -> dict[str, list[str]]:
    """Return the query parameters of a URL."""
    return parse_qs(urlsplit(url).query)


def _send_raw(handler: BaseHTTPRequestHandler, content: bytes | None) -> None:
    """Send bytes without changes; for None, send one byte every 50 ms until the client disconnects."""
    try:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: " if content is None else content)
        while content is None:
            handler.wfile.write(b"x")
            time.sleep(0.05)
    except OSError:
        handler.close_connection = True


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
