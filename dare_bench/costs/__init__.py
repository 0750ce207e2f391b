"""What work would cost before it is done: a published score from its facts, a training step, a whole sweep."""
