"""Airflow sensors: wait until there is something to read, or until a run is committed."""
