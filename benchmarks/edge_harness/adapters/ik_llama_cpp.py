"""ik_llama.cpp, from the source distribution of ik-llama-cpp-python: the bar for decode of 4-bit weights.

Options as for llama.cpp, but that ``flash_attention`` is ``on`` or ``off`` and that ``repack`` is on by
default for Q4_0 alone, which gains by it; the IQ types and prefill of Q4_K_M lose.

Version 0.1.5 computes Q4_1 wrongly for 32 tokens and more at once (AVX-512, SmolLM2-135M: log-probability of
the fixed text -5.44 instead of -3.62; token by token it is right, and so are Q4_0 and Q8_0 in every way).
Such a run fails, for its prompt and its steps do not agree: give it a Q4_0 file.
"""

from __future__ import annotations

from benchmarks.edge_harness.adapters.llama_cpp import GgmlAdapter

ADAPTER = GgmlAdapter(
    name="ik_llama.cpp",
    library_variable="IK_LLAMA_CPP_LIB_PATH",
    # Its binding wants the file, llama.cpp's wants the folder.
    library="src/libllama.so",
    batches_with_flash_attention=False,
    repack_types=frozenset({"Q4_0"}),
)
