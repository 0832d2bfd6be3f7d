"""The journal (the only truth), its projections, and content-addressed blobs."""
