"""The command line: parse, one client call, render. It decides nothing."""
