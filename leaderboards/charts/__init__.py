"""Charts as SVG text, written at build time: no script, no font and no library is needed to read them."""

from dare_bench.leaderboards.charts.curves import Base, CurvePoint, Series, training_curves
from dare_bench.leaderboards.charts.scatter import Point, frontier, frontier_table, scatter

__all__ = ["Base", "CurvePoint", "Point", "Series", "frontier", "frontier_table", "scatter", "training_curves"]
