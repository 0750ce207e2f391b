"""One file a config, in OpenCompass's form."""
