"""Spark on this host: options of its JVM, class data, the Python daemon, the Spark Connect server."""
