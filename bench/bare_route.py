"""Falcon and nothing else: a route that answers constant bytes, and one that reads what is posted first.

Served by the same gunicorn as the product, it is the most that a route of any kind can do on this machine.
"""

import os
from typing import Final

import falcon

#: As many bytes as the product answers, so that the sockets carry the same.
RECORD: Final = b'{"filler":"%s"}' % (b"x" * (int(os.environ["BENCH_RECORD_BYTES"]) - len('{"filler":""}')))
ACCEPTED: Final = b'{"filler":"%s"}' % (b"x" * (int(os.environ["BENCH_ACCEPTED_BYTES"]) - len('{"filler":""}')))


class TicketExport:
    """Answers the same record to everybody."""

    def on_get(self, _req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        resp.data = RECORD


class ScannerResults:
    """Takes anything."""

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        req.bounded_stream.read()
        resp.status = falcon.HTTP_202
        resp.data = ACCEPTED


app: "falcon.App[falcon.Request, falcon.Response]" = falcon.App()
app.add_route("/api/ticket-exports/{export_id}", TicketExport())
app.add_route("/api/scanner/results", ScannerResults())
