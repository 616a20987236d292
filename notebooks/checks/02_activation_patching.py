"""Checks of what the text says about the results, and a wrong answer to each exercise."""

# %%
assert by_hand.min() > 10
assert abs(ours - by_hand.numpy()).max() < 1e-3
assert abs(effect.values.sel(layer=10, head=6) - patch_by_hand(10, 6).numpy()).max() < 1e-3
assert effect.heads(1, by="absolute") == (mh.HeadId(23, 4),)
assert set(some.heads(5, by="absolute")) == set(stars)
ways = both_ways[["denoising", "noising"]]
assert (ways.sum(axis=1).abs() < 0.25 * ways.abs().max(axis=1) + 0.3).all()
assert by_site.loc["L23H4", "v"] > 10 > 1 > by_site.loc["L23H4", ["q", "k", "pattern"]].abs().max()
assert by_token.loc[" (country)", "v"] > 10 and by_token.loc[" is", "z"] > 10
assert by_token.drop(" (country)")["v"].abs().max() < 1 and by_token.drop(" is")["z"].abs().max() < 1
assert "pair 1" in not_aligned
assert 0.3 < misaligned["L23H4"]["score"] / by_site.loc["L23H4", "v"] < 0.7
assert "country" in not_the_same
assert (per_pair.loc["L23H4"] > 10).all()
assert per_pair.loc["L23H1", "Hungary"] > 2 and abs(per_pair.loc["L23H1", "England"]) < 1
assert one.dataset["ci_low"].isnull().all() and (one.top(5)["p_value"] == 1).all()
assert effect.dataset["q_value"].min() > 0.05 and confirmed > len(proposed) / 2
assert decided["L28H5"]["ci_low"] < 0.02 and effect["L28H5"]["ci_low"] > -0.02
assert abs(decided["L23H3"]["score"]) < 0.85 * abs(effect["L23H3"]["score"])
assert by_metric.loc["L29H1", "logit_diff"] > 2 and by_metric.loc["L29H0", "logit_diff"] < -2
assert by_metric["probability"].drop("L23H4").abs().max() < 0.02 < 0.1 < by_metric.loc["L23H4", "probability"]
assert (by_metric["accuracy"].drop("L23H4").abs() < 0.2).all() and (by_metric["kl_divergence"] > 0).all()
assert abs(asked["L23H4"]["score"]) < abs(asked[knows_the_question]["score"]) / 4
assert set(asked.heads(2, by="absolute")) == {mh.HeadId(22, 3), mh.HeadId(21, 7)}
assert max(abs(effect[head]["score"]) for head in ("L22H3", "L21H7")) < 0.5

# %%
knows_the_question = "L23H4"

# %%
right_logit = mh.log_prob

# %%
enough_pairs = 7
