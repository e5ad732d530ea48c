"""``python -m benchmarks.kernels``."""

from benchmarks.kernels.gemv import app

app()
