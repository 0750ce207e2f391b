"""Data-set configs that DARE's fork of OpenCompass has and OpenCompass lacks. They load under OpenCompass's own command
line too: ``opencompass --config-dir <this folder> --datasets gsm8k_gen_base``."""
