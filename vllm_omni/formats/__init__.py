"""Checkpoint words to codes: one module per format, each returning :class:`affine.AffineCodes`."""
