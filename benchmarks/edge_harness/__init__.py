"""The edge harness: every number as an interleaved A/B with provenance (docs/edge/harness.md)."""
