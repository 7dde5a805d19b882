"""The memexport archive: framing and codec."""
