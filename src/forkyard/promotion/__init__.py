"""Putting what a person chose into their own working tree, with a journalled way back."""
