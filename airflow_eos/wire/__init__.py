"""Requests to brokers: connections, retries, and every request that the clients' public APIs do not offer."""
