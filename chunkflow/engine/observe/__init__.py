"""What a run shows of itself: progress, profiles, and what it took beside what was predicted."""
