"""Readers of the reports that test runners write; every report is hostile input."""
