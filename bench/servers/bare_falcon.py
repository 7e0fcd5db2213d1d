"""Bare Falcon: routes that read the body and return constant bytes.

Under the same gunicorn as the product, this is the upper limit of any route on this machine.
"""

import json
import os
from typing import Final

import falcon

#: Response bodies of the same size as the product's, by kind of request, so that the same number of bytes is sent.
_BODIES: Final = {
    kind: b'{"filler":"%s"}' % (b"x" * (size - len('{"filler":""}')))
    for kind, size in json.loads(os.environ["BENCH_RESPONSE_BYTES"]).items()
}
#: A request with one issue is smaller, one with a hundred issues is larger.
_MAX_ONE_ISSUE_BYTES: Final = 5000


class BareExport:
    """Returns the same record for each export, and 304 for a request with If-None-Match."""

    def on_get(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        if req.get_header("If-None-Match"):
            resp.status = falcon.HTTP_304
        else:
            resp.data = _BODIES["status"]


class ConstantResponse:
    """Reads any body and returns a constant response."""

    def __init__(self, kind: str, status: str) -> None:
        self._body = _BODIES[kind]
        self._status = status

    def on_post(self, req: falcon.Request, resp: falcon.Response, **_params: str) -> None:
        req.bounded_stream.read()
        resp.status = self._status
        resp.data = self._body


class Postback:
    """Reads any body and returns a longer response to a longer request."""

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        size = len(req.bounded_stream.read())
        resp.status = falcon.HTTP_202
        resp.data = _BODIES["postback" if size < _MAX_ONE_ISSUE_BYTES else "postback_100"]


app: "falcon.App[falcon.Request, falcon.Response]" = falcon.App()
app.add_route("/api/ticket-exports/{export_id}", BareExport())
app.add_route("/api/ticket-exports/{export_id}/approve", ConstantResponse("approval", falcon.HTTP_202))
app.add_route("/api/ticket-export-targets", ConstantResponse("target_create", falcon.HTTP_201))
app.add_route("/api/browser-extension/evidence-captures", ConstantResponse("upload", falcon.HTTP_201))
app.add_route("/api/scanner/results", Postback())
