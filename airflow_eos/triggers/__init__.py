"""Airflow triggers: the conditions sensors wait for, events for assets, Spark drivers on a cluster."""
