"""Judging a candidate where no agent can reach: checks, baseline, verdict, ranking."""
