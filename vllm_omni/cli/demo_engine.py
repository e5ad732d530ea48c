"""One vLLM engine for ``vllm-omni demo``: start it, ask it, measure it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_omni.cli import engine_defaults
from vllm_omni.patch import apply_patches
from vllm_omni.plugin import vllm_version

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine


# vLLM's processes import the class by this name; this one does not need it.
WORKER_REPORT = "vllm_omni.cli.worker_report.WorkerReport"


@dataclass
class Answer:
    """One answered prompt. Times are this process's: what a client of the engine sees."""

    prompt: str
    prompt_tokens: int
    cached_tokens: int = 0
    text: str = ""
    token_times_s: list[float] = field(default_factory=list)
    started_s: float = 0.0
    finish_reason: str = ""

    @property
    def tokens(self) -> int:
        return len(self.token_times_s)

    @property
    def prefill_s(self) -> float:
        """From the request to its first token."""
        return self.token_times_s[0] - self.started_s

    @property
    def decode_s(self) -> float:
        """From the first token to the last."""
        return self.token_times_s[-1] - self.token_times_s[0]


def load_vllm() -> None:
    """Import vLLM, with the cores and threads of ``vllm-omni serve`` set for its processes."""
    engine_defaults.prepare_environment()
    apply_patches("command", vllm_version())
    import vllm  # noqa: F401


class DemoEngine:
    """An ``LLMEngine`` over an imported folder, with the bounded defaults of ``vllm-omni serve``."""

    def __init__(self, model: Path) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        arguments: dict[str, Any] = engine_defaults.engine_arguments(model)
        arguments |= {"model": str(model), "worker_extension_cls": WORKER_REPORT, "disable_log_stats": True}
        self._engine: LLMEngine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self.arguments = arguments

    def worker_report(self) -> dict[str, Any]:
        """What the worker says about its kernels; see :mod:`vllm_omni.cli.worker_report`."""
        return self._engine.collective_rpc("omni_worker_report")[0]

    def answer(self, prompt: str, *, max_tokens: int) -> tuple[Answer, Iterator[str]]:
        """Ask ``prompt`` as a user's first chat message.

        The iterator runs the engine and yields the text as it comes, token by token; the ``Answer`` is
        complete when it ends. Greedy, so that a run can be repeated.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        tokenizer = self._engine.get_tokenizer()
        messages = [{"role": "user", "content": prompt}]
        ids: list[int] = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, output_kind=RequestOutputKind.DELTA)
        answer = Answer(prompt, len(ids))
        return answer, self._run(answer, ids, sampling)

    def _run(self, answer: Answer, ids: list[int], sampling: Any) -> Iterator[str]:
        answer.started_s = time.monotonic()
        self._engine.add_request("demo", {"prompt_token_ids": ids}, sampling)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                now_s = time.monotonic()
                piece = output.outputs[0]
                answer.token_times_s += [now_s] * len(piece.token_ids)
                answer.text += piece.text
                answer.cached_tokens = output.num_cached_tokens or answer.cached_tokens
                answer.finish_reason = str(piece.finish_reason or answer.finish_reason)
                if piece.text:
                    yield piece.text

    def close(self) -> None:
        """End vLLM's processes."""
        self._engine.engine_core.shutdown()
