"""Published samplers replayed with their own random numbers and ties, for parity (``rng="reference"``)."""
