"""From a table of records to curves, multipliers and their intervals; reaches no training library."""
