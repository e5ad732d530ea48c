"""``vllm-omni serve MODEL [VLLM OPTIONS]``: ``vllm serve``, refused early with one line, started with bounded
defaults."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_omni.cli.engine_defaults import (
    ModelShape,
    engine_defaults,
    local_folder,
    prepare_environment,
    with_environment,
)
from vllm_omni.cli.machine import Machine
from vllm_omni.errors import FormatError, OmniError
from vllm_omni.failure_report import one_line
from vllm_omni.native import native
from vllm_omni.plugin import vllm_version
from vllm_omni.quantization.options import (
    METHOD_NAME,
    Int4Options,
    activation_override,
    refuse_load_format,
    refuse_speculative_method,
)
from vllm_omni.quantization.packed_folder import PackedFolder
from vllm_omni.settings import FAILURE_FILE

HOST = "127.0.0.1"
_GGUF_MAGIC = b"GGUF"
_HELP = ("-h", "--help")
# Any of these is a tokenizer that transformers or vLLM load.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
# vLLM's arguments that bound an engine; those that the user gives are left alone.
_BOUNDS = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "gpu_memory_utilization",
)

_log = logging.getLogger("vllm.omni_edge")


def run(model: str, options: Sequence[str]) -> None:
    """Serve ``model`` until stopped. ``options`` go to vLLM as they are, after ours.

    Raises :class:`OmniError` with one line: for a model that cannot be served, and with the cause when an
    engine process fails to start.
    """
    wants_help = any(option in _HELP or option.startswith("--help=") for option in options)
    folder = None if wants_help else check_model(model)
    if not wants_help:
        # In the engine's processes an instruction set that the machine lacks would end in a traceback.
        native()
    if folder is not None and folder.is_cpu_int4:
        verify_weights(folder)
    if importlib.util.find_spec("vllm") is None:
        raise OmniError("vLLM is not installed: see README, Install")
    machine = Machine.read()
    threads = prepare_environment(machine)
    from vllm_omni.patch import apply_patches

    apply_patches("command", vllm_version())
    arguments = [model, *options]
    if not wants_help:
        given = parse(arguments)
        refuse_options(given, folder)
        bounds = {name: _number(given[name]) for name in _BOUNDS if name in given}
        shape = ModelShape.read(folder) if folder is not None else None
        chosen = engine_defaults(shape, machine, with_environment(bounds))
        arguments += [f"--{name.replace('_', '-')}={value}" for name, value in chosen.arguments.items()]
        if "host" not in given and "uds" not in given:
            arguments.append(f"--host={HOST}")
        address = given.get("uds") or f"{given.get('host') or HOST} port {given.get('port', 8000)}"
        _log.info("serve: %s; %s; listening on %s", threads, chosen.sentence, address)
    _run_vllm(["serve", *arguments])


def check_model(model: str) -> PackedFolder | None:
    """The model's folder; ``None`` for a name on a model hub and for formats that vLLM alone knows.

    Raises :class:`OmniError` naming the path for what cannot be served.
    """
    path = Path(model).expanduser()
    if path.is_file():
        with open(path, "rb") as file:
            is_gguf = file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
        if is_gguf or path.suffix == ".gguf":
            raise OmniError(
                f"{path} is a GGUF file: import it first with `vllm-omni import {path} FOLDER`, then serve "
                "FOLDER"
            )
        raise OmniError(f"{path} is a file: expected a model folder")
    if not path.exists() and (path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1):
        raise OmniError(f"{path}: no such folder (a model of the hub is named ORGANISATION/NAME)")
    folder = local_folder(model)
    if folder is not None and folder.is_cpu_int4:
        Int4Options.from_dict(folder.quantization or {})
    return folder


def verify_weights(folder: PackedFolder) -> None:
    """Compare the checksums of all packed weights: a damaged file is refused before an engine starts.

    Reads every file once, at the speed of the disk; the engine then finds the pages in the cache.
    """
    from vllm_omni.checkpoints.packed_file import validate_packed_file

    for name in sorted({tensor.file for tensor in folder.packed.values()}):
        try:
            validate_packed_file(folder.path / name)
        except FormatError as error:
            raise FormatError(f"{error}; import or copy the model again") from error


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """What the user gave, by vLLM's names and with its types, without vLLM's defaults; also from
    ``--config``.

    A bad option ends the process as it does in vLLM: with its usage and exit code 2.
    """
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm-omni")
    serve_parser = cmd_init()[0].subparser_init(parser.add_subparsers(dest="subparser"))
    for action in serve_parser._actions:
        action.default = argparse.SUPPRESS
    return vars(parser.parse_args(["serve", *arguments]))


def refuse_options(given: dict[str, Any], folder: PackedFolder | None) -> None:
    """Raise :class:`OmniError` naming the option that packed weights do not serve."""
    if folder is None or not folder.is_cpu_int4:
        if folder is not None and given.get("quantization") == METHOD_NAME:
            raise OmniError(
                f"--quantization {METHOD_NAME}: {folder.path} is not packed: use `vllm-omni import`"
            )
        return
    refuse_load_format(str(given.get("load_format", "auto")))
    _refuse_draft_model(given)
    own_tokenizer = given.get("tokenizer") or given.get("skip_tokenizer_init")
    if not own_tokenizer and not any((folder.path / name).is_file() for name in _TOKENIZER_FILES):
        raise OmniError(
            f"{folder.path}: expected a tokenizer ({', '.join(_TOKENIZER_FILES)}), found none: import the "
            "model again, or give --tokenizer"
        )
    ranks = given.get("tensor_parallel_size") or 1
    if ranks > 1:
        raise OmniError(
            f"--tensor-parallel-size {ranks}: {METHOD_NAME} runs on one rank, which uses all cores"
        )
    activation_override(given.get("additional_config"))


def _refuse_draft_model(given: Mapping[str, Any]) -> None:
    """As vLLM does, the method is taken from the model's name where it is not given."""
    config = dict(given.get("speculative_config") or {})
    config |= {key: given[f"spec_{key}"] for key in ("method", "model") if given.get(f"spec_{key}")}
    if config:
        named = config.get("method") or config.get("model") or "draft_model"
        refuse_speculative_method(str(named).strip("[]"))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _run_vllm(arguments: Sequence[str]) -> None:
    """vLLM's own command in this process. A failed start raises :class:`OmniError` with its cause."""
    from vllm.entrypoints.cli.main import main

    with tempfile.TemporaryDirectory(prefix="vllm-omni-serve-") as scratch:
        cause = Path(scratch) / "cause"
        os.environ[FAILURE_FILE] = str(cause)
        sys.argv = ["vllm", *arguments]
        try:
            main()
        except SystemExit as ended:
            if ended.code in (None, 0) or not cause.exists():
                raise
            raise OmniError(cause.read_text(encoding="utf-8")) from ended
        except Exception as error:
            line = cause.read_text(encoding="utf-8") if cause.exists() else one_line(error)
            raise OmniError(line) from error
        finally:
            # vLLM puts "(APIServer pid=…)" before every line of its processes by a `write` of its own.
            for stream in (sys.stdout, sys.stderr):
                vars(stream).pop("write", None)
