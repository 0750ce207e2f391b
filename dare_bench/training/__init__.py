"""Training as the rest of the program sees it: what is asked for, rows to learn from, the driver around a trainer."""
