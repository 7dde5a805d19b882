"""`python -m memexport` is `memexport`."""

from memexport.cli import main

main(prog_name="memexport")
