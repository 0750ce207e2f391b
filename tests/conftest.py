"""Every test runs on one thread, so that two workers share two cores and float results do not depend on the machine."""

import os

from hypothesis import HealthCheck, settings

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
    os.environ.setdefault(_name, "false" if _name.startswith("TOKENIZERS") else "1")
# A machine that is busy with other work makes an example slow, and says nothing about the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
