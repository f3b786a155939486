"""Tests under real Airflow schedulers; what is costly ends with the last of them."""
