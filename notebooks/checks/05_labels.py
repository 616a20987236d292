"""Checks of what the text says about the results, and a wrong answer to each exercise."""

# %%
assert top_tokens(rows_of_M(["Spain"], 23, 4)[0])[0] == " Madrid"
france = rows_of_M(["France"], 23, 4)[0]
assert 5 < int((france > france[model.tokenizer(" Paris").input_ids[0]]).sum()) < 40
assert abs(of_capitals["L23H4"]["score"] - by_hand) < 1e-6 and by_hand > 0.5
assert {str(head) for head in of_capitals.heads(4)} == {"L23H4", "L23H5", "L23H1", "L23H2"}
assert of_capitals.top(5)["score"].iloc[4] < 0.1
assert maps.of("L27H5") == ("Linguistic",) and labels.of("L27H5") == ()
assert p_by_hand > 0.1 and abs(p_by_hand - of_pronouns["L27H5"]["p_value"]) < 0.03
assert abs(of_pronouns.dataset["null_phi"].sel(layer=27, head=5).item() - hits.mean()) < 1e-6
assert abs(q_by_hand - q_of_package).max() < 1e-9
assert evidence["is_evidence"].tolist() == [True, True, True, False]
assert 0.15 < evidence["null_phi"]["L26H2"] < 0.35 < evidence["phi"]["L26H2"]
assert labels.counts()["Linguistic"] > maps.counts()["Linguistic"]
assert all(len(labels.of(head)) > 1 for head in ("L23H1", "L23H2", "L23H4", "L23H5"))
small = labels.table().query("head == 'L23H2' and relation == 'adjective_to_comparative'").iloc[0]
assert 72 * small["phi"] > 3 and 72 * small["null_phi"] < 0.5
assert in_text.loc["L23H4"].min() > 0.4
assert in_text.loc["L23H5", "story, without"] > 0.3 and in_text.loc["L23H5", "story, with"] < 0.1
assert 0.1 < in_text.loc["L23H5", "capital, with"] < 0.5
assert in_text.loc["L23H2", ["story, with", "capital, with"]].max() < 0.1
assert max(in_text.loc["L29H1", ["static", "capital, without"]]) < 0.15 < 0.6 < in_text.loc["L29H1", "capital, with"]
assert of_heads.loc["L29H1", "first_mlp"] < 0.1 < 0.6 < of_heads.loc["L29H1", "embedding"]
assert of_heads.loc["L29H1", "carried"] < 0.4
assert usual.pvalue < 1e-30 and abs(but_one.statistic) < 0.1
assert ((x < 0.05) & (y < 0.05)).sum() > 450
others_out = [r for layer, r in without.items() if layer != 23]
assert min(without, key=without.get) == 23 and min(others_out) > without[23] + 0.2
assert causal.total.heads(1) == (mh.HeadId(23, 4),) and causal.total["L29H0"]["score"].item() < 0
verdicts = {"L23H2": "weights only", "L23H4": "confirmed", "L23H5": "confirmed", "L29H1": "in context only"}
assert beside["verdict"][list(verdicts)].to_dict() == verdicts
assert beside["total"]["L23H4"] > 2 * beside["total"]["L23H5"]
assert abs(beside["phi"]["L23H4"] - beside["phi"]["L23H5"]) < 0.2
right = accuracy["relation"]
assert right[1] > 0.45 and right[3] < 0.35 and abs(right[4] - right[3]) < 0.15
assert accuracy.drop(columns="relation").min().min() > right[3] + 0.2
assert {"' pasta'", "' Pyth'"} <= set(maps_to.index)
assert "' Italians'" in maps_to["' pasta'"] and "' Python'" in maps_to["' Pyth'"]
assert (scores["noun_to_itself"] > scores["noun_to_plural"]).sum() >= 3
assert rivals.select(relation="noun_to_plural")["L23H5"]["q_value"] < 0.01
assert {" river", " rivers", " water"} <= set(top_tokens(rows_of_M(["river"], 23, 5)[0]))

# %%
small_but_sure = "L27H5"

# %%
p_of_L26H2 = 0.2

# %%
raised_more = "plural"
