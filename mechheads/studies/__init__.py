"""Several analyses of one model in one table and one page."""

from mechheads.studies.atlas import Atlas, build_atlas
from mechheads.studies.report import write_page
from mechheads.studies.safety import SafetyStudy, safety_study

__all__ = [
    "Atlas",
    "SafetyStudy",
    "build_atlas",
    "safety_study",
    "write_page",
]
