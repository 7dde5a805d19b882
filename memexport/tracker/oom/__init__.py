"""When memory runs out: the last events, who held what, and a note on the error."""
