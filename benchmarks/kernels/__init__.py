"""The kernels against the read ceiling of the machine: ``python -m benchmarks.kernels --help``."""
