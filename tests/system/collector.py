"""An OpenTelemetry collector that keeps the metrics and spans of Airflow's processes."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Listens on loopback while it is open (OTLP over HTTP, https://opentelemetry.io/docs/specs/otlp/)."""

    def __init__(self) -> None:
        self._received: dict[str, list[bytes]] = {"/v1/metrics": [], "/v1/traces": []}
        received = self._received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received[self.path].append(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environment(self) -> dict[str, str]:
        """Return the environment that makes an Airflow send to this collector."""
        return {
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "AIRFLOW__TRACES__OTEL_ON": "True",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "OTEL_TRACES_EXPORTER": "otlp_proto_http",
        }

    def metrics(self, dag_id: str) -> dict[str, float]:
        """Return this package's metrics for a Dag: sums of counters and timers, last values of gauges."""
        latest: dict[tuple[str, int], float] = {}
        for body in self._received["/v1/metrics"]:
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        for start, value in _points(metric, dag_id):
                            latest[metric.name, start] = value  # counters are cumulative per process
        totals: dict[str, float] = {}
        for (name, _), value in latest.items():
            if name.startswith("airflow.eos."):
                totals[name] = totals.get(name, 0) + value
        return totals

    def spans(self, dag_id: str) -> list[tuple[str, int, int, str]]:
        """Return name, start and end in nanoseconds, and trace id of this package's spans for a Dag."""
        return sorted(
            (
                (span.name, span.start_time_unix_nano, span.end_time_unix_nano, span.trace_id.hex())
                for body in self._received["/v1/traces"]
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
                if scope.scope.name == "airflow_eos" and _of_dag(span, dag_id)
            ),
            key=lambda span: span[2],
        )


def _points(metric: Any, dag_id: str) -> list[tuple[int, float]]:
    kind = metric.WhichOneof("data")
    return [
        (
            point.start_time_unix_nano,
            point.sum if kind.endswith("histogram") else getattr(point, point.WhichOneof("value")),
        )
        for point in getattr(metric, kind).data_points
        if _of_dag(point, dag_id)
    ]


def _of_dag(point: Any, dag_id: str) -> bool:
    return any(pair.key == "dag_id" and pair.value.string_value == dag_id for pair in point.attributes)
