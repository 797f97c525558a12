"""Ahead-of-time autograd: a captured graph becomes a functional forward and backward.

Read in this order: ``trace`` (a recording interpreter), ``scatter`` (writes through views), ``joint`` (forward and
backward in one graph), ``aliasing`` (what outputs share with inputs), ``runtime`` (one callable, one node on the tape),
``kept`` (programs found again), ``autograd`` (the door).
"""
