"""The program behind the adapters llama.cpp and ik_llama.cpp: one process, one arm, one JSON line.

It drives the built libllama.so through the ctypes module of the peer's source distribution. The module is
imported without its package: the package's __init__ brings a server's dependencies and their memory.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.adapters import worker

# Engine to its package in the source tree and the module of that package which binds the library.
BINDINGS = {"llama.cpp": ("llama_cpp", "llama_cpp"), "ik_llama.cpp": ("ik_llama_cpp", "_ctypes_api")}


def import_binding(source: Path, engine: str) -> Any:
    """The binding module of ``engine`` from its source tree. The library's place is in the environment."""
    package_name, module_name = BINDINGS[engine]
    package = types.ModuleType(package_name)
    package.__path__ = [str(source / package_name)]
    sys.modules[package_name] = package
    return importlib.import_module(f"{package_name}.{module_name}")


def load(job: worker.Job) -> Any:
    """The engine, ready to compute."""
    # numpy, which drives the engine, is not the engine.
    from benchmarks.edge_harness.adapters import ggml_engine, ggml_observed

    job.importing()
    api = import_binding(job.given.source, job.given.engine)
    job.imported()
    log = ggml_observed.Log()
    engine = ggml_engine.GgmlEngine(
        *(api, ggml_engine.DIALECTS[job.given.engine], job.model),
        context_tokens=job.work.context_tokens,
        batch=job.work.batch,
        threads=job.threads,
        options=job.options,
        log=log,
        on_load=job.loaded,
    )
    names = ggml_observed.tensor_names(**json.loads(job.given.matrices))
    seen = ggml_observed.weights_seen(engine.layouts(names), json.loads(job.given.file_types))
    seen["ran"]["kv_dtype"] = engine.kv_dtype
    job.learned |= seen | {
        "observed": {
            "buffers": log.buffers,
            "repacked_tensors": len(log.repacked) or log.repacked_count or 0,
            "system_info": ggml_observed.system_info(api._lib),
        }
    }
    return engine


def main(argv: list[str] | None = None) -> int:
    parser = worker.parser(__doc__)
    parser.add_argument("--engine", choices=sorted(BINDINGS), required=True)
    parser.add_argument("--source", type=Path, required=True, help="unpacked source of the peer")
    parser.add_argument("--matrices", required=True, help="JSON: patterns and blocks of the weights' names")
    parser.add_argument("--file-types", required=True, help="JSON: matrices of each type in the file")
    return worker.main(load, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
