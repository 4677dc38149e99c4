"""What people look at: tables and figures made from the records of runs."""
