"""Timeouts for clients, with real sockets and short limits; which connections are closed for others; fair scheduling."""

import errno
import time
from collections.abc import Iterator
from itertools import groupby, repeat

import gevent
import pytest
from gevent import socket
from gunicorn.http.errors import LimitRequestHeaders

from service.server.client_connection import MAX_HEADERS_BYTES, ClientConnection, ConnectionTimeouts, HeadersTimeout
from service.server.connection_limit import ConnectionLimit
from service.server.gunicorn_worker import Yielder

SHORT_TIMEOUTS = ConnectionTimeouts(head_s=0.05, body_s=0.05, bytes_per_s=1_000, most_body_s=0.5, linger_s=0.05)


def yield_to_nobody() -> None:
    """Yield to no other greenlet."""


@pytest.fixture
def pair() -> Iterator[tuple[ClientConnection, socket.socket]]:
    """A connection as the service has it, and the client's socket."""
    ours, theirs = socket.socketpair()
    yield ClientConnection(ours, "10.0.0.1", yield_to_nobody, SHORT_TIMEOUTS), theirs
    ours.close()
    theirs.close()


def test_a_silent_connection_ends_before_its_first_request(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, _ = pair
    connection.expect_request(60)
    assert connection.recv(10) == b""


def test_a_connection_may_be_idle_for_longer_after_its_first_request(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, client = pair
    connection.expect_request(60)
    client.sendall(b"one")
    assert connection.recv(10) == b"one"
    connection.expect_request(60)
    gevent.spawn_later(SHORT_TIMEOUTS.head_s * 4, client.sendall, b"two")
    assert connection.recv(10) == b"two"
    # Once headers have begun, their timeout applies.
    with pytest.raises(HeadersTimeout):
        connection.recv(10)


def test_the_size_of_headers_is_limited(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, client = pair
    connection.expect_request(60)
    sending = gevent.spawn(client.sendall, b"a" * (MAX_HEADERS_BYTES + 1))
    pieces: list[bytes] = []
    with pytest.raises(LimitRequestHeaders):
        pieces.extend(connection.recv(8192) for _ in repeat(None))
    assert sum(map(len, pieces)) == MAX_HEADERS_BYTES
    sending.kill()


def test_an_incomplete_body_without_new_data_times_out(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, client = pair
    connection.expect_body()
    client.sendall(b"{")
    assert connection.recv(10) == b"{"
    with pytest.raises(TimeoutError):
        connection.recv(10)


def test_every_received_byte_extends_the_time_limit(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, client = pair
    connection.expect_body()
    client.sendall(b"a" * 400)
    assert len(connection.recv(1000)) == 400
    gevent.spawn_later(SHORT_TIMEOUTS.body_s * 4, client.sendall, b"b")
    assert connection.recv(10) == b"b"


def test_the_time_limit_of_a_body_has_a_maximum(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, client = pair
    connection.expect_body()
    pouring = gevent.spawn(lambda: [client.sendall(b"a" * 1000) for _ in repeat(None)])
    with pytest.raises(TimeoutError):
        all(connection.recv(65536) for _ in repeat(None))
    pouring.kill()


def test_received_data_is_read_however_late_the_server_reads(pair: tuple[ClientConnection, socket.socket]) -> None:
    """A busy server is not the client's fault."""
    connection, client = pair
    connection.expect_body()
    client.sendall(b"{}")
    gevent.sleep(SHORT_TIMEOUTS.body_s * 3)
    assert connection.recv(10) == b"{}"


def test_data_received_while_the_process_was_busy_is_read(pair: tuple[ClientConnection, socket.socket]) -> None:
    """When the process continues, the timeout has expired too."""
    connection, client = pair
    connection.expect_body()
    reading = gevent.spawn(connection.recv, 10)
    gevent.sleep(0)
    client.sendall(b"{}")
    time.sleep(SHORT_TIMEOUTS.body_s * 3)
    assert reading.get(timeout=5) == b"{}"


def test_a_response_that_the_client_does_not_read_is_aborted(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, _ = pair
    slow = ClientConnection(
        connection.dup(), "10.0.0.1", yield_to_nobody, ConnectionTimeouts(body_s=0.05, bytes_per_s=10**9)
    )
    with pytest.raises(BrokenPipeError) as given_up:
        slow.sendall(b"a" * 10_000_000)
    assert given_up.value.errno == errno.EPIPE
    slow.close()


def test_a_disconnected_client_appears_to_have_closed_the_connection(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, client = pair
    connection.expect_request(60)
    reading = gevent.spawn(connection.recv, 10)
    gevent.sleep(0)
    connection.disconnect()
    assert reading.get(timeout=5) == b""
    assert connection.recv(10) == b""
    # The client can still be sent data.
    connection.sendall(b"bye")
    assert client.recv(10) == b"bye"


def test_a_request_that_arrives_during_a_disconnect_is_not_started(pair: tuple[ClientConnection, socket.socket]) -> None:
    """The rest of the request would not be read, and a request that has begun must not be aborted during its work."""
    connection, client = pair
    connection.expect_request(60)
    reading = gevent.spawn(connection.recv, 10)
    gevent.sleep(0)
    client.sendall(b"POST / HTTP/1.1")
    connection.disconnect()
    assert reading.get(timeout=5) == b""


def test_a_disconnection_during_a_body_is_a_timeout(pair: tuple[ClientConnection, socket.socket]) -> None:
    """The part that arrived is not the client's error; the client may retry."""
    connection, client = pair
    connection.expect_body()
    client.sendall(b"{")
    assert connection.recv(10) == b"{"
    reading = gevent.spawn(connection.recv, 10)
    gevent.sleep(0)
    connection.disconnect()
    for end in (lambda: reading.get(timeout=5), lambda: connection.recv(10)):
        with pytest.raises(TimeoutError):
            end()


def test_a_disconnected_client_need_not_read_its_response(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, _ = pair
    patient = ClientConnection(connection.dup(), "10.0.0.1", yield_to_nobody, ConnectionTimeouts())
    sending = gevent.spawn(patient.sendall, b"a" * 10_000_000)
    gevent.sleep(0)
    patient.disconnect()
    with pytest.raises(BrokenPipeError):
        sending.get(timeout=5)
    patient.close()


def test_a_socket_error_is_not_reported_as_a_timeout(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, _ = pair
    connection.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        connection.recv(10)


def test_yielding_lets_other_greenlets_receive_data() -> None:
    ours, theirs = socket.socketpair()
    hearing = gevent.spawn(ours.recv, 1)
    gevent.sleep(0)
    theirs.sendall(b"a")
    yield_to_others = Yielder()
    for _ in range(3):
        # As long as a time slice may take, and longer.
        time.sleep(0.01)
        yield_to_others()
    assert hearing.ready()
    ours.close()
    theirs.close()


def test_connections_that_send_without_a_pause_are_served_alternately() -> None:
    yield_to_others, served = Yielder(), []

    def serve(name: str) -> None:
        for _ in range(20):
            yield_to_others()
            # As long as a short request takes.
            time.sleep(0.0005)
            served.append(name)

    serving = [gevent.spawn(serve, name) for name in "abc"]
    gevent.joinall(serving, raise_error=True)
    longest = max(len(list(same)) for _, same in groupby(served))
    assert longest <= 2, "".join(served)


# --- which connection is closed -----------------------------------------------


class WaitingClients:
    """Clients of a small service, which waits for each of them."""

    def __init__(self, count: int) -> None:
        self.slots = ConnectionLimit(count)
        self._connections: list[ClientConnection] = []
        self._clients: list[socket.socket] = []

    def connect(self, host: str, what: str = "request") -> ClientConnection:
        """Let a client take a slot; the service then waits for it, unless it is processing its request."""
        ours, theirs = socket.socketpair()
        connection = ClientConnection(ours, host, yield_to_nobody, ConnectionTimeouts())
        self._clients.append(theirs)
        self._connections.append(connection)
        self.slots.add(connection)
        connection.expect_body() if what == "body" else connection.expect_request(60)
        if what != "answer":
            self.wait(connection, what)
        return connection

    def wait(self, connection: ClientConnection, what: str = "request") -> None:
        """Let the service wait for a client from now on."""
        gevent.spawn(connection.sendall, b"a" * 10_000_000) if what == "taking" else gevent.spawn(connection.recv, 10)
        gevent.sleep(0)

    def close_all(self) -> None:
        for each in self._connections:
            each.disconnect()
        gevent.sleep(0)
        for one in (*self._connections, *self._clients):
            one.close()


@pytest.fixture
def clients() -> Iterator[WaitingClients]:
    made = WaitingClients(4)
    yield made
    made.close_all()


#: The connected clients, each with its host and what the service waits for; the one that is closed when the last slot is
#: taken.
EVICTIONS = [
    # The one that has been idle longest.
    ([("a", "request"), ("a", "request"), ("a", "request")], 0),
    # One of the host with the most connections.
    ([("b", "request"), ("a", "request"), ("a", "request")], 1),
    # An idle client before one that has begun a request.
    ([("a", "body"), ("a", "request"), ("a", "request")], 1),
    # A client that stalls in a body, if there is no other.
    ([("a", "body"), ("a", "body"), ("a", "body")], 0),
    # A client that does not read its response, if there is no other; a client that stalls in a body before it.
    ([("a", "taking"), ("a", "taking"), ("a", "taking")], 0),
    ([("a", "taking"), ("a", "body"), ("a", "taking")], 1),
    # Never a client whose request is being processed.
    ([("a", "answer"), ("a", "answer"), ("b", "request")], 2),
]


@pytest.mark.parametrize(("connected", "closed"), EVICTIONS)
def test_taking_the_last_slot_closes_another_connection(
    connected: list[tuple[str, str]], closed: int, clients: WaitingClients
) -> None:
    connections = [clients.connect(*each) for each in connected]
    before = [each.is_evictable for each in connections]
    clients.connect("c")
    assert before[closed]
    changed = [number for number, each in enumerate(connections) if each.is_evictable != before[number]]
    assert changed == [closed]


def test_the_last_slot_becomes_free_later_if_all_were_busy(clients: WaitingClients) -> None:
    """Once every slot is taken, no new connection arrives to trigger the check."""
    connections = [clients.connect("a", "answer") for _ in range(4)]
    clients.slots.enforce()
    for each in connections[2:]:
        clients.wait(each)
    clients.slots.enforce()
    assert [each.is_evictable for each in connections] == [False, False, False, True]


def test_no_connection_is_closed_while_slots_are_free(clients: WaitingClients) -> None:
    connections = [clients.connect("a") for _ in range(3)]
    clients.slots.enforce()
    assert all(each.is_evictable for each in connections)


def test_a_released_connection_slot_is_available_again(clients: WaitingClients) -> None:
    connections = [clients.connect("a") for _ in range(3)]
    clients.slots.remove(connections[0])
    clients.connect("a")
    assert all(each.is_evictable for each in connections)
