"""Backends, one file each: ``eager`` runs the captured graph, ``aot_eager`` the functional one, ``loops`` kernels."""
