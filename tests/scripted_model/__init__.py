"""A scripted stand-in for the providers of models, with a ledger of its own.

It speaks Anthropic Messages, OpenAI Responses and Chat Completions, and Gemini, streaming and
not, over plain HTTP on loopback. What it answers comes from a scenario file; what it bills goes to
its ledger, one JSON line a request. It knows nothing of Forkyard: no check, no code of ours.

In a test, as a child process (its own interpreter, nothing shared)::

    from scripted_model.running import start_model
    with start_model(tmp_path, SCENARIOS) as model:       # SCENARIOS: a dict, as in `scenario.py`
        model.url                                         # base URL of every API, no /v1
        model.billed()                                    # the ledger so far, tuple[Bill, ...]

or inside an event loop::

    from scripted_model.running import serve_model
    async with serve_model(tmp_path, SCENARIOS) as model: ...

or by hand: ``PYTHONPATH=tests python -m scripted_model --scenarios FILE --ledger FILE [--port N]``;
it prints ``{"listening": URL}`` first.

No state: the turn to play is read back from the request's history, so parallel agents and retries
never disturb each other. Only the counters of faults are state. The scenario is chosen, first hit
wins, by the prefix ``/s/NAME/...``, the header ``x-scenario``, a marker ``[[scenario:NAME]]`` in
the body, the key's ending ``-NAME``, else ``default``. A gateway drops headers and prefix, so
behind one use the marker in the prompt, or one model process per scenario.

The ledger bills what a real provider bills: a whole answer whole, and one that was cut (by the
client, or by a fault after its start) its input and the output produced so far; an error status
nothing. A bill is written before the last byte of its answer is sent, and is in the file when the
process is killed. Money is rounded up to whole micro-dollars once per request. No key is kept, only
its fingerprint (`ledger.fingerprint`).
"""
