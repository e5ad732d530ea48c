"""Measurements of what ``vllm_omni`` claims. Nothing in ``vllm_omni`` imports this package."""
