"""Scripts that repeat a failure with nothing but torch and the implementation."""
