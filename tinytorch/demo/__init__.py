"""``python -m tinytorch.demo``: one real program through every stage, with each stage shown.

An application on top of both ``tinytorch`` and ``compiler``.  Read next: ``model``, ``training``, ``__main__``.
"""
