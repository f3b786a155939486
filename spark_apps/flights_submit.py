"""The flights app as a ``spark-submit`` application with options of its own.

Submitted by ``ReadProcessWriteSubmitOperator(application="../spark_apps/flights_submit.py", ...)``, which
passes the ranges to read.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))  # for flights.py, if it was not shipped as a file

from flights import DEAD_LETTER_TOPIC, process

from airflow_eos.spark import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dead-letter-topic", default=DEAD_LETTER_TOPIC)
    options, _ = parser.parse_known_args()
    main(functools.partial(process, dead_letter_topic=options.dead_letter_topic))
