"""The laws of a block allocator, judged through a shadow pool and a model of what each sequence holds."""
