"""Requests to brokers: connections, retries, and every request the clients' public APIs cannot make."""
