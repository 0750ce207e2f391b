"""Comparisons and exports of run directories. Reads result files only; imports no torch."""

if __name__ != "dare_bench.reports":
    raise ImportError(f"import dare_bench.reports, not {__name__}")
