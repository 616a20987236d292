"""The papers that a result is based on, as BibTeX."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from mechheads.results.kinds import kind_of

PAPERS = {
    "elhelo2024maps": """@misc{elhelo2024maps,
  title = {Inferring Functionality of Attention Heads from their Parameters},
  author = {Elhelo, Amit and Geva, Mor},
  year = {2024},
  eprint = {2412.11965},
  archivePrefix = {arXiv}
}""",
    "zhou2025ships": """@inproceedings{zhou2025ships,
  title = {On the Role of Attention Heads in Large Language Model Safety},
  author = {Zhou, Zhenhong and Yu, Haiyang and Zhang, Xinghua and Xu, Rongwu and Huang, Fei and Wang, Kun
            and Liu, Yang and Fang, Junfeng and Li, Yongbin},
  booktitle = {International Conference on Learning Representations},
  year = {2025},
  eprint = {2410.13708},
  archivePrefix = {arXiv}
}""",
    "arditi2024refusal": """@inproceedings{arditi2024refusal,
  title = {Refusal in Language Models Is Mediated by a Single Direction},
  author = {Arditi, Andy and Obeso, Oscar and Syed, Aaquib and Paleka, Daniel and Panickssery, Nina
            and Gurnee, Wes and Nanda, Neel},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2024},
  eprint = {2406.11717},
  archivePrefix = {arXiv}
}""",
    "nam2025chg": """@inproceedings{nam2025chg,
  title = {Causal Head Gating: A Framework for Interpreting Roles of Attention Heads in Transformers},
  author = {Nam, Andrew and Conklin, Henry and Yang, Yukang and Griffiths, Thomas and Cohen, Jonathan
            and Leslie, Sarah-Jane},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2025},
  eprint = {2505.13737},
  archivePrefix = {arXiv}
}""",
    "zhang2024patching": """@inproceedings{zhang2024patching,
  title = {Towards Best Practices of Activation Patching in Language Models: Metrics and Methods},
  author = {Zhang, Fred and Nanda, Neel},
  booktitle = {International Conference on Learning Representations},
  year = {2024},
  eprint = {2309.16042},
  archivePrefix = {arXiv}
}""",
    "wang2023ioi": """@inproceedings{wang2023ioi,
  title = {Interpretability in the Wild: a Circuit for Indirect Object Identification in {GPT-2} small},
  author = {Wang, Kevin and Variengien, Alexandre and Conmy, Arthur and Shlegeris, Buck
            and Steinhardt, Jacob},
  booktitle = {International Conference on Learning Representations},
  year = {2023},
  eprint = {2211.00593},
  archivePrefix = {arXiv}
}""",
    "goldowsky2023paths": """@misc{goldowsky2023paths,
  title = {Localizing Model Behavior with Path Patching},
  author = {Goldowsky-Dill, Nicholas and MacLeod, Chris and Sato, Lucas and Arora, Aryaman},
  year = {2023},
  eprint = {2304.05969},
  archivePrefix = {arXiv}
}""",
    "mcgrath2023hydra": """@misc{mcgrath2023hydra,
  title = {The Hydra Effect: Emergent Self-repair in Language Model Computations},
  author = {McGrath, Thomas and Rahtz, Matthew and Kramar, Janos and Mikulik, Vladimir and Legg, Shane},
  year = {2023},
  eprint = {2307.15771},
  archivePrefix = {arXiv}
}""",
    "rushing2024repair": """@misc{rushing2024repair,
  title = {Explorations of Self-Repair in Language Models},
  author = {Rushing, Cody and Nanda, Neel},
  year = {2024},
  eprint = {2402.15390},
  archivePrefix = {arXiv}
}""",
    "michel2019sixteen": """@inproceedings{michel2019sixteen,
  title = {Are Sixteen Heads Really Better than One?},
  author = {Michel, Paul and Levy, Omer and Neubig, Graham},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2019},
  eprint = {1905.10650},
  archivePrefix = {arXiv}
}""",
    "syed2023attribution": """@misc{syed2023attribution,
  title = {Attribution Patching Outperforms Automated Circuit Discovery},
  author = {Syed, Aaquib and Rager, Can and Conmy, Arthur},
  year = {2023},
  eprint = {2310.10348},
  archivePrefix = {arXiv}
}""",
    "conmy2023acdc": r"""@inproceedings{conmy2023acdc,
  title = {Towards Automated Circuit Discovery for Mechanistic Interpretability},
  author = {Conmy, Arthur and Mavor-Parker, Augustine N. and Lynch, Aengus and Heimersheim, Stefan
            and Garriga-Alonso, Adri{\`a}},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2023},
  eprint = {2304.14997},
  archivePrefix = {arXiv}
}""",
}
"""BibTeX of every paper, by its key."""
_TRANSFORMERLENS = """@misc{nanda2022transformerlens,
  title = {TransformerLens},
  author = {Nanda, Neel and Bloom, Joseph},
  year = {2022},
  howpublished = {\\url{https://github.com/TransformerLensOrg/TransformerLens}}
}"""


def citation(kind: str, versions: Mapping[str, str] | None = None) -> str:
    """BibTeX of the papers that a kind of result is based on, and a line with the library versions.

    Args:
        kind: such as ``"ships"``; several joined by ``+`` for results of arithmetic. A kind without papers gives
            TransformerLens only.
        versions: library names and versions, as recorded with the result; by default, the installed versions.

    >>> "2412.11965" in citation("relations")
    True
    """
    entries = dict.fromkeys(PAPERS[key] for part in kind.split("+") for key in kind_of(part).papers)
    libraries = versions or {name: _installed(name) for name in ("mechheads", "transformer-lens", "torch")}
    used = ", ".join(f"{name} {number}" for name, number in libraries.items())
    return "\n\n".join([*entries, _TRANSFORMERLENS, f"% Computed with {used}."])


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"
