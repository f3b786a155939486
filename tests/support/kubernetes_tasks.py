"""Tries of a task that submits to an embedded Kubernetes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from airflow_eos_testing.kubernetes.api_server import NAMESPACE, KubernetesApi
from tests.support.yarn_tasks import YarnTask


class KubernetesTask(YarnTask):
    """A task whose driver is a pod, and whose application file is uploaded to a folder."""

    @classmethod
    def on_kubernetes(
        cls, api: KubernetesApi, uploads: Path, folder: Path, kafka: dict[str, str], **settings: Any
    ) -> KubernetesTask:
        """Describe a task for a cluster; ``copy_app.py`` in the folder holds its process."""
        extra = {"deploy-mode": "cluster", "namespace": NAMESPACE}
        spark = {"conn_type": "spark", "host": f"k8s://{api.url}", "extra": extra}
        environment = {
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": kafka}),
            "AIRFLOW_CONN_SPARK_KUBERNETES": json.dumps(spark),
            "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
            "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": str(api.kubeconfig),
            "KUBECONFIG": str(api.kubeconfig),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        authority = str(api.certificates.ca)
        conf = {
            "spark.executor.instances": "1",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.kubernetes.container.image": "this-python",
            "spark.kubernetes.file.upload.path": uploads.as_uri(),
            "spark.kubernetes.driver.master": api.url,
            "spark.kubernetes.authenticate.caCertFile": authority,
            "spark.kubernetes.authenticate.oauthTokenFile": str(api.token_file),
            "spark.kubernetes.authenticate.submission.caCertFile": authority,
            "spark.kubernetes.authenticate.submission.oauthTokenFile": str(api.token_file),
            "spark.kubernetes.authenticate.driver.mounted.caCertFile": authority,
            "spark.kubernetes.authenticate.driver.mounted.oauthTokenFile": str(api.token_file),
            "spark.kubernetes.executor.deleteOnTermination": "false",
            "spark.ui.enabled": "false",
        }
        tracking = {"conn_id": "spark_kubernetes", "track_driver_via_k8s_api": True}
        conf |= settings.pop("conf", {})
        return cls(folder, environment, {"conf": conf, **tracking, **settings})
