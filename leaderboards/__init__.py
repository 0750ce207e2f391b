"""Static boards built from run directories. Reads result files only; imports no torch."""

if __name__ != "dare_bench.leaderboards":
    raise ImportError(f"import dare_bench.leaderboards, not {__name__}")
