"""Dataset kinds: what Lithify can compact. They never import each other."""
