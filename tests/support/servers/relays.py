"""A relay between clients and a server, which a test can cut and restore, or which accepts TLS."""

import select
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

#: Bytes of one read.
_PIECE_BYTES: Final = 65_536
#: How soon a relay notices that it was cut or restored.
_LOOK_S: Final = 0.05

#: Where a server listens: host and port, or the path of its socket.
Place = tuple[str, int] | str


class CuttableRelay:
    """Listens on loopback and forwards everything to `server`, until `cut`: then it forwards and closes nothing.

    A client that is cut off meets what a broken network shows: its connections stay open, new ones get no response. With
    `tls`, clients connect with TLS, and the decrypted bytes are forwarded.
    """

    def __init__(self, server: Place, tls: ssl.SSLContext | None = None) -> None:
        self._server = server
        self._tls = tls
        self._is_whole = threading.Event()
        self._is_whole.set()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._is_whole.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def cut(self) -> None:
        """Forward nothing from now on."""
        self._is_whole.clear()

    def restore(self) -> None:
        """Forward what waits, and everything after it."""
        self._is_whole.set()

    def _begin(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # stopped
            self._begin(self._serve, connection)

    def _serve(self, near: socket.socket) -> None:
        self._is_whole.wait()
        # One of them hangs up, the server is away, or TLS is refused.
        with suppress(OSError), near, _connection_to(self._server) as far, self._without_tls(near) as plain:
            self._pass_on(plain, far)

    def _without_tls(self, near: socket.socket) -> socket.socket:
        is_tls = self._tls is not None and near.recv(1, socket.MSG_PEEK) == b"\x16"  # how a handshake begins
        return self._tls.wrap_socket(near, server_side=True) if self._tls and is_tls else near

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        others = {near: far, far: near}
        while not self._stopping.is_set():
            for reported in _that_have_something([near, far]):
                self._is_whole.wait()
                piece = reported.recv(_PIECE_BYTES)
                if not piece:
                    return
                others[reported].sendall(piece)


def _that_have_something(sockets: list[socket.socket]) -> list[socket.socket]:
    pending: list[socket.socket] = [each for each in sockets if isinstance(each, ssl.SSLSocket) and each.pending()]
    return pending or select.select(sockets, [], [], _LOOK_S)[0]


def _connection_to(server: Place) -> socket.socket:
    if isinstance(server, tuple):
        return socket.create_connection(server)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(server)
    except OSError:
        connection.close()
        raise
    return connection
