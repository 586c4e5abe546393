"""Cases of other people's implementations run in a worker process, which may die.

What crosses the border is a whole case, not a call. An allocator behind a pipe could not be caught overwriting the
tensors of a step in flight, nor a kernel whose plan keeps no addresses, and a graph can't be captured across processes:
the laws look at memory, so they run where that memory is. The judge in front collects the same tests, hands out one
node id after the other, and gets pytest's own reports back, as JSON. What a worker does to itself, its judge survives.
"""
