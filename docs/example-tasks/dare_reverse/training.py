"""Training rows and reward of ``reverse``. Digits of the test set are never among the rows."""

import json
import random
from pathlib import Path

from dare_bench.tasks.rewards import TaskReward
from dare_bench.tasks.training import TrainingData
from dare_reverse.tasks import reverse

LENGTH = 6


def documents(seed):
    """An infinite stream of documents; the same seed gives the same ones."""
    lines = (Path(reverse.__file__).parent / "test.jsonl").read_text().splitlines()
    tested = {json.loads(line)["digits"] for line in lines}
    rng = random.Random(seed)
    while True:
        digits = "".join(rng.choices("0123456789", k=LENGTH))
        if digits not in tested:
            yield {"digits": digits}


def wrong(doc, rng):
    """For preferences: the answer with one digit changed."""
    digits = list(reverse.answer(doc))
    place = rng.randrange(LENGTH)
    digits[place] = rng.choice([digit for digit in "0123456789" if digit != digits[place]])
    return "".join(digits)


DATA = TrainingData(8, 20_000, documents, reverse.prompt, reverse.answer, wrong)
REWARD = TaskReward(reverse.score, partial="format", stop="\n")
