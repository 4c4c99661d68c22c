"""What is wrong with a database, a table or a set-up, and what to do about it."""
