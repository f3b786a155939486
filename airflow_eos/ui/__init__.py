"""Web pages in Airflow about the ledger's runs and their completeness."""
