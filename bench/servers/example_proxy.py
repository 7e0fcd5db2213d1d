"""nginx as deploy/nginx configures it, in front of a measured service; only ports and paths differ.

nginx is not part of the project: without nginx on PATH there is no proxy.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bench.load.slow_connections import ServiceAddress
from bench.servers.receiver_process import ROOT
from bin.processes import child_process
from tests.support.servers.redis_and_postgres import free_port
from tests.support.worker.receivers import make_certificate

NAME: Final = "riskrelay.example"
EXAMPLE: Final = ROOT / "deploy" / "nginx" / "riskrelay.conf"
_START_WITHIN_S: Final = 10.0
_STOP_WITHIN_S: Final = 10

#: The nginx.conf that includes the example: as a distribution's, but all files are in `folder`. 768 is Debian's default.
_NGINX_CONF: Final = """
daemon off;
worker_processes auto;
pid {folder}/pid;
error_log {folder}/error.log;
{user}
events {{ worker_connections 768; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/riskrelay.conf;
}}
"""


def is_nginx_installed() -> bool:
    """Return whether nginx is installed."""
    return shutil.which("nginx") is not None


@contextmanager
def example_proxy(service_port: int) -> Iterator[ServiceAddress]:
    """Run nginx in front of the service on `service_port`; yield its address. Needs nginx: see `is_nginx_installed`."""
    nginx = shutil.which("nginx")
    assert nginx is not None, "nginx is not installed."
    with tempfile.TemporaryDirectory(prefix="riskrelay-bench-") as name:
        folder, port = Path(name), free_port()
        _, authority = make_certificate(folder, NAME)
        (folder / "riskrelay.conf").write_text(adapted(EXAMPLE.read_text(), service_port, port, free_port(), folder))
        # By default, workers run as the user nobody, which may not write to this folder.
        user = "user root;" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(_NGINX_CONF.format(folder=folder, user=user))
        command = [nginx, "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
        process = child_process.start(command, output=subprocess.DEVNULL)
        try:
            _wait_for(port, process, folder)
            yield ServiceAddress(port, authority, NAME)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_WITHIN_S)
            process.kill()
            process.wait()


def adapted(example: str, service_port: int, port: int, plain_port: int, folder: Path) -> str:
    """Return the example with other ports, only on IPv4 loopback, and with all files in `folder`."""
    changes = {
        "server 127.0.0.1:8000;": f"server 127.0.0.1:{service_port};",
        "listen 80;": f"listen 127.0.0.1:{plain_port};",
        "listen [::]:80;": "",
        "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
        "listen [::]:443 ssl http2;": "",
        "/etc/ssl/riskrelay/fullchain.pem": f"{folder}/server.pem",
        "/etc/ssl/riskrelay/privkey.pem": f"{folder}/server.pem",
        "/var/log/nginx/riskrelay.log": f"{folder}/access.log",
    }
    for before, after in changes.items():
        assert example.count(before) == 1, f"deploy/nginx/riskrelay.conf contains {before} {example.count(before)} times."
        example = example.replace(before, after)
    return example


def _wait_for(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"nginx does not listen: {(folder / 'error.log').read_text()}")
