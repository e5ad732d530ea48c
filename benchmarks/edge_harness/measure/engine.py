"""vLLM in this process: built, timed, and driven step by step on exact token ids.

The engine's worker runs in the measuring process, so that a profiler sees its operators, counters can be read
and one process's memory is all there is. :class:`InProcessEngine` proves that it is so.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.edge_harness.measure.step_bytes import kv_bytes_per_token
from benchmarks.edge_harness.measure.timing import Repetition
from vllm_omni import settings
from vllm_omni.cli import engine_defaults, in_process
from vllm_omni.errors import OmniError
from vllm_omni.quantization.packed_folder import read_packed_folder

# Ids below are special tokens in the tokenizers of common models; random prompts leave them out.
FIRST_PROMPT_ID = 16

Mark = Callable[[str], None]


def engine_arguments(
    model: Path, context_len: int, batch: int, extra: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The bounded arguments of ``vllm-omni serve`` for ``batch`` sequences of ``context_len`` tokens, with
    what a measurement needs; ``extra`` wins. The KV cache holds exactly these sequences."""
    extra = dict(extra or {})
    folder = read_packed_folder(model)
    shape = engine_defaults.ModelShape.read(folder)
    shape = replace(shape, kv_bytes_per_token=kv_bytes_per_token(folder, extra))
    if shape.context_tokens and context_len > shape.context_tokens:
        raise OmniError(
            f"{model}: a context of {context_len} tokens, expected at most the model's {shape.context_tokens}"
        )
    given: dict[str, int | None] = {"max_model_len": context_len, "max_num_seqs": batch}
    given |= {name: value for name, value in extra.items() if name in _SIZES}
    if "kv_cache_memory_bytes" not in given and shape.kv_bytes_per_token:
        given["kv_cache_memory_bytes"] = engine_defaults.kv_bytes_of(shape, batch * context_len)
    arguments: dict[str, Any] = engine_defaults.engine_arguments(model, given)
    arguments |= {name: value for name, value in given.items() if value is not None}
    arguments |= {
        "model": str(model),
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "seed": 0,
    }
    return arguments | extra


_SIZES = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory_bytes")


class Engine:
    """An ``LLMEngine`` in whatever process layout the environment asks for, driven on token ids."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self.arguments = arguments
        self.times_s: dict[str, float] = {}
        self._requests = 0
        start = time.monotonic()
        self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self.times_s["init_s"] = time.monotonic() - start

    @property
    def vllm_config(self) -> Any:
        return self._engine.vllm_config

    @property
    def vocabulary_size(self) -> int:
        return int(self._engine.model_config.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        return list(self._engine.get_tokenizer().encode(text, add_special_tokens=False))

    def random_ids(self, count: int, seed: int) -> list[int]:
        """``count`` token ids that differ from seed to seed."""
        import numpy as np

        low = FIRST_PROMPT_ID if self.vocabulary_size > 4 * FIRST_PROMPT_ID else 0
        return np.random.default_rng(seed).integers(low, self.vocabulary_size, count).tolist()

    def add(self, ids: Sequence[int], max_tokens: int, **sampling: Any) -> str:
        """Queue a prompt, greedy, to exactly ``max_tokens`` tokens, nothing detokenized."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = {"detokenize": False, "output_kind": RequestOutputKind.DELTA} | sampling
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **sampling)
        self._requests += 1
        name = f"measure-{self._requests}"
        self._engine.add_request(name, {"prompt_token_ids": list(ids)}, params)
        return name

    def step(self) -> list[Any]:
        """One step of the engine: what it put out."""
        return list(self._engine.step())

    def abort(self, names: Sequence[str]) -> None:
        self._engine.abort_request(list(names))
        # The scheduler drops what was aborted in its next step, which computes nothing.
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def run(
        self,
        ids: Sequence[int],
        max_tokens: int,
        *,
        before_last: Callable[[], None] | None = None,
        **sampling: Any,
    ) -> Any:
        """One request to its end; its last output. ``before_last`` is called once, with one token to come."""
        self.add(ids, max_tokens, **sampling)
        last, tokens = None, 0
        while self._engine.has_unfinished_requests():
            for output in self.step():
                last = output
                tokens += len(output.outputs[0].token_ids)
            if before_last is not None and tokens >= max_tokens - 1:
                before_last()
                before_last = None
        return last

    def process_facts(self) -> dict[str, Any]:
        """Allocator, OpenMP runtimes and threads of the process that measures, for its artifact."""
        from benchmarks.edge_harness.provenance.libraries import observed_libraries

        loaded = observed_libraries(os.getpid())
        return {
            "allocator": loaded.allocator,
            "openmp_runtimes": list(loaded.openmp_runtimes),
            "threads": len(os.listdir("/proc/self/task")),
            "environment": settings.performance_variables(),
        }

    def rpc(self, method: str) -> list[Any]:
        """Call ``method`` of every worker."""
        return list(self._engine.collective_rpc(method))

    def close(self) -> None:
        self._engine.engine_core.shutdown()


class InProcessEngine(Engine):
    """An engine whose worker lives in this process.

    ``mark(phase)`` is called right after the weights are loaded, so that memory is seen at that moment.
    ``times_s`` holds ``init_s`` and its parts: ``config_s``, ``load_s``, ``compile_s``, ``warm_up_s``.
    """

    def __init__(self, arguments: dict[str, Any], mark: Mark | None = None) -> None:
        from vllm import envs
        from vllm.v1.engine.core_client import InprocClient

        if envs.VLLM_ENABLE_V1_MULTIPROCESSING:
            raise OmniError(f"{in_process.IN_PROCESS} is 1: expected 0: the engine must run in this process")
        parts: dict[str, float] = {}
        with _Stopwatch(parts, mark or _nothing):
            super().__init__(arguments)
        if not isinstance(self._engine.engine_core, InprocClient):
            raise OmniError("the engine's worker is not in this process: nothing of it can be measured here")
        self._core = self._engine.engine_core.engine_core
        self.times_s |= parts
        self._settle_times()

    def _settle_times(self) -> None:
        """What remains of the start is vLLM's configuration, tokenizer and inspection of the model."""
        times = self.times_s
        whole = times.pop("kv_and_warm_up_s")
        compiled = times.setdefault("compile_s", 0.0)
        times["warm_up_s"] = whole - compiled
        times["config_s"] = times["init_s"] - times["load_s"] - whole

    @property
    def model_runner(self) -> Any:
        return self._core.model_executor.driver_worker.worker.model_runner

    @property
    def model(self) -> Any:
        """The torch module that computes."""
        return self.model_runner.get_model()

    @property
    def scheduler(self) -> Any:
        return self._core.scheduler

    def repetition(
        self,
        prompt_tokens: int,
        decode_steps: int,
        *,
        batch: int = 1,
        depth: int = 0,
        seed: int,
        at_end: Callable[[], None] | None = None,
        each_step: Callable[[], None] | None = None,
    ) -> Repetition:
        """Put ``depth`` tokens of each of ``batch`` sequences into the KV cache, then time
        ``prompt_tokens`` of each up to the last one's first token, then ``decode_steps`` steps.

        ``at_end`` is called while the sequences still hold the cache; ``each_step`` is called instead of
        ``step`` for the decode steps.
        """
        # More than is wanted: whoever has its first token early goes on while the others are prefilled.
        longest = self.arguments["max_model_len"] - depth - prompt_tokens
        prompts = [self.random_ids(depth + prompt_tokens, seed * 1009 + i) for i in range(batch)]
        start = time.perf_counter()
        names = [self.add(ids, longest) for ids in prompts]
        if depth:
            self._fill(names, depth)
            start = time.perf_counter()
        started: set[str] = set()
        ends: list[float] = []
        while len(started) < batch:
            started |= {output.request_id for output in self.step() if output.outputs[0].token_ids}
        ends.append(time.perf_counter() - start)
        for _ in range(decode_steps):
            if each_step is None:
                self.step()
            else:
                each_step()
            ends.append(time.perf_counter() - start)
        self._prove_decoded(names, prompt_tokens + depth, decode_steps)
        if at_end is not None:
            at_end()
        self.abort(names)
        return Repetition(prompt_tokens, batch, tuple(ends))

    def _fill(self, names: list[str], depth: int) -> None:
        """Compute exactly ``depth`` tokens of every sequence, all in step, and nothing more."""
        config = self.scheduler.scheduler_config
        before = config.long_prefill_token_threshold
        per_sequence = self.scheduler.max_num_scheduled_tokens // len(names)
        done = 0
        try:
            while done < depth:
                chunk = min(per_sequence, depth - done)
                config.long_prefill_token_threshold = chunk
                self.step()
                done += chunk
                found = {self._computed(name) for name in names}
                if found != {done}:
                    raise OmniError(f"depth: expected {done} tokens in the KV cache, found {sorted(found)}")
        finally:
            config.long_prefill_token_threshold = before

    def _computed(self, name: str) -> int:
        """Tokens of a request in the KV cache. vLLM gives the name a suffix of its own."""
        for key, request in self.scheduler.requests.items():
            if key == name or key.startswith(f"{name}-"):
                return int(request.num_computed_tokens)
        raise OmniError(f"{name}: expected a running sequence, found it ended: the context is too short")

    def _prove_decoded(self, names: list[str], context: int, steps: int) -> None:
        """Every sequence is alive and has the context that the figure claims."""
        for name in names:
            computed = self._computed(name)
            if computed < context + steps:
                raise OmniError(
                    f"decode: expected at least {context + steps} tokens in the KV cache, found {computed}"
                )

    def prefill_logprobs(self, ids: Sequence[int]) -> list[float]:
        """Natural log-probabilities of ``ids[1:]``, the whole being one prompt."""
        output = self.run(ids, 1, prompt_logprobs=0)
        rows = output.prompt_logprobs
        return [float(row[token].logprob) for token, row in zip(ids, rows, strict=True) if row is not None]

    @property
    def kv_dtype(self) -> str | None:
        """What the KV cache holds, by torch's name, or vLLM's where bytes stand for another type."""
        caches = self.model_runner.kv_caches
        if not caches:
            return None
        asked = str(self.vllm_config.cache_config.cache_dtype)
        held = str(caches[0].dtype).removeprefix("torch.")
        return asked if held in ("uint8", "int8") and asked != "auto" else held


class _Stopwatch:
    """Times the parts of an engine's start and marks the end of the load, while it is entered."""

    def __init__(self, times_s: dict[str, float], mark: Mark) -> None:
        self._times_s = times_s
        self._mark = mark
        self._undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> _Stopwatch:
        from vllm.compilation import decorators
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.worker.cpu_worker import CPUWorker

        self._time_compilation(decorators)
        self._wrap(CPUWorker, "load_model", "load_s", "after load")
        self._wrap(EngineCore, "_initialize_kv_caches", "kv_and_warm_up_s", None)
        return self

    def __exit__(self, *error: object) -> None:
        for owner, name, original in self._undo:
            setattr(owner, name, original)

    def _time_compilation(self, module: Any) -> None:
        """Around everything that vLLM counts as compilation: fetching from the cache, whether or not it
        succeeds, and torch.compile. vLLM's own sum leaves out the compile mode of CPUs."""
        original = module.monitor_torch_compile
        self._undo.append((module, "monitor_torch_compile", original))

        @contextlib.contextmanager
        def timed(*args: Any, **kwargs: Any) -> Iterator[None]:
            start = time.monotonic()
            try:
                with original(*args, **kwargs):
                    yield
            finally:
                spent = time.monotonic() - start
                self._times_s["compile_s"] = self._times_s.get("compile_s", 0.0) + spent

        module.monitor_torch_compile = timed

    def _wrap(self, owner: type, name: str, key: str, phase: str | None) -> None:
        original = getattr(owner, name)
        self._undo.append((owner, name, original))

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.monotonic()
            result = original(*args, **kwargs)
            self._times_s[key] = time.monotonic() - start
            if phase is not None:
                self._mark(phase)
            return result

        setattr(owner, name, timed)


def _nothing(phase: str) -> None:
    return None
