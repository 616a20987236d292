"""What a model's answer consists of: the part of each head, MLP and token in a logit."""

from mechheads.behaviour.logit_attribution import logit_attribution

__all__ = ["logit_attribution"]
