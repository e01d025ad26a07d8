"""What a serving engine calls: the lookup of a route and a configuration, and the attention that uses it."""
