"""Coordinators and pools of workers, round by round."""
