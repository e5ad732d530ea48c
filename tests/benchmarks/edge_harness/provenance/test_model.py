"""Identity of a model: digests that follow the content, and no path."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks.edge_harness.provenance.model import model_identity
from vllm_omni.errors import OmniError


def plain_folder(path: Path, fill: float = 0.0) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16"}))
    weights = np.full((4, 4), fill, dtype=np.float16)
    save_file({"model.embed_tokens.weight": weights}, path / "model.safetensors")
    return path


def test_a_folder_without_quantization(tmp_path: Path) -> None:
    identity = model_identity(plain_folder(tmp_path / "deep" / "m"))
    assert identity.id == "m"
    assert identity.quantization is None
    assert identity.head_bits == 16
    assert identity.config_sha256 is not None
    assert str(tmp_path) not in identity.model_dump_json()


def test_a_digest_follows_the_weights(tmp_path: Path) -> None:
    one, same, other = (
        model_identity(plain_folder(tmp_path / name / "m", fill))
        for name, fill in (("a", 0), ("b", 0), ("c", 1))
    )
    assert one.weights_sha256 == same.weights_sha256
    assert one.weights_sha256 != other.weights_sha256
    assert one.config_sha256 == other.config_sha256


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "a.Q4_0.gguf"
    file.write_bytes(b"one")
    first = model_identity(file)
    assert (first.id, first.quantization, first.weights_bytes) == ("a.Q4_0.gguf", "Q4_0", 3)
    file.write_bytes(b"longer")
    assert model_identity(file).weights_sha256 != first.weights_sha256


@pytest.mark.model
def test_an_imported_model(tmp_path: Path) -> None:
    from vllm_omni.checkpoints.gguf_import import import_gguf
    from vllm_omni.cli.demo_model import installed_gguf

    folder = tmp_path / "smollm2"
    import_gguf(installed_gguf(), folder)
    identity = model_identity(folder)
    assert identity.quantization is not None
    assert identity.quantization.startswith("cpu_int4")
    assert identity.head_bits == 8


@pytest.mark.parametrize("make", ["nothing", "empty"])
def test_no_weights(tmp_path: Path, make: str) -> None:
    path = tmp_path / "m"
    if make == "empty":
        path.mkdir()
    with pytest.raises(OmniError, match="expected a model folder or file, found no weights"):
        model_identity(path)
