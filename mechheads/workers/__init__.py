"""Workers: replicas of a model in other processes, and what they and their driver send each other."""
