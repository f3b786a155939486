"""Experiments, one for each guarantee; the cluster of three brokers stops after the last of them."""
