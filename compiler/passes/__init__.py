"""Passes: graph to graph, one rule a file.  ``tidy`` lists those that every graph gets."""
