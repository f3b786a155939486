"""Spark on this host: JVM options, class-data archives, the Python daemon, the Spark Connect server."""
