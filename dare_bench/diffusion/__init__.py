"""Shared by sampling and training: noise schedules, counter-based random numbers, likelihood estimators, losses."""
