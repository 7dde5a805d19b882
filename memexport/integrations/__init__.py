"""Memory telemetry where people already work. Each module needs its own package and imports it at once."""
