"""A packed folder as a plain bf16 one, for engines that know nothing of packed weights.

    python -m benchmarks.edge_harness.adapters.bf16_checkpoint PACKED_DIR OUT_DIR

Every weight is what the packed one dequantizes to, rounded once to bf16, so both folders are the same model.
Streamed tensor by tensor; OUT_DIR appears complete or not at all.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer

from vllm_omni import int4
from vllm_omni.checkpoints.atomic_folder import new_folder
from vllm_omni.checkpoints.safetensors_file import SafetensorsWriter, TensorEntry, TensorSpec, read_header
from vllm_omni.errors import OmniError
from vllm_omni.layout_header import PACKED_SUFFIX
from vllm_omni.quantization.packed_folder import PackedFolder, is_packed, read_packed_folder

WEIGHTS = "model.safetensors"
# Rows dequantized at a time: a vocabulary in float32 would be gigabytes.
ROWS = 4096
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def write_bf16(packed_dir: Path, out_dir: Path) -> None:
    """Raises :class:`OmniError` for a folder that is not packed, that stores fused layers, or an ``out_dir``
    that exists."""
    folder = read_packed_folder(packed_dir)
    if not folder.is_cpu_int4:
        raise OmniError(f"{packed_dir}: expected a cpu_int4 folder, found another")
    fused = [module for module in folder.packed if module.endswith(("qkv_proj", "gate_up_proj"))]
    if fused:
        raise OmniError(f"{packed_dir}: {fused[0]}: expected separate projections, found a fused tensor")
    entries = [(file, entry) for file in _files(packed_dir) for entry in read_header(file).entries]
    specs = [_spec(folder, entry) for _, entry in entries]
    with new_folder(out_dir) as made:
        with SafetensorsWriter(made / WEIGHTS, specs) as writer:
            for (file, entry), spec in zip(entries, specs, strict=True):
                writer.write(spec.name, b"".join(_bf16_bytes(file, entry)))
        config = {name: value for name, value in folder.config.items() if name != "quantization_config"}
        # Older and newer names of one setting; the newer wins where both are there.
        config |= {"torch_dtype": "bfloat16", "dtype": "bfloat16"}
        (made / "config.json").write_text(json.dumps(config, indent=1))
        for file in packed_dir.iterdir():
            if file.is_file() and _is_beside_the_weights(file):
                shutil.copyfile(file, made / file.name)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _is_beside_the_weights(file: Path) -> bool:
    """Tokenizer, chat template, generation defaults; not the record of how the packed folder was made."""
    return file.suffix != ".safetensors" and file.name not in (
        "config.json",
        "model.safetensors.index.json",
        "omni_import.json",
    )


def _spec(folder: PackedFolder, entry: TensorEntry) -> TensorSpec:
    if is_packed(entry):
        module = entry.name.removesuffix(PACKED_SUFFIX)
        packed = folder.packed[module]
        return TensorSpec(module + ".weight", "BF16", (packed.n, packed.k))
    if entry.dtype not in _DTYPES:
        raise OmniError(f"{folder.path}: {entry.name}: expected F32, F16 or BF16, found {entry.dtype}")
    return TensorSpec(entry.name, "BF16", entry.shape)


def _bf16_bytes(file: Path, entry: TensorEntry) -> Iterator[bytes]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        tensor = opened.get_tensor(entry.name)
    if not is_packed(entry):
        yield _bytes(tensor.to(torch.bfloat16))
        return
    weight = int4.PackedWeight(tensor)
    for start in range(0, weight.shape[0], ROWS):
        ids = torch.arange(start, min(start + ROWS, weight.shape[0]))
        yield _bytes(weight.rows(ids, torch.bfloat16))


def _bytes(tensor: torch.Tensor) -> bytes:
    data: bytes = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return data


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    packed_dir: Annotated[Path, typer.Argument(metavar="PACKED_DIR", help="A cpu_int4 folder.")],
    out_dir: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="The folder to make; must not exist.")],
) -> None:
    """Write what a packed folder's weights dequantize to as a bf16 folder."""
    try:
        write_bf16(packed_dir, out_dir)
    except OmniError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    app()
