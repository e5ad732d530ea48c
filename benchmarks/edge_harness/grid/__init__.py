"""The runner: fresh pinned processes in rotated and mirrored order."""
