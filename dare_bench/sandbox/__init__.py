"""Running generated code: isolated by bubblewrap, else by namespaces, else not at all.

``run_tests`` runs one solution against its tests; ``Pool`` runs many at once. docs/sandbox.md lists what
is and what is not prevented.
"""

from dare_bench.sandbox.pool import Pool, isolation, run_tests
from dare_bench.sandbox.verdict import InstallHint, Level, Limits, Status, Verdict

__all__ = ["InstallHint", "Level", "Limits", "Pool", "Status", "Verdict", "isolation", "run_tests"]
