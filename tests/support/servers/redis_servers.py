"""Redis as in other installations: on a port, with passwords, with a replica, and with Sentinels."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bin.processes.embedded_redis import find_server
from tests.support.servers.redis_and_postgres import RedisServer, Server, free_port

#: Contains characters that are reserved in URLs.
PASSWORD: Final = "p@ss:w/rd?#%"
ENCODED: Final = "p%40ss%3Aw%2Frd%3F%23%25"
#: The permissions that docs/scaling.md gives to a Redis user.
RIGHTS: Final = ("~rq:*", "~riskrelay:*", "resetchannels", "+@all", "-@dangerous", "+info")
SERVICE: Final = "riskrelay"


class PortRedis(RedisServer):
    """A Redis on a loopback port in addition to its socket. PASSWORD is valid for the users `riskrelay` and `default`."""

    def __init__(self, replica_of: "PortRedis | None" = None, also_at: str | None = None) -> None:
        super().__init__()
        self.port = free_port()
        self._master = replica_of
        self._at = ["127.0.0.1", *([also_at] if also_at else [])]

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"redis://:{ENCODED}@127.0.0.1:{self.port}/0"

    def role(self) -> str:
        """Return its current role, `master` or `slave`."""
        with redis.Redis.from_url(self.url) as client:
            return str(client.info("replication")["role"])

    def _ping(self) -> None:
        with redis.Redis.from_url(self.url, retry=None) as client:
            client.ping()

    def _command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "requirepass": PASSWORD,
            "masterauth": PASSWORD,
            "unixsocketperm": "700",
            # No pause before the first copy to a replica: the pause only serves replicas that connect at the same time.
            "repl-diskless-sync-delay": "0",
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)] + ["--bind", *self._at]
        if self._master is not None:
            words += ["--replicaof", "127.0.0.1", str(self._master.port)]
        usual = super()._command()
        port = usual.index("--port")
        return [*usual[:port], *usual[port + 2 :], *words, "--user", "riskrelay", "on", f">{PASSWORD}", *RIGHTS]


class SentinelServer(Server):
    """A Sentinel that monitors one master. Without `password`, it accepts every client."""

    stop_signal = signal.SIGTERM
    death_signal = signal.SIGKILL
    ready_errors = (redis.exceptions.RedisError,)

    def __init__(self, master_port: int, quorum: int, password: str | None = None) -> None:
        super().__init__((os.geteuid(), os.getegid()))
        self.port = free_port()
        self._password = password
        # A Sentinel also writes its state into this file.
        self._file.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {master_port} {quorum}\n"
            f'sentinel auth-pass {SERVICE} "{PASSWORD}"\n'
            f"sentinel down-after-milliseconds {SERVICE} 400\nsentinel failover-timeout {SERVICE} 2000\n"
            + (f'requirepass "{password}"\n' if password else "")
        )

    @property
    def url(self) -> str:
        """The URL of the Sentinel, without its password."""
        return f"redis://127.0.0.1:{self.port}"

    def state(self) -> dict[str, str]:
        """Return the master's state as this Sentinel reports it."""
        with self._client() as client:
            found: dict[str, str] = client.sentinel_master(SERVICE)
            return found

    @property
    def _file(self) -> Path:
        return self.folder / "sentinel.conf"

    def _client(self) -> redis.Redis:
        return redis.Redis(port=self.port, password=self._password, retry=Retry(NoBackoff(), 0), decode_responses=True)

    def _ping(self) -> None:
        with self._client() as client:
            client.ping()

    def _command(self) -> list[str]:
        return [str(find_server()), str(self._file), "--sentinel"]


@dataclass(frozen=True, slots=True)
class RedisWithSentinels:
    """Two servers, one of them the master, and the Sentinels that elect the master."""

    servers: tuple[PortRedis, PortRedis]
    sentinels: tuple[SentinelServer, ...]

    @property
    def url(self) -> str:
        """The URL for clients, which names the Sentinels."""
        places = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"redis+sentinel://:{ENCODED}@{places}/{SERVICE}"

    def master(self) -> PortRedis:
        """Return the server that the Sentinels report as the master."""
        port = int(self.sentinels[-1].state()["port"])
        return next(each for each in self.servers if each.port == port)

    def is_complete(self) -> bool:
        """Return whether every Sentinel knows the replica and the other Sentinels, so that a failover can succeed."""
        wanted = (1, len(self.sentinels) - 1)
        states = [each.state() for each in self.sentinels]
        return all((int(each["num-slaves"]), int(each["num-other-sentinels"])) == wanted for each in states)


@contextmanager
def redis_with_sentinels(wait_until: Callable[..., object], sentinels: int = 3) -> Iterator[RedisWithSentinels]:
    """Run a master, its replica and Sentinels; yield when the Sentinels know each other."""
    with ExitStack() as stack:
        master = stack.enter_context(PortRedis())
        replica = stack.enter_context(PortRedis(replica_of=master))
        watching = [stack.enter_context(SentinelServer(master.port, sentinels // 2 + 1)) for _ in range(sentinels)]
        made = RedisWithSentinels((master, replica), tuple(watching))
        wait_until(made.is_complete, 30)
        yield made
