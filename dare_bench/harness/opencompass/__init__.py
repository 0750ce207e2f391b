"""OpenCompass as a library: its data-set configs, prompts, postprocessors and evaluators around our engine.

``catalog`` finds and reads its config files, ``layout`` writes local data to the paths of its loaders, ``selection``
knows which data sets cannot run here, ``configs`` has five data-set configs that only DARE's fork had.
"""
