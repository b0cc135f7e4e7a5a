"""Where runs are carried out: run folders and their states, worker processes on this machine."""
