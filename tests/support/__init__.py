"""What tests share: oracles, tiny models, weight surgery."""
