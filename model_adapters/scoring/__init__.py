"""Log-likelihoods: a law chooses masks and weights, canvases go through the network, losses become values."""
