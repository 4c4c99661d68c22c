"""How far a history may be expired: marks, holds, the threshold, and the reasons that block it (pure)."""
