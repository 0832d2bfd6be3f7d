"""The HTTP API of one installation: reads requests, asks the services, tells the journal's truth.

It decides nothing about runs or workspaces by itself and holds no state that a kill -9 could lose.
"""
