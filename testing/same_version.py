"""Build hook: the test equipment uses internals of the package and requires exactly its own version."""

from __future__ import annotations

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    """Sets the distribution's dependencies."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Require the package at the same version, and everything else that is imported."""
        metadata["dependencies"] = [
            f"airflow-eos=={metadata['version']}",
            "confluent-kafka>=2.16",
            "cryptography>=42",
            "kafka-python>=3.0.12,<3.1",
            "numpy>=1.26",
            "pyarrow>=18",
            # Any version that the package has an extra for: pyspark40, pyspark41 or pyspark42 chooses one.
            "pyspark[connect]>=4.0,<4.3",
            "pytest>=8",
            "typing-extensions>=4.10",
        ]
