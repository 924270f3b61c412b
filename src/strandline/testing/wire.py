"""A TCP relay to a real server that breaks on demand: at once, around something a client says, or amid an answer."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from strandline.endpoint import Endpoint

COMMIT = re.compile(rb"COMMIT(?!TED)")


class Wire:
    """Open until `close`, or in a `with` block. Sees what is said only where nothing is encrypted."""

    def __init__(self, host: str, port: int) -> None:
        self.server = (host, port)
        self.cut_before: re.Pattern[bytes] | None = None  # once a client says this: the server never hears of it
        self.cut_answer_to: re.Pattern[bytes] | None = None  # the server hears it, and the answer is lost
        self.cut_after: int | None = None  # so many more bytes come from the server, and no more
        self.down = False  # no new connection is served
        self.for_good = False  # nor is one after the next cut
        self.cuts = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._unheard: set[socket.socket] = set()  # servers whose next answer is lost
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @classmethod
    def to(cls, url: str) -> Self:
        endpoint = Endpoint.parse(url)
        assert endpoint.port is not None
        return cls(endpoint.host, endpoint.port)

    def url(self, url: str) -> str:
        """An address on the server, by way of this relay."""
        return url.replace(f":{self.server[1]}/", f":{self.port}/")

    def cut(self) -> None:
        with self._lock:
            ends, self._open = self._open, []  # a client that comes back at once is not cut with them
            self.cuts += 1
            self.down = self.down or self.for_good
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Whatever is asked for next passes."""
        self.cut_before = self.cut_answer_to = self.cut_after = None
        self.down = self.for_good = False

    def close(self) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                server = self._server()
                if server is None:
                    client.close()
                    continue
                with self._lock:
                    if cut := self.down:  # meanwhile
                        client.close()
                        server.close()
                    else:
                        self._open += [client, server]
                if not cut:
                    threading.Thread(target=self._upward, args=(client, server), daemon=True).start()
                    threading.Thread(target=self._downward, args=(server, client), daemon=True).start()

    def _server(self) -> socket.socket | None:
        """None where it is down, or is to seem so."""
        try:
            return None if self.down else socket.create_connection(self.server)
        except OSError:
            return None

    def _upward(self, client: socket.socket, server: socket.socket) -> None:
        with server, suppress(OSError):
            while data := client.recv(65536):
                if self.cut_before and self.cut_before.search(data):
                    self.cut_before = None
                    self.cut()
                    return
                if self.cut_answer_to and self.cut_answer_to.search(data):
                    self.cut_answer_to = None
                    self._unheard.add(server)
                server.sendall(data)

    def _downward(self, server: socket.socket, client: socket.socket) -> None:
        with client, suppress(OSError):
            while data := server.recv(65536):
                if server in self._unheard:
                    self._unheard.discard(server)
                    self.cut()
                    return
                if self.cut_after is not None:
                    self.cut_after -= len(data)
                    if self.cut_after < 0:
                        client.sendall(data[: self.cut_after])
                        self.cut_after = None
                        self.cut()
                        return
                client.sendall(data)
