"""The logger of dare-bench, to which its messages go."""

from __future__ import annotations

import logging

log = logging.getLogger("dare_bench")
