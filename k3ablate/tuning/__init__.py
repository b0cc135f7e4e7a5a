"""Each arm at its own optimum: what a study tries, what its trials tell, and what follows for other sizes."""
