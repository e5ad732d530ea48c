"""Model files: GGUF read, safetensors written, and the folder that vLLM loads."""
