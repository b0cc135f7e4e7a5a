"""From fits to tables and figures; reaches no training library."""
