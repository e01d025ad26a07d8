"""The shipped tables: one YAML file per architecture."""
