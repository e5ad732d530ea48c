"""The program behind the adapter openvino-genai, run in that engine's own environment.

The pipeline is the engine's continuous-batching one, which its ``LLMPipeline`` uses on CPUs too; driven step
by step, so that every token has a time. Prefix caching is off. The engine gives no log-probabilities of a
given text: these come from the same model file and the same plugin, compiled once more at the end, when all
that is measured has been.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.adapters import worker


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

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        self.reset()
        del self._pipeline
        compiled = self._ov.Core().compile_model(
            str(Path(self._folder) / "openvino_model.xml"), "CPU", self._properties
        )
        request = compiled.create_infer_request()
        count = len(ids)
        available = {
            "input_ids": self._np.array([ids], dtype=self._np.int64),
            "attention_mask": self._np.ones((1, count), dtype=self._np.int64),
            "position_ids": self._np.arange(count, dtype=self._np.int64)[None],
            "beam_idx": self._np.zeros(1, dtype=self._np.int32),
        }
        wanted = {port.get_any_name() for port in compiled.inputs}
        logits = request.infer({name: value for name, value in available.items() if name in wanted})["logits"]
        found = []
        for row, token in zip(logits[0], ids[1:], strict=False):
            wide = row.astype(self._np.float64)
            top = float(wide.max())
            found.append(float(wide[token]) - top - math.log(float(self._np.exp(wide - top).sum())))
        return found


def load(job: worker.Job) -> OpenVinoEngine:
    openvino = importlib.import_module("openvino")
    openvino_genai = importlib.import_module("openvino_genai")
    job.imported()
    properties = {"INFERENCE_NUM_THREADS": str(job.threads)}
    group = job.options.get("dynamic_quantization_group_size")
    if group is not None:
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = str(group)
    engine = OpenVinoEngine(
        openvino,
        openvino_genai,
        job.model,
        properties=properties,
        context_tokens=job.work.context_tokens,
        batch=job.work.batch,
    )
    job.loaded()
    return engine


if __name__ == "__main__":
    sys.exit(worker.main(load, worker.parser(__doc__).parse_args()))
