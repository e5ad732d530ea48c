"""The program behind the adapter openvino-genai, run in that engine's own environment.

The pipeline is the engine's continuous-batching one, which its ``LLMPipeline`` uses on CPUs too; driven step
by step, so that every token has a time. Prefix caching is off. The engine gives no log-probabilities of a
given text: these come from the same model file and the same plugin, compiled once more at the end, when all
that is measured has been. That is another graph than the pipeline's, which replaces attention by its own; the
record says so.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.adapters import worker

VERIFICATION_NOTE = (
    "openvino-genai: the log-probability is of the same model file and properties, compiled apart: not of "
    "the pipeline that is timed, which has an attention of its own"
)
_DTYPES = {"uint8_t": "uint8", "int8_t": "int8", "float": "float32"}


class OpenVinoEngine:
    """One pipeline; a request for each sequence of a run. See ``workload.Engine``."""

    def __init__(
        self, ov: Any, genai: Any, folder: str, *, properties: dict[str, str], context_tokens: int, batch: int
    ) -> None:
        import numpy

        self._np, self._ov, self._genai, self._folder, self._properties = numpy, ov, genai, folder, properties
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_seqs = batch
        # A prompt in one step, as a request alone on the machine is computed by the engine's own tools.
        scheduler.dynamic_split_fuse = False
        scheduler.max_num_batched_tokens = max(context_tokens * batch, 256)
        self._pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._context_tokens = context_tokens
        self._requests = 0
        self._handles: list[Any] = []
        self._waiting: list[list[int]] = []
        self._request: Any = None
        self.vocabulary_size = len(self._tokenizer.get_vocab())

    def encode(self, text: str) -> list[int]:
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return [int(token) for token in encoded.input_ids.data.flatten()]

    def reset(self) -> None:
        for handle in self._handles:
            handle.cancel()
        while self._handles and self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        self._handles = []

    def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        raise ValueError("openvino-genai: depth: its pipeline takes a prompt whole; expected depth 0")

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        for ids in prompts:
            config = self._genai.GenerationConfig()
            config.max_new_tokens = self._context_tokens - len(ids)
            config.ignore_eos = True
            config.do_sample = False
            tensor = self._ov.Tensor(self._np.array([ids], dtype=self._np.int64))
            self._requests += 1
            self._handles.append(self._pipeline.add_request(self._requests, tensor, config))
        self._waiting = [[] for _ in self._handles]
        return self.step([])

    def step(self, tokens: Sequence[int]) -> list[int]:
        """Steps until every sequence has its next token; the pipeline feeds them back itself."""
        while not all(self._waiting):
            self._pipeline.step()
            for handle, queue in zip(self._handles, self._waiting, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        queue += output.generated_ids
        return [queue.pop(0) for queue in self._waiting]

    def prompt_logprobs(self, ids: Sequence[int]) -> list[float]:
        self._start_plain()
        return [self._logprob(row, token) for row, token in zip(self._infer(ids, 0), ids[1:], strict=False)]

    def step_logprobs(self, ids: Sequence[int]) -> list[float]:
        self._start_plain()
        return [self._logprob(self._infer([ids[i]], i)[0], ids[i + 1]) for i in range(len(ids) - 1)]

    def _start_plain(self) -> None:
        """The model file compiled by itself, with an empty cache; the pipeline goes, for memory's sake."""
        if self._request is None:
            self.reset()
            del self._pipeline
            model = str(Path(self._folder) / "openvino_model.xml")
            compiled = self._ov.Core().compile_model(model, "CPU", self._properties)
            self._inputs = {port.get_any_name() for port in compiled.inputs}
            self._request = compiled.create_infer_request()
        self._request.reset_state()

    def _infer(self, ids: Sequence[int], before: int) -> Any:
        """Logits of ``ids`` after ``before`` tokens that the request has seen."""
        count = len(ids)
        available = {
            "input_ids": self._np.array([ids], dtype=self._np.int64),
            "attention_mask": self._np.ones((1, before + count), dtype=self._np.int64),
            "position_ids": self._np.arange(before, before + count, dtype=self._np.int64)[None],
            "beam_idx": self._np.zeros(1, dtype=self._np.int32),
        }
        given = {name: value for name, value in available.items() if name in self._inputs}
        return self._request.infer(given)["logits"][0]

    def _logprob(self, row: Any, token: int) -> float:
        wide = row.astype(self._np.float64)
        top = float(wide.max())
        return float(wide[token]) - top - math.log(float(self._np.exp(wide - top).sum()))


def load(job: worker.Job) -> OpenVinoEngine:
    job.importing()
    openvino = importlib.import_module("openvino")
    openvino_genai = importlib.import_module("openvino_genai")
    job.imported()
    properties = {"INFERENCE_NUM_THREADS": str(job.threads)}
    group = job.options.get("dynamic_quantization_group_size")
    if group is not None:
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = str(group)
    precision = job.options.get("kv_cache_precision")
    if precision is not None:
        properties["KV_CACHE_PRECISION"] = precision
    engine = OpenVinoEngine(
        openvino,
        openvino_genai,
        job.model,
        properties=properties,
        context_tokens=job.work.context_tokens,
        batch=job.work.batch,
    )
    job.loaded()
    job.learned["notes"] = [VERIFICATION_NOTE]
    job.learned["ran"] = {"kv_dtype": kv_dtype(openvino.Core(), precision)}
    return engine


def kv_dtype(core: Any, precision: str | None) -> str:
    """What was asked for, else the plugin's own setting: the pipeline does not tell what it has."""
    if precision is not None:
        return {"u8": "uint8", "i8": "int8", "f16": "float16", "bf16": "bfloat16", "f32": "float32"}.get(
            precision, precision
        )
    told = str(core.get_property("CPU", "KV_CACHE_PRECISION"))
    name = told.partition("'")[2].rstrip("'>")
    return _DTYPES.get(name, name or told)


if __name__ == "__main__":
    sys.exit(worker.main(load, worker.parser(__doc__).parse_args()))
