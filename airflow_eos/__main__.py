"""``python -m airflow_eos``: ledger, cursors and checks, without Airflow."""

from __future__ import annotations

import sys

from airflow_eos.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
