"""The scenario that every agent can play: a bug in calc.py is found, mended, tested, committed."""

from __future__ import annotations

from scripted_model.shapes import Object

FIX_BUG: Object = {
    "turns": [
        {
            "thinking": "Look first.",
            "text": "I will look at the file.",
            "actions": [{"read": "calc.py"}],
            "usage": {
                "input": 12,
                "cache_read": 0,
                "cache_write": 9000,
                "output": 60,
                "reasoning": 10,
            },
        },
        {
            "text": "The operator is wrong.",
            "actions": [
                {
                    "edit": {
                        "path": "calc.py",
                        "old": "    return a - b",
                        "new": "    return a + b",
                    }
                }
            ],
            "usage": {"input": 15, "cache_read": 9000, "cache_write": 300, "output": 90},
        },
        {
            "actions": [{"write": {"path": "NOTES.md", "content": "fixed add\n"}}],
            "usage": {"input": 9, "cache_read": 9300, "cache_write": 120, "output": 40},
        },
        {
            "actions": [
                {
                    "run": "python3 test_calc.py && git add -A && "
                    "git commit -qm 'Fix add' && git log --oneline"
                }
            ],
            "usage": {"input": 9, "cache_read": 9420, "cache_write": 150, "output": 70},
        },
        {
            "text": "Fixed: add() now adds, and the test passes.",
            "usage": {"input": 9, "cache_read": 9570, "cache_write": 100, "output": 30},
        },
    ]
}

BASIC: Object = {
    "scenarios": {
        "default": {"toolless": True, "turns": [{"text": "Hello from the scripted model."}]},
        "fixbug": FIX_BUG,
    }
}
