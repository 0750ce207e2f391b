"""Every test runs on one thread, so that two workers share two cores and float results do not depend on the machine."""

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
    os.environ.setdefault(_name, "false" if _name.startswith("TOKENIZERS") else "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
