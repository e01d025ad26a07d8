"""Search: which configurations to try, in which order, and the table that their trials make."""
