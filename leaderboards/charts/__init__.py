"""Charts as SVG text, written at build time: no script, no font and no library is needed to read them."""

from dare_bench.leaderboards.charts.lines import Base, CurvePoint, Series, lines
from dare_bench.leaderboards.charts.pareto import FrontRow, front, front_table
from dare_bench.leaderboards.charts.scatter import Point, scatter

__all__ = ["Base", "CurvePoint", "FrontRow", "Point", "Series", "front", "front_table", "lines", "scatter"]
