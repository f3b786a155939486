"""A fake REST API of a standalone master: reports driver states set by the test, and records kills."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SparkMaster:
    """Answers on loopback as in https://spark.apache.org/docs/latest/spark-standalone.html#rest-api."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.polled: set[str] = set()
        self.killed: list[str] = []
        master = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                driver = self.path.rpartition("/")[2]
                master.polled.add(driver)
                state = master.states.get(driver)
                self._answer({"success": state is not None, "driverState": state, "submissionId": driver})

            def do_POST(self) -> None:
                driver = self.path.rpartition("/")[2]
                master.killed.append(driver)
                master.states[driver] = "KILLED"
                self._answer({"success": True, "submissionId": driver})

            def _answer(self, body: Any) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def connection(self) -> dict[str, Any]:
        """Return the JSON form of an Airflow connection to the master."""
        extra = {"deploy-mode": "cluster", "rest-port": self._server.server_port}
        return {"conn_type": "spark", "host": "spark://127.0.0.1", "port": 7077, "extra": extra}
