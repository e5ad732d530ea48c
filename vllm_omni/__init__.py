"""4-bit weights at the speed of the memory bus for stock vLLM on x86 CPUs.

Importing this package does nothing but check the host: no torch, no vLLM, no native library. The parts:

- ``vllm_omni.int4``: pack, read and multiply 4- and 8-bit weights (needs torch alone).
- ``vllm_omni.monitor``: memory of a process tree, and ``malloc_trim``.
- ``vllm_omni.plugin``: what vLLM loads through its entry points.
- ``vllm_omni.cli``: the ``vllm-omni`` command.
"""

from vllm_omni import requirements as _requirements

__version__ = "0.1.0"

_requirements.enforce()
