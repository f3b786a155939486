"""An Airflow home for the test session: everything Airflow writes goes to a temporary folder.

Import it before Airflow: Airflow reads its home once per process.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

if "airflow" in sys.modules:
    raise RuntimeError(
        "import tests.support.airflow_home before airflow: the home is read at the first import"
    )

HOME = Path(tempfile.mkdtemp(prefix="airflow-eos-test-home-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

# Keep the test equipment's variables: they select the kind of session under test.
for name in [key for key in os.environ if key.startswith("AIRFLOW") and "_EOS_TEST_" not in key]:
    del os.environ[name]
os.environ.update(
    AIRFLOW_HOME=str(HOME),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__DAGS_FOLDER=str(HOME / "dags"),
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{HOME / 'airflow.db'}",
)
