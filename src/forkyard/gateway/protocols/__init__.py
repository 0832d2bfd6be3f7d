"""The providers' APIs, pure: which requests pass, how they are built anew, what answers cost."""
