"""Experiments, one for each guarantee; three brokers end with the last of them."""
