"""Workers: replicas of a model in actors of Ray, and what they and their driver send each other."""
