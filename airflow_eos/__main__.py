"""``python -m airflow_eos``: the ledger's commands, without Airflow."""

from __future__ import annotations

import sys

from airflow_eos.engine.command_line import main

if __name__ == "__main__":
    sys.exit(main())
