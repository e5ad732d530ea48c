"""``python -m benchmarks.kernels``."""

from benchmarks.kernels.app import app

app(prog_name="python -m benchmarks.kernels")
