"""A Spark Connect server for tests: started like our own Spark, in a process of its own."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable, Mapping

from strandline.spark.jars import spark_home
from strandline.spark.java import find_java
from strandline.spark.session import settings, write_properties
from strandline.testing.servers import Server


class SparkConnect(Server):
    """`SparkSession.builder.remote(server.remote()).create()` gives a session; the token in the URL is the password."""

    scheme = "sc"
    user = database = ""
    _refuses_root = False
    _give_up = signal.SIGKILL

    def __init__(self, needs: Iterable[str] = ("delta",), conf: Mapping[str, str] | None = None) -> None:
        super().__init__(settings=conf)
        self.needs = tuple(needs)

    def remote(self) -> str:
        # Spelled "localhost": with any other host the client insists on TLS.
        return f"sc://localhost:{self.port}/;token={self.password}"

    def _create(self) -> None:
        (self.folder / "conf").mkdir()

    def _command(self) -> list[str]:
        properties = self.folder / "conf" / "spark-defaults.conf"
        chosen = settings(self.needs, {"spark.master": "local[2]", **self.settings}, find_java())
        address = {"address": "127.0.0.1", "port": str(self.port)}
        chosen |= {f"spark.connect.grpc.binding.{key}": value for key, value in address.items()}
        write_properties(properties, chosen)
        service = "org.apache.spark.sql.connect.service.SparkConnectServer"
        return [f"{spark_home()}/bin/spark-submit", "--class", service, "spark-internal"]

    def _variables(self) -> dict[str, str]:
        return {
            "JAVA_HOME": find_java(),
            "SPARK_HOME": str(spark_home()),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": self.password,
        }

    def _ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
