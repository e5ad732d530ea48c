"""What the memory probe asks of a vLLM worker in a process of its own."""

from __future__ import annotations


class WorkerTrim:
    """vLLM mixes the class into its worker (``worker_extension_cls``)."""

    def edge_harness_trim(self) -> tuple[int, int]:
        """Give the worker's free heap pages back; its RssAnon before and after, in bytes."""
        from vllm_omni import monitor

        done = monitor.trim()
        return done.rss_anon_before_bytes, done.rss_anon_after_bytes
