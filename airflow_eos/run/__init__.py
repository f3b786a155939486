"""The run protocol."""
