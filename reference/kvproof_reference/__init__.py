"""The oracle: block allocator, dense attention, error budget and sizing, with the standard library alone."""
