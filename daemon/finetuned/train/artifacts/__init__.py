"""From trained weights to artifacts/: saved, merged, proven by a fresh process, published; GGUF last."""
