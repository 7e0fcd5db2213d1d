"""A relay between clients and a server. A test can cut and restore it; it can also terminate TLS."""

import select
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

#: Maximum size of one read.
_PIECE_BYTES: Final = 65_536
#: Interval at which a relay checks for bytes from both sides.
_POLL_S: Final = 0.05

#: Where a server listens: host and port, or the path of its socket.
Address = tuple[str, int] | str


class CuttableRelay:
    """Listens on loopback and forwards all bytes to `server`, until `cut`: then it forwards nothing and closes nothing.

    For a client this is like a broken network: open connections stay open, and new ones get no response. With `tls`, the
    relay decrypts the connections of clients that use TLS, and forwards the decrypted bytes.
    """

    def __init__(self, server: Address, tls: ssl.SSLContext | None = None) -> None:
        self._server = server
        self._tls = tls
        self._is_connected = threading.Event()
        self._is_connected.set()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._is_connected.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def cut(self) -> None:
        """Forward nothing from now on."""
        self._is_connected.clear()

    def restore(self) -> None:
        """Forward the bytes that wait, and all bytes after them."""
        self._is_connected.set()

    def _begin(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # the listening socket was closed
            self._begin(self._serve, connection)

    def _serve(self, client: socket.socket) -> None:
        self._is_connected.wait()
        # Ends quietly if one side closes the connection, the server is not running, or the TLS handshake fails.
        with suppress(OSError), client, _connection_to(self._server) as upstream, self._without_tls(client) as plain:
            self._forward(plain, upstream)

    def _without_tls(self, client: socket.socket) -> socket.socket:
        is_tls = self._tls is not None and client.recv(1, socket.MSG_PEEK) == b"\x16"  # the first byte of a TLS handshake
        return self._tls.wrap_socket(client, server_side=True) if self._tls and is_tls else client

    def _forward(self, client: socket.socket, upstream: socket.socket) -> None:
        others = {client: upstream, upstream: client}
        while not self._stopping.is_set():
            for reported in _readable([client, upstream]):
                self._is_connected.wait()
                piece = reported.recv(_PIECE_BYTES)
                if not piece:
                    return
                others[reported].sendall(piece)


def _readable(sockets: list[socket.socket]) -> list[socket.socket]:
    pending: list[socket.socket] = [each for each in sockets if isinstance(each, ssl.SSLSocket) and each.pending()]
    return pending or select.select(sockets, [], [], _POLL_S)[0]


def _connection_to(server: Address) -> socket.socket:
    if isinstance(server, tuple):
        return socket.create_connection(server)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(server)
    except OSError:
        connection.close()
        raise
    return connection
