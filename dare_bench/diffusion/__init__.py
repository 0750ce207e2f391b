"""What sampling and training share: noise, counter-based random numbers, likelihood estimators, losses."""
