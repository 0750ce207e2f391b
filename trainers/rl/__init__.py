"""Reinforcement learning of diffusion models: one file for each algorithm, which names its parts. ``rollout.py``
samples, ``estimators.py`` says what is scored, ``surrogate.py`` has the parts of the loss, ``policy_gradient.py`` the
loss."""
