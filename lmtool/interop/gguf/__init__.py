"""GGUF files, of llama.cpp and its relatives."""
