"""Checkpoints of published geometries with random weights."""
