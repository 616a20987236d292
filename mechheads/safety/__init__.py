"""Which heads a model's safety hangs on: requests, Ships and Generalized Ships."""

from mechheads.safety.requests import TEMPLATES, Request, load_requests, request_prompts
from mechheads.safety.ships import SafetyHeads, generalized_ships, safety_heads, ships

__all__ = [
    "TEMPLATES",
    "Request",
    "SafetyHeads",
    "generalized_ships",
    "load_requests",
    "request_prompts",
    "safety_heads",
    "ships",
]
