"""llama.cpp's engine on a library of the test's own: what it is asked to compute, and when."""

from __future__ import annotations

import ctypes
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.edge_harness.adapters import ggml_engine, ggml_observed, llama_cpp_worker, worker
from benchmarks.edge_harness.adapters.ggml_engine import DIALECTS, GgmlEngine, Log, log_softmax_at
from benchmarks.edge_harness.adapters.workload import Phases

VOCABULARY = 40
PREFILL_S_PER_TOKEN, STEP_S = 0.001, 0.01
ERROR, WARNING, INFO = 4, 3, 2
THE_MODEL, THE_VOCABULARY = 1, 2


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class Function:
    """As ctypes has one: it takes declarations."""

    def __init__(self, does: Any) -> None:
        self.does = does

    def __call__(self, *given: Any) -> Any:
        return self.does(*given)


class Library:
    """Says of every token that the next one follows it by one; keeps the time itself."""

    def __init__(self, *, loads: bool = True, decode_code: int = 0) -> None:
        self._loads, self._code = loads, decode_code
        self._lib = SimpleNamespace(
            llama_log_set=self._log_set,
            ggml_type_name=Function({1: b"f16", 202: b"q4_0_r8", 2: b"q4_0"}.__getitem__),
            llama_print_system_info=Function(lambda: b"AVX512 = 1 | "),
            llama_get_model_tensor=Function(self._tensor),
        )
        self._kept: list[Any] = []
        self._rows: dict[int, Any] = {}
        self.now = 0.0
        self.calls: list[list[tuple[int, int, int, int]]] = []
        """Of each decode: (token, position, sequence, whether logits are wanted)."""
        self.cleared = 0
        self.model_parameters: Any = None
        self.context_parameters: Any = None

    def clock(self) -> float:
        return self.now

    def _log_set(self, callback: Any, _: Any) -> None:
        self._log = callback

    def _tensor(self, model: int, name: bytes) -> list[int] | None:
        return {b"blk.0.attn_q.weight": [202], b"token_embd.weight": [2]}.get(name)

    def llama_backend_init(self) -> None:
        self._log(WARNING, b"be careful\n", None)

    def llama_model_default_params(self) -> Any:
        return SimpleNamespace(use_extra_bufts=True)

    def llama_model_load_from_file(self, path: bytes, parameters: Any) -> int:
        self.model_parameters = parameters
        self._log(INFO, b"load_tensors: CPU_Mapped model buffer size =    92.10 MiB\n", None)
        self._log(1, b"repack: repack tensor blk.0.attn_q.weight with q4_0_8x8\n", None)
        if not self._loads:
            self._log(ERROR, b"tensor blk.7.attn_q.weight is not within the file\n", None)
        return THE_MODEL * self._loads

    def llama_context_default_params(self) -> Any:
        return SimpleNamespace(n_batch=16, n_ubatch=8, flash_attn_type=-1, type_k=1, type_v=1)

    def llama_init_from_model(self, model: int, parameters: Any) -> int:
        self.context_parameters = parameters
        return 1

    def llama_model_get_vocab(self, model: int) -> int:
        return THE_VOCABULARY

    def llama_vocab_n_tokens(self, vocabulary: int) -> int:
        return VOCABULARY

    def llama_batch_init(self, tokens: int, embedding: int, sequences: int) -> Batch:
        rows = [(ctypes.c_int32 * sequences)() for _ in range(tokens)]
        pointers = (ctypes.POINTER(ctypes.c_int32) * tokens)(
            *(ctypes.cast(row, ctypes.POINTER(ctypes.c_int32)) for row in rows)
        )
        arrays = [(ctypes.c_int32 * tokens)() for _ in range(3)]
        wanted = (ctypes.c_int8 * tokens)()
        self._kept += [rows, pointers, arrays, wanted]
        number = ctypes.POINTER(ctypes.c_int32)
        token, position, count = (ctypes.cast(array, number) for array in arrays)
        return Batch(
            *(0, token, position, count, ctypes.cast(pointers, ctypes.POINTER(number))),
            ctypes.cast(wanted, ctypes.POINTER(ctypes.c_int8)),
        )

    def llama_tokenize(self, vocabulary: int, text: bytes, length: int, room: Any, *rest: Any) -> int:
        self.tokenized_with = vocabulary
        for i, letter in enumerate(text[:length]):
            room[i] = letter % VOCABULARY
        return length

    def llama_get_memory(self, context: int) -> int:
        return 1

    def llama_memory_clear(self, memory: int, data: bool) -> None:
        self.cleared += 1

    def llama_decode(self, context: int, batch: Batch) -> int:
        entries = [
            (batch.token[i], batch.pos[i], batch.seq_id[i][0], batch.logits[i]) for i in range(batch.n_tokens)
        ]
        assert all(batch.n_seq_id[i] == 1 for i in range(batch.n_tokens))
        self.calls.append(entries)
        decodes = all(wanted for *_, wanted in entries)
        self.now += STEP_S if decodes else PREFILL_S_PER_TOKEN * len(entries)
        self._rows = {}
        for i, (token, _, _, wanted) in enumerate(entries):
            if wanted:
                row = (ctypes.c_float * VOCABULARY)()
                row[(token + 1) % VOCABULARY] = math.log(3.0)
                self._rows[i] = row
        return self._code

    def llama_get_logits_ith(self, context: int, index: int) -> Any:
        row = self._rows.get(index)
        return None if row is None else ctypes.cast(row, ctypes.POINTER(ctypes.c_float))


def engine(library: Library, *, batch: int = 1, name: str = "llama.cpp", **options: Any) -> GgmlEngine:
    return GgmlEngine(
        *(library, DIALECTS[name], "model.gguf"),
        context_tokens=100,
        batch=batch,
        threads=2,
        options=options,
        log=Log(),
    )


def test_a_prompt_is_cut_to_the_batch_and_only_its_end_has_logits():
    library = Library()
    one = engine(library)
    assert one.prefill([list(range(20))]) == [20]
    assert [len(call) for call in library.calls] == [16, 4]
    flat = [entry for call in library.calls for entry in call]
    assert [position for _, position, _, _ in flat] == list(range(20))
    assert [wanted for *_, wanted in flat] == [0] * 19 + [1]


def test_steps_follow_the_prompt_and_feed_back_the_likeliest():
    library = Library()
    one = engine(library)
    token = one.prefill([[5, 6]])
    for _ in range(3):
        token = one.step(token)
    assert token == [10]
    assert [call[0][:2] for call in library.calls[1:]] == [(7, 2), (8, 3), (9, 4)]
    one.reset()
    one.prefill([[1]])
    assert library.calls[-1][0][1] == 0
    assert library.cleared == 1


def test_sequences_of_a_batch_keep_apart():
    library = Library()
    many = engine(library, batch=3)
    assert library.context_parameters.n_ctx == 3 * 256
    assert library.context_parameters.n_seq_max == 3
    many.fill([[0, 0]] * 3)
    tokens = many.prefill([[1, 2], [3, 4], [5, 6]])
    assert tokens == [3, 5, 7]
    assert [entry[1:3] for entry in library.calls[-1]] == [(p, s) for s in range(3) for p in (2, 3)]
    assert many.step(tokens) == [4, 6, 8]
    assert library.calls[-1] == [(3, 4, 0, 1), (5, 4, 1, 1), (7, 4, 2, 1)]


def test_log_probabilities_are_of_the_following_tokens():
    one = engine(Library())
    expected = [math.log(3 / (3 + VOCABULARY - 1)), math.log(1 / (3 + VOCABULARY - 1))]
    assert one.prompt_logprobs([5, 6, 9]) == pytest.approx(expected)
    assert len(one.prompt_logprobs(list(range(40)))) == 39, "longer than the batch of 16"
    library = Library()
    assert engine(library).step_logprobs([5, 6, 9]) == pytest.approx(expected)
    assert [call[0][:2] for call in library.calls] == [(5, 0), (6, 1)]
    assert all(len(call) == 1 for call in library.calls)
    # Large logits must not overflow.
    assert log_softmax_at(np.array([1000.0, 1000.0], dtype=np.float32), 0) == pytest.approx(math.log(0.5))


@pytest.mark.parametrize(("name", "owner"), [("llama.cpp", THE_VOCABULARY), ("ik_llama.cpp", THE_MODEL)])
def test_each_engine_tokenizes_with_what_its_library_takes(name: str, owner: int):
    library = Library()
    assert engine(library, name=name).encode("ab") == [97 % VOCABULARY, 98 % VOCABULARY]
    assert library.tokenized_with == owner


def test_options_reach_the_parameters():
    library = Library()
    engine(library, ubatch_tokens=4, repack=False, flash_attention="off")
    assert library.context_parameters.n_ubatch == 4
    assert library.context_parameters.n_threads == library.context_parameters.n_threads_batch == 2
    assert library.context_parameters.flash_attn_type == 0
    assert library.model_parameters.use_extra_bufts is False
    with pytest.raises(ValueError, match="flash_attention maybe: expected one of auto, off, on"):
        engine(Library(), flash_attention="maybe")


def test_a_model_that_is_not_loaded_says_what_the_engine_said(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(RuntimeError, match=r"not loaded: tensor blk\.7\.attn_q\.weight is not within"):
        engine(Library(loads=False))
    assert "be careful" in capsys.readouterr().err


def test_a_failed_decode_ends_the_run():
    with pytest.raises(RuntimeError, match="llama_decode: 1 at 2 tokens"):
        engine(Library(decode_code=1)).prefill([[1, 2]])


def test_logits_that_were_not_asked_for_are_an_error():
    one = engine(Library())
    one.prefill([[1, 2]])
    with pytest.raises(RuntimeError, match="no logits of token 0"):
        one._logits(0)


def test_the_worker_times_the_library_and_prints_what_it_was_told(monkeypatch: pytest.MonkeyPatch):
    library = Library()
    monkeypatch.setattr(llama_cpp_worker, "import_binding", lambda source, name: library)
    parser = worker.parser(None)
    parser.add_argument("--engine")
    parser.add_argument("--source")
    parser.add_argument("--matrices")
    parser.add_argument("--file-types")
    given = parser.parse_args(
        [
            *("--engine", "llama.cpp", "--source", "tree", "--model", "m.gguf", "--threads", "2"),
            *("--workload", '{"prompt_tokens": 32, "decode_tokens": 6, "repeats": 2}'),
            *("--facts", '{"ran": {"head_bits": 8, "source": "file"}}'),
            *("--matrices", '{"patterns": ["blk.#.attn_q.weight", "token_embd.weight"], "blocks": 1}'),
            *("--file-types", '{"Q4_0": 1, "Q8_0": 1}'),
        ]
    )
    texts = {"status": "RssAnon: 1 kB\n", "smaps_rollup": "Pss_Anon: 1 kB\n"}
    phases = Phases([], read=lambda name: texts.get(name, ""))
    record = worker.record(llama_cpp_worker.load, given, clock=library.clock, phases=phases)
    # 32 tokens in two calls, the second of which holds the token whose logits are wanted.
    assert record["ttft_ms"] == pytest.approx(32.0)
    assert record["pp_tps"] == pytest.approx(1000.0)
    assert record["tg_tps"] == pytest.approx(1 / STEP_S)
    assert record["ran"] == {"head_bits": 8, "source": "file", "kv_dtype": "float16"}
    assert record["kernels"] == {"mul_mat q4_0_8x8": 1}
    assert record["notes"][0].startswith("kernels: not observed of 1 of 2 matrices; tensor types of the file")
    assert record["threads"] == 2
    assert record["observed"] == {
        "buffers": ["CPU_Mapped model buffer size = 92.10 MiB"],
        "repacked_tensors": 1,
        "system_info": "AVX512 = 1",
    }
    assert record["interpreter_s"] > 0
    # The library's own clock stands still while it is imported.
    assert record["import_s"] == 0
    assert record["load_s"] <= record["init_s"]


def test_the_fork_shows_its_tensors_and_the_other_its_log():
    names = ["blk.0.attn_q.weight", "blk.1.attn_q.weight", "token_embd.weight"]
    fork = engine(Library(), name="ik_llama.cpp").layouts(names)
    assert fork == {"blk.0.attn_q.weight": "q4_0_r8", "token_embd.weight": "q4_0"}
    assert engine(Library()).layouts(names) == {"blk.0.attn_q.weight": "q4_0_8x8"}
    seen = ggml_observed.weights_seen(fork, {"Q4_0": 2})
    assert seen["kernels"] == {"mul_mat q4_0_r8": 1, "mul_mat q4_0": 1}
    assert seen["ran"] == {"head_kernel": "mul_mat q4_0"}
    assert seen["notes"] == []
    unseen = ggml_observed.weights_seen({}, {"Q4_1": 2})
    assert "kernels" not in unseen
    assert unseen["notes"] == ["kernels: not observed; tensor types of the file: Q4_1 2"]


def test_only_whole_words_of_the_log_are_kept():
    log = Log()
    log.line(INFO, "x: CPU buffer size =   1 MiB\n")
    log.line(INFO, "x: something else\n")
    log.line(INFO, "x: the buffer size:\n")
    log.line(INFO, "============ Repacked 210 tensors\n")
    assert log.buffers == ["CPU buffer size = 1 MiB"]
    assert log.repacked_count == 210
    assert ggml_engine.Log().last_error == ""
