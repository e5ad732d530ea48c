"""Engines behind one interface, so that peers run in the same grid."""
