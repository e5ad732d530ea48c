"""Artifacts as one page, as Markdown and as CSV."""
