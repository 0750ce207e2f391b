"""What work would cost before it is done: a published score by its recipe, a step of a training."""
