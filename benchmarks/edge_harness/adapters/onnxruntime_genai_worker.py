"""The program behind the adapter onnxruntime-genai, run in that engine's own environment.

Tokens are the engine's own greedy choice: its generator feeds them back itself.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.edge_harness.adapters import worker


class OnnxRuntimeEngine:
    """One model; a generator for each run of the workload. See ``workload.Engine``."""

    def __init__(self, og: Any, folder: str, *, threads: int, context_tokens: int, batch: int) -> None:
        import numpy

        self._np = numpy
        self._og = og
        config = og.Config(folder)
        session = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self._model = og.Model(config)
        self._tokenizer = og.Tokenizer(self._model)
        self._context_tokens, self._batch = context_tokens, batch
        with open(f"{folder}/genai_config.json") as file:
            self.vocabulary_size = int(json.load(file)["model"]["vocab_size"])
        self._generator: Any = None

    def encode(self, text: str) -> list[int]:
        return [int(token) for token in self._tokenizer.encode(text)]

    def reset(self) -> None:
        self._start(self._batch)

    def _start(self, batch: int) -> None:
        # The old one's cache goes first: two of them would be the peak of memory.
        self._generator = None
        parameters = self._og.GeneratorParams(self._model)
        # As long as it can be, so that an end-of-text token does not end the run.
        length = self._context_tokens
        parameters.set_search_options(max_length=length, min_length=length, batch_size=batch, do_sample=False)
        self._generator = self._og.Generator(self._model, parameters)

    def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        array = self._np.array(prompts, dtype=self._np.int32)
        self._generator.append_tokens(array if len(prompts) > 1 else array[0])

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        self.fill(prompts)
        return self.step([])

    def step(self, tokens: Sequence[int]) -> list[int]:
        """The first call after a prompt only chooses; every later one computes a step and chooses."""
        self._generator.generate_next_token()
        return [int(token) for token in self._generator.get_next_tokens()]

    def prompt_logprobs(self, ids: Sequence[int]) -> list[float]:
        """A prompt for each token: the engine gives the logits of a prompt's last token only."""
        found = []
        for end in range(1, len(ids)):
            self._start(1)
            self.fill([ids[:end]])
            found.append(self._logprob(ids[end]))
        return found

    def step_logprobs(self, ids: Sequence[int]) -> list[float]:
        self._start(1)
        found = []
        for token, following in itertools.pairwise(ids):
            self.fill([[token]])
            found.append(self._logprob(following))
        return found

    def _logprob(self, token: int) -> float:
        """Of ``token`` after what was filled last."""
        logits = self._np.asarray(self._generator.get_logits()).reshape(-1, self.vocabulary_size)[-1]
        wide = logits.astype(self._np.float64)
        top = float(wide.max())
        return float(wide[token]) - top - math.log(float(self._np.exp(wide - top).sum()))


def load(job: worker.Job) -> OnnxRuntimeEngine:
    job.importing()
    og = importlib.import_module("onnxruntime_genai")
    job.imported()
    engine = OnnxRuntimeEngine(
        og,
        job.model,
        threads=job.threads,
        context_tokens=job.work.context_tokens,
        batch=job.work.batch,
    )
    job.loaded()
    return engine


if __name__ == "__main__":
    sys.exit(worker.main(load, worker.parser(__doc__).parse_args()))
