"""Symbolic integers.  Read next: ``expr`` (expressions), ``ranges`` and ``simplify`` (what is known), ``env`` (sizes)."""
