"""HumanEval's infilling as lm-eval tasks that ask for the middle of a text."""
