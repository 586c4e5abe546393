"""A library that takes the process down when it is imported."""

import os

os._exit(7)
