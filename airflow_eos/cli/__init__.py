"""The command line: one definition for ``airflow eos ...`` and ``python -m airflow_eos ...``.

Exit codes: 0 success; 1 the cluster or the ledger refused, or is unreachable; 2 wrong usage; 3 the command
succeeded and found a problem (``doctor``, ``verify``); 130 Ctrl-C.
"""
