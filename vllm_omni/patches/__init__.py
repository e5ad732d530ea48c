"""One file per patched symbol, each with one ``PATCH``. The order is in ``vllm_omni.patch.patches``."""
