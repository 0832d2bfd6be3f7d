"""Storage and isolation: layers, snapshots, workspaces, templates, and where sandboxes run."""
