"""Pure functions over batches: no files, no printing."""
