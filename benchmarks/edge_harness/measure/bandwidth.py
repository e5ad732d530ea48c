"""The read ceiling of one thread count, in this process.

python -m benchmarks.edge_harness.measure.bandwidth --threads 2
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.edge_harness.measure.emit import Output
from benchmarks.edge_harness.measure.thread_binding import add_binding_options, bind, binding_record
from vllm_omni.errors import OmniError


def run(options: argparse.Namespace, output: Output) -> None:
    import torch

    from benchmarks.edge_harness.measure.read_ceiling import ReadCeiling, ceiling_record

    if torch.get_num_threads() != len(options.cores):
        raise OmniError(f"--threads {len(options.cores)}: torch uses {torch.get_num_threads()}")
    size = options.buffer_mb * 1_000_000 if options.buffer_mb else None
    with ReadCeiling(size) as ceiling:
        samples = ceiling.samples_gbps(options.passes)
        output.emit(
            {
                **ceiling_record(samples, ceiling.nbytes),
                "threads": torch.get_num_threads(),
                **binding_record(options),
                "cache_multiple": ceiling.cache_multiple,
                "samples": {"ceiling_gbps": samples},
            }
        )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.edge_harness.measure.bandwidth")
    add_binding_options(made)
    made.add_argument("--passes", type=int, default=20)
    made.add_argument("--buffer-mb", type=int)
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        bind(options)
        run(options, Output())
    except OmniError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
