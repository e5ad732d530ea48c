"""The harness as a script: ``python benchmarks/edge_harness/bench_harness.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Run by its path, Python puts this folder first, where `statistics` would hide the standard library's.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from benchmarks.edge_harness.cli.app import main

    sys.exit(main())
