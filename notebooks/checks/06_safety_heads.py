"""Checks of what the text says about the results, and a wrong answer to each exercise."""

# %%
assert taught == [str(head) for head in HEADS]
assert Counter(map(verdict, to_harmful))["refused"] > 5
assert Counter(map(verdict, to_harmless))["complied"] > 8
assert set(map(verdict, of_untaught)) == {"complied"}
assert abs(ships["scaling"].values.sel(layer=16, head=3)[0] - by_hand) < 1e-3
assert found_by["found"].max() == found_by.loc["Refusal Contribution", "found"]
assert found_by["found"].drop("Refusal Contribution").max() < 6
assert found_by.loc["Refusal Contribution", "found"] == 6
assert "L1H5" in [str(head) for head in ships["scaling"].heads(6)]
assert "L1H5" not in [str(head) for head in contribution.heads(6)]
assert test.table.set_index("condition").loc["ablated", "attack_success"] > 0.5
assert nothing.reasons == ("the intact model refuses less than 10% of the harmful requests",)
change = curve.table.set_index(["which", "k"])["score"]
assert change["heads", 0] == 0 and change["heads"][1:].max() > 0.5 and change["random 1"][:3].max() < 0.5

# %%
ships_of_L1H5 = by_hand

# %%
not_taught = taught[0]

# %%
undifferentiated = test
