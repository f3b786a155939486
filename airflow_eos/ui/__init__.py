"""Pages in Airflow: what the ledger holds, and whether it is whole."""
