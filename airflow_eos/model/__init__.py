"""Frozen values that cross the layers; JSON forms carry a version."""
