"""Version 1 of the archive's schema, generated from schemas/."""
