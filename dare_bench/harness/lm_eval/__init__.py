"""lm-eval's tasks: found, built, answered through one model class, and scored by lm-eval."""
