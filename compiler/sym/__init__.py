"""Symbolic integers.

Read next: ``expr`` (expressions; ``base``, ``nodes`` and ``arithmetic`` make it up), ``ranges`` and ``simplify`` (what is
known), ``env`` (sizes; ``relation`` and ``symint`` are its parts).
"""
