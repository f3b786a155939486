"""Build hook: the test equipment reaches into the package and asks for the version it was made with."""

from __future__ import annotations

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    """Sets the dependencies."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Name the package itself by its version, and what else is imported."""
        metadata["dependencies"] = [
            f"airflow-eos=={metadata['version']}",
            "confluent-kafka>=2.16",
            "cryptography>=42",
            "kafka-python>=3.0.12,<3.1",
            "numpy>=1.26",
            "pyarrow>=18",
            # Of any line that has an extra of the package: pyspark40, pyspark41 or pyspark42 chooses one.
            "pyspark[connect]>=4.0,<4.3",
            "pytest>=8",
            "typing-extensions>=4.10",
        ]
