"""A web server in a thread of its own, for `strandline serve`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence

import uvicorn

from strandline.core.errors import ConfigError, SetupError
from strandline.service.desk import Desk
from strandline.web.app import make_app
from strandline.web.security import Security

_START_SECONDS = 20.0
_STOP_SECONDS = 3


class WebServer:
    """Answers from the moment it is made until `stop`."""

    def __init__(self, server: uvicorn.Server, sock: socket.socket, url: str, stopping: threading.Event) -> None:
        self.url = url
        self._server = server
        self._stopping = stopping
        self._thread = threading.Thread(target=server.run, args=([sock],), name="strandline-web", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends streams, lets requests finish, and returns when the port is free."""
        self._stopping.set()
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS + 5)

    def __enter__(self) -> WebServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_started(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise SetupError("the web server did not start", remedy="Its log says why.")
            time.sleep(0.01)


def serve_web(
    desk: Desk,
    host: str = "127.0.0.1",
    port: int = 8484,
    token: str = "",
    read_only: bool = False,
    allowed_hosts: Sequence[str] = (),
) -> WebServer:
    """Serve API and pages until the server is stopped. ConfigError if the address is taken, or open to others without
    a token. Port 0: any that is free."""
    security = Security.at(host, token, read_only, allowed_hosts)
    app = make_app(desk, security)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host.strip("[]"), port))
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}", remedy="Choose another: --port"
        ) from error
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    shown = f"[{host}]" if ":" in host else host
    server = WebServer(uvicorn.Server(config), sock, f"http://{shown}:{sock.getsockname()[1]}", app.state.stopping)
    server.wait_started()
    return server
