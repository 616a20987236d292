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
assert len(circuit.heads) < 28 and abs(1 - on_fresh.score) < 0.4
assert weak and not in_circuit["in the circuit"].all()
assert complete.worst["incompleteness"] > 1
loss = {head: repair[head].set_index("effect")["score"] for head in movers}
assert all(loss[head]["direct"] < loss[head]["total"] - 0.2 < 0 for head in ("L23H0", "L23H2"))
assert abs(loss["L20H0"]["direct"]) < 0.5 and loss["L20H0"]["total"] < -2
assert standing_in.heads(1) == (mh.HeadId(23, 1),) and standing_in.top(4)["p_family"].min() > 0.05
assert standing_in["L23H1"]["ci_low"] < 0
first, second, together, movers_alone, chain_together = groups.table["score"]
assert together > 0.9 * (first + second) and chain_together < 0.85 * (first + movers_alone)

# %%
only_looks = "L18H6"

# %%
carries = "q"

# %%
my_circuit = effect.heads(1)
