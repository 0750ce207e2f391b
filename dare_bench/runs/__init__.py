"""Run directories: the schema of what is written, the atomic writer, the reader. No torch, no harness."""
