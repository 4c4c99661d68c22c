"""The parties and the loops around them: coordinators, workers, one-shot runs; what people ask and order."""
