"""OpenCompass as a library: its data-set configs, prompts, postprocessors and evaluators around our engine.

``catalogue`` finds and reads its config files, ``layout`` writes local data where its loaders look, ``refusals`` says
which data sets cannot run here and why, ``configs`` holds five data-set configs that only DARE's fork had.
"""
