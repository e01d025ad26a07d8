from sample_tables import user_tables as user_tables
