"""Tests under real Airflow schedulers; costly fixtures end with the last test."""
