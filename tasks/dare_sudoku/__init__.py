"""4x4 sudoku as an lm-eval task: ``utils`` is what lm-eval calls, ``generate`` makes the data."""
