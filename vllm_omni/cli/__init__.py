"""The ``vllm-omni`` command."""
