"""Checks of what the text says about the results, and a wrong answer to each exercise."""

# %%
assert total.heads(1, by="absolute") == (mh.HeadId(23, 4),) and total["L23H4"]["score"] < -10
assert abs(ours - direct_by_hand.numpy()).max() < 1e-3
assert abs(to_v.values.sel(layer=23, head=4) - to_v_by_hand.numpy()).max() < 1e-3
of_others = effects["total"] - effects["direct"]
assert of_others[["L29H1", "L29H0"]].abs().max() < 1e-3
assert effects["direct"][["L10H6", "L10H8"]].abs().max() < 0.1 < 0.4 < effects["total"].abs().min()
assert effects.loc["L23H4", "direct"] < 0.6 * effects.loc["L23H4", "total"]
assert {str(head) for head in through_heads.heads(3, by="absolute")} == {"L23H4", "L10H6", "L10H8"}
assert with_mlps.loc["L23H4", "frozen"] / with_mlps.loc["L23H4", "recomputed"] < 0.5
path = {sender: matrix[sender].set_index("receiver")["score"] for sender in ("L23H4", "L10H6", "L10H8")}
assert path["L23H4"]["L29H0.v"] > 1 and path["L23H4"]["L29H1.v"] < -1
assert path["L10H6"]["L23H4.v"] < -0.3 < 0.2 < path["L10H8"]["L23H4.v"]
assert max(abs(path["L23H4"][f"L29H{head}.{site}"]) for head in (0, 1) for site in "qk") < 0.5
assert sums["summed"].iloc[1] < sums["replaced together"].iloc[1] - 1
assert abs(to_value.scores.sum()) < 1 < abs(total["L23H4"]["score"]) and to_value["L10H8"]["score"] > 0.2
assert denoised < -1

# %%
largest_sender = "L12H0"

# %%
share = 1.5

# %%
denoised = 3.0
