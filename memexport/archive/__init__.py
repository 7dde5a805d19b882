"""The memexport archive: framing and codec.

schemas/memexport/archive/v1/archive.proto is the reference of the format. `framing` knows records but not
what they hold; `columns`, `codec` and `tables` know what they hold but no files.
"""
