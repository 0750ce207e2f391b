"""Countdown with 3 and with 4 numbers as lm-eval tasks: ``utils`` is what lm-eval calls, ``generate`` makes data."""
