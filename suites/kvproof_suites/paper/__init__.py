"""Figures that papers published about paged KV caches, computed anew and judged by stated tolerances."""
