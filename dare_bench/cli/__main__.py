"""``python -m dare_bench.cli``, for where the script is not on the path."""

from dare_bench.cli import main

main()
