"""Sweeps: one file names models, trainings and evaluations; a graph of train -> eval -> board does them, resumably."""
