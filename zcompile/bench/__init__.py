"""Measures the machine that this runs on: ``zinf bench``."""
