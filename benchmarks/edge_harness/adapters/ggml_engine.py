"""llama.cpp and its fork, driven by token ids through their C API.

``api`` is the ctypes module of the peer's own Python package, so that its structures are those of the library
beside it. Where the two engines' APIs part, :class:`Dialect` holds the difference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.edge_harness.adapters.ggml_observed import Log, kv_dtype, types_in_memory

# A cache has a multiple of this many cells for each sequence.
_CELLS = 256


@dataclass(frozen=True)
class Dialect:
    """``clear(api, context)`` empties the KV cache. ``model_options`` and ``context_options`` are the fields
    of the two parameter structures that a worker's option names stand for."""

    clear: Callable[[Any, Any], None]
    model_options: dict[str, str]
    context_options: dict[str, str]
    flash_attention: dict[str, Any]
    tokenizes_with_model: bool
    """``llama_tokenize`` takes the model, not its vocabulary."""
    shows_tensors: bool
    """Its library gives a loaded tensor by name; the other names what it rearranges in its log."""


LLAMA_CPP = Dialect(
    clear=lambda api, context: api.llama_memory_clear(api.llama_get_memory(context), True),
    model_options={"repack": "use_extra_bufts"},
    context_options={"batch_tokens": "n_batch", "ubatch_tokens": "n_ubatch"},
    flash_attention={"auto": -1, "off": 0, "on": 1},
    tokenizes_with_model=False,
    shows_tensors=False,
)
IK_LLAMA_CPP = Dialect(
    clear=lambda api, context: api.llama_kv_cache_clear(context),
    model_options={"repack": "repack_tensors"},
    context_options={"batch_tokens": "n_batch", "ubatch_tokens": "n_ubatch"},
    flash_attention={"off": False, "on": True},
    tokenizes_with_model=True,
    shows_tensors=True,
)
DIALECTS = {"llama.cpp": LLAMA_CPP, "ik_llama.cpp": IK_LLAMA_CPP}


class GgmlEngine:
    """One model and one context of ``batch`` sequences; see ``workload.Engine`` for what the calls mean."""

    def __init__(
        self,
        api: Any,
        dialect: Dialect,
        model: str,
        *,
        context_tokens: int,
        batch: int,
        threads: int,
        options: dict[str, Any],
        log: Log,
        on_load: Callable[[], None] = lambda: None,
    ) -> None:
        self._api, self._dialect, self._batch_size = api, dialect, batch
        # The callback must live as long as the library is used.
        self._log_callback = log.install(api._lib)
        api.llama_backend_init()
        parameters = api.llama_model_default_params()
        _set(parameters, dialect.model_options, options)
        self._model = api.llama_model_load_from_file(model.encode(), parameters)
        if not self._model:
            raise RuntimeError(f"the model was not loaded: {log.last_error or 'the engine gives no reason'}")
        on_load()
        context = api.llama_context_default_params()
        # The library rounds a sequence's share of the cells; up is what leaves room for all its tokens.
        context.n_ctx = -(-context_tokens // _CELLS) * _CELLS * batch
        context.n_seq_max = batch
        context.n_threads = context.n_threads_batch = threads
        _set(context, dialect.context_options, options)
        if "flash_attention" in options:
            _set_flash_attention(context, dialect, options["flash_attention"])
        self._context = api.llama_init_from_model(self._model, context)
        if not self._context:
            raise RuntimeError(f"no context was made: {log.last_error or 'the engine gives no reason'}")
        self._vocabulary = api.llama_model_get_vocab(self._model)
        self.vocabulary_size = int(api.llama_vocab_n_tokens(self._vocabulary))
        self._room = int(context.n_batch)
        self._log = log
        self.kv_dtype = kv_dtype(api._lib, context.type_k, context.type_v)
        self._make_batch()
        self._lengths = [0] * batch

    def _make_batch(self) -> None:
        """One batch for every call; only the arrays' contents change."""
        self._batch = self._api.llama_batch_init(self._room, 0, 1)
        array = np.ctypeslib.as_array
        self._tokens = array(self._batch.token, (self._room,))
        self._positions = array(self._batch.pos, (self._room,))
        self._wanted = array(self._batch.logits, (self._room,))
        array(self._batch.n_seq_id, (self._room,))[:] = 1

    def encode(self, text: str) -> list[int]:
        data = text.encode()
        owner = self._model if self._dialect.tokenizes_with_model else self._vocabulary
        # No tokenizer makes more tokens than bytes.
        room = (ctypes.c_int32 * len(data))()
        count = self._api.llama_tokenize(owner, data, len(data), room, len(data), False, False)
        if count < 0:
            raise RuntimeError(f"llama_tokenize: {count}")
        return list(room[:count])

    def reset(self) -> None:
        self._dialect.clear(self._api, self._context)
        self._lengths = [0] * self._batch_size

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """All prompts as one run of tokens, cut to the engine's batch; the last of each has its logits."""
        entries = [
            (sequence, self._lengths[sequence] + i, token, i == len(ids) - 1)
            for sequence, ids in enumerate(prompts)
            for i, token in enumerate(ids)
        ]
        likeliest: dict[int, int] = {}
        for start in range(0, len(entries), self._room):
            chunk = entries[start : start + self._room]
            self._decode(chunk)
            for index, (sequence, _, _, wanted) in enumerate(chunk):
                if wanted:
                    likeliest[sequence] = int(self._logits(index).argmax())
        self._lengths = [
            length + len(prompts[i]) if i < len(prompts) else length for i, length in enumerate(self._lengths)
        ]
        return [likeliest[sequence] for sequence in range(len(prompts))]

    def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        self.prefill(prompts)

    def step(self, tokens: Sequence[int]) -> list[int]:
        self._decode([(i, self._lengths[i], token, True) for i, token in enumerate(tokens)])
        for i in range(len(tokens)):
            self._lengths[i] += 1
        return [int(self._logits(i).argmax()) for i in range(len(tokens))]

    def layouts(self, names: Iterable[str]) -> dict[str, str]:
        """Tensor to what it was seen to be in memory, of those that the engine tells anything of."""
        if self._dialect.shows_tensors:
            return types_in_memory(self._api._lib, self._model, names)
        return {name: self._log.repacked[name] for name in names if name in self._log.repacked}

    def prompt_logprobs(self, ids: Sequence[int]) -> list[float]:
        self.reset()
        found = []
        for start in range(0, len(ids) - 1, self._room):
            chunk = range(start, min(start + self._room, len(ids) - 1))
            self._decode([(0, i, ids[i], True) for i in chunk])
            found += [log_softmax_at(self._logits(i - start), ids[i + 1]) for i in chunk]
        return found

    def step_logprobs(self, ids: Sequence[int]) -> list[float]:
        self.reset()
        found = []
        for i in range(len(ids) - 1):
            self._decode([(0, i, ids[i], True)])
            found.append(log_softmax_at(self._logits(0), ids[i + 1]))
        return found

    def _decode(self, entries: Sequence[tuple[int, int, int, bool]]) -> None:
        """Entries are (sequence, position, token, whether its logits are wanted)."""
        count = len(entries)
        self._batch.n_tokens = count
        sequences, self._positions[:count], self._tokens[:count], self._wanted[:count] = (
            np.array(column) for column in zip(*entries, strict=True)
        )
        for i, sequence in enumerate(sequences.tolist()):
            self._batch.seq_id[i][0] = sequence
        code = self._api.llama_decode(self._context, self._batch)
        if code:
            raise RuntimeError(f"llama_decode: {code} at {count} tokens")

    def _logits(self, index: int) -> np.ndarray:
        """Of the entry ``index`` of the last call; waits for it. A view that the next call overwrites."""
        pointer = self._api.llama_get_logits_ith(self._context, index)
        if not pointer:
            raise RuntimeError(f"llama_get_logits_ith: no logits of token {index}")
        return np.ctypeslib.as_array(pointer, (self.vocabulary_size,))


def log_softmax_at(logits: np.ndarray, token: int) -> float:
    """Natural log-probability of ``token``, in float64."""
    wide = logits.astype(np.float64)
    top = wide.max()
    return float(wide[token] - top - np.log(np.exp(wide - top).sum()))


def _set(structure: Any, names: dict[str, str], options: dict[str, Any]) -> None:
    for ours, theirs in names.items():
        if ours in options:
            setattr(structure, theirs, options[ours])


def _set_flash_attention(context: Any, dialect: Dialect, value: str) -> None:
    if value not in dialect.flash_attention:
        raise ValueError(f"flash_attention {value}: expected one of {', '.join(dialect.flash_attention)}")
    name = "flash_attn_type" if hasattr(context, "flash_attn_type") else "flash_attn"
    setattr(context, name, dialect.flash_attention[value])
