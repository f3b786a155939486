"""The broker of the benchmarks: with JVM options as in production, unlike the brokers of short tests."""

from __future__ import annotations

from airflow_eos_testing import EmbeddedKafka

# The options of Kafka's own start script, except for the minimum heap.
_JVM_OPTIONS = (
    "-server",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)


def benchmark_broker() -> EmbeddedKafka:
    """Return one broker, not yet started."""
    return EmbeddedKafka(jvm_options=_JVM_OPTIONS)
