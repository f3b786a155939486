"""Airflow sensors: wait until there are records to read, or until a run is committed."""
