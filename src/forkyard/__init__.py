"""Forkyard: fork a prepared workspace, run agents side by side, judge, rank, merge what you approve."""

__version__ = "0.1.0"
