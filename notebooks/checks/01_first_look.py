"""Checks of what the text says about the results, and a wrong answer to each exercise."""

# %%
assert answer == " Paris" and probability > 0.5
assert torch.allclose(pattern.sum(-1), torch.ones(1, 5), atol=1e-5) and on_country > 0.7
assert effect.heads(1) == (mh.HeadId(23, 4),) and effect["L23H4"]["score"] > 0.75
found = confirmed["L23H4"]
assert 0.5 < found["score"] < effect["L23H4"]["score"] - 0.05 and found["ci_low"] > 0.4
assert found["p_value"] == 2 / 2**8 and found["q_value"] < 0.05
assert abs(needed["L23H4"]["score"] - found["score"]) < 0.1
at_country, at_last = where["L23H4"]["score"]
assert abs(at_country) < 0.05 and abs(at_last - found["score"]) < 0.1
largest = phi.select(relation="country_to_capital").heads(3)
assert mh.HeadId(23, 4) in largest and set(largest) <= set(candidates)
assert labels.of("L23H4")[0] == "Knowledge" and len(labels.of("L23H4")) == 2
assert "L23H2" in capitals and abs(effect["L23H2"]["score"]) < 0.1
counts = labels.counts()
assert min(counts["Knowledge"], counts["Linguistic"], counts["Algorithmic"]) > 0 == counts["Translation"]

# %%
looks_elsewhere = "L23H4"

# %%
not_used = "L23H4"


# %%
@dataclass(frozen=True)
class Blindfold:
    site: ClassVar[str] = "pattern"

    def __call__(self, pattern, context):
        new = pattern.clone()
        new[:, :, 0] = 0
        return new
