"""What ``make gpu`` does on a CUDA device: laws, sanitizer, sweep, and a folder of results to commit."""
