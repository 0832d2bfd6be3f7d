"""Delivery of webhooks, with retries."""
