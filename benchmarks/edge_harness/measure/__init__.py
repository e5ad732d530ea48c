"""Programs that measure one engine in their own process and end with one JSON line."""
