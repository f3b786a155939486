"""Tests of the project: each folder shares the fixtures of its ``conftest.py``."""
