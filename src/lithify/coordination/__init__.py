"""What keeps several processes on one dataset apart, for all kinds."""
