"""Looking at a compilation: ``explain`` (one call, all stages), ``dump`` (stages as numbered files)."""
