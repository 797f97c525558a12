"""Forward, backward, and what is saved between them.  Read next: ``mincut``, ``cost``, ``budget``, ``report``, ``flow``."""

from __future__ import annotations

from compiler.partition.budget import Point, min_cut, pareto, plot_pareto
from compiler.partition.report import Report

__all__ = ["Point", "Report", "min_cut", "pareto", "plot_pareto"]
