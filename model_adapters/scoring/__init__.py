"""Log-likelihoods: an estimator draws masks and weights, the network computes losses of masked canvases, and their sum
is the value."""
