"""Reinforcement learning of diffusion models: parts that are written once, and one file for each algorithm.

``rollout.py`` samples completions and their rewards; ``estimators.py`` says what is scored of a completion, and how
token losses add up to the log-probability of an *action* (a token, or the sequence). ``surrogate.py`` has advantages,
clipped ratios, KL estimators and aggregation; ``policy_gradient.py`` puts them together. An algorithm names its parts.
"""
