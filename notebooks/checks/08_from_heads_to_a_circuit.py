"""Checks of what the text says about the results, and a wrong answer to each exercise."""

# %%
assert first_choice[:, : length - 1].float().mean() < 0.05 < 0.3 < first_choice[:, length:].float().mean()
assert {"L18H6", "L17H4"} <= {str(head) for head in induction.heads(5)}
assert measured.heads(1, by="absolute") == (mh.HeadId(16, 0),)
assert abs(estimated["L16H0"]["score"]) < measured["L16H0"]["score"] / 4
assert abs(estimated["L18H6"]["score"] / measured["L18H6"]["score"] - 1) < 0.5
assert previous > 0.6 and on_b > 0.4 and induction["L16H0"]["score"] < 0.1
from_L16H0 = paths["L16H0"].set_index("receiver")["score"]
assert -from_L16H0["L18H6.k"] > 10 * abs(from_L16H0["L18H6.v"])
right = does_it.groupby("sentence")["share right"].min()
assert right.drop("park").min() > 0.75 > right["park"]
assert {str(head) for head in effect.heads(2)} == {"L20H0", "L23H3"}
assert set(by_place.index[by_place["subject"].abs() > 1]) == {"L17H4"}
assert effect["L24H4"]["score"] < -1 and effect["L23H0"]["score"] > 0.5
assert looks_at["the other name"][["L23H0", "L24H4"]].min() > 0.5
assert looks_at["subject, second mention"][["L20H0", "L23H3"]].min() > 0.5
path = {head: matrix[head].set_index("receiver")["score"] for head in chain}
assert path["L17H4"]["L20H0.v"] < -0.5 and path["L20H0"]["L23H0.q"] < -0.3
assert path["L23H3"]["final"] < path["L23H0"]["final"] < -0.5 and abs(path["L20H0"]["final"]) < 0.5
assert path["L23H3"]["L24H4.q"] > 0.3 and path["L23H0"]["L24H4.q"] > 0.3
assert max(abs(path[head][name]) for head in chain for name in ("L23H3.q", "L23H3.v")) < 0.5
assert curve[1].score < 0.2 and curve[10].score < curve[5].score
assert [found.heads(1, by="absolute")[0] for found in roles.values()][1:] == [mh.HeadId(20, 0), mh.HeadId(17, 4)]
writes = {head: roles["to the logits"][head]["score"] for head in ("L23H3", "L23H0", "L23H2", "L24H4", "L29H0")}
assert max(writes[head] for head in ("L23H3", "L23H0", "L23H2")) < -0.5
assert min(writes["L24H4"], writes["L29H0"]) > 0.5
assert kept.ci_low > 0.5 and max(by_chance) < 0.2 and mh.HeadId(23, 0) not in circuit
assert set(changed.index[:2]) == {"L24H4", "L23H1"}
chance = changed.filter(like="random").loc["L23H1"].dropna()
assert growth["L23H1"]["ci_high"] < 0 and growth["L23H1"]["score"] < chance.min() - 0.1
assert intact["L24H4"]["score"] > 0.3 and growth["L24H4"]["ci_high"] < 0
assert intact["L23H1"]["score"] > 0 > intact["L23H1"]["score"] + growth["L23H1"]["score"]
first, second, together, movers_alone, chain_together = groups.table["score"]
assert together > 0.9 * (first + second) and chain_together < 0.85 * (first + movers_alone)

# %%
only_looks = "L18H6"

# %%
carries = "q"

# %%
my_circuit = effect.heads(1)
