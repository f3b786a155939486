"""The command line: one definition, as ``airflow eos ...`` and as ``python -m airflow_eos ...``.

Exit codes: 0 done; 1 the cluster or the ledger says no, or cannot be asked; 2 wrong usage; 3 the command
worked and found something wrong (``doctor``, ``verify``).
"""
