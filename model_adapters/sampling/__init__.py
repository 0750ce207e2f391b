"""One denoising loop and its parts: schedule, choice of tokens, choice of positions, stopping, text."""
