"""A run whose driver is on a real YARN: the task waits for it in the triggerer."""

from __future__ import annotations

import datetime as dt
import json
import os

from airflow.sdk import DAG

from airflow_eos import ReadProcessWriteSubmitOperator

with DAG("on_yarn", schedule=None) as dag:
    ReadProcessWriteSubmitOperator(
        task_id="copy",
        process="on_yarn_app.py:process",
        topics=["on-yarn-in"],
        sink_topic="on-yarn-out",
        group_id="on-yarn",
        conn_id="spark_yarn",
        conf=json.loads(os.environ.get("EOS_TEST_YARN_CONF", "{}")),
        deploy_mode="cluster",
        yarn_track_via_rm_api=True,
        deferrable=True,
        status_poll_interval=1,
        retries=1,
        retry_delay=dt.timedelta(seconds=1),
    )
