"""How far a history may be cut off: marks, holds, the threshold, and why it is not raised (pure)."""
