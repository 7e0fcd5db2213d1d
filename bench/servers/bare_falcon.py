"""Bare Falcon: routes that read the body and return constant bytes.

Under the same gunicorn as the product, this is the upper limit of any route on this machine.
"""

import json
import os
from typing import Final

import falcon

#: As many bytes as the product answers to each kind of question, so that the sockets carry the same.
_ANSWERS: Final = {
    kind: b'{"filler":"%s"}' % (b"x" * (size - len('{"filler":""}')))
    for kind, size in json.loads(os.environ["BENCH_ANSWER_BYTES"]).items()
}
#: A postback of one issue is smaller, one of a hundred larger.
_ONE_ISSUE_BYTES: Final = 5000


class BareExport:
    """Answers the same record to everybody, and who names a version has it."""

    def on_get(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        if req.get_header("If-None-Match"):
            resp.status = falcon.HTTP_304
        else:
            resp.data = _ANSWERS["status"]


class Taken:
    """Takes anything."""

    def __init__(self, kind: str, status: str) -> None:
        self._answer = _ANSWERS[kind]
        self._status = status

    def on_post(self, req: falcon.Request, resp: falcon.Response, **_params: str) -> None:
        req.bounded_stream.read()
        resp.status = self._status
        resp.data = self._answer


class Postback:
    """Takes anything, and answers more to more."""

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        size = len(req.bounded_stream.read())
        resp.status = falcon.HTTP_202
        resp.data = _ANSWERS["postback" if size < _ONE_ISSUE_BYTES else "postback_100"]


app: "falcon.App[falcon.Request, falcon.Response]" = falcon.App()
app.add_route("/api/ticket-exports/{export_id}", BareExport())
app.add_route("/api/ticket-exports/{export_id}/approve", Taken("approval", falcon.HTTP_202))
app.add_route("/api/ticket-export-targets", Taken("target_create", falcon.HTTP_201))
app.add_route("/api/browser-extension/evidence-captures", Taken("upload", falcon.HTTP_201))
app.add_route("/api/scanner/results", Postback())
