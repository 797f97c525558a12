"""The public functions, by theme; ``tinytorch.<name>`` is one of these.

Stage: eager.  Read next: ``args``, ``pointwise``, ``reduction``, ``shape``, ``linalg``, ``indexing``, ``creation``.
"""
