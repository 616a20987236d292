"""Checks of what the text says about the results, and a wrong answer to each exercise."""

# %%
assert "previous-token" in profile.names("L16H0") and "sink" in profile.names("L23H4")
shares = {head: measured(head) for head in HEADS}
assert shares["L16H0"]["score"]["previous"] > 0.6 and shares["L16H0"]["null"]["previous"] < 0.1
assert shares["L18H6"]["score"]["first"] > 0.6 and shares["L18H6"]["score"].drop("first").idxmax() == "induction"
assert shares["L18H6"]["score"]["induction"] > 5 * shares["L18H6"]["null"]["induction"]
assert shares["L23H4"]["score"]["first"] > 0.6
assert (shares["L23H4"]["score"] - shares["L23H4"]["null"]).drop("first").max() < 0.1
for head in ("L18H6", "L23H4"):
    moved = shares[head]["moved"] - shares[head]["score"]
    assert moved["first"] < -0.1 and (moved.drop("first") > 0).all()
assert len([head for head in profile.named("sink") if head.layer >= 15]) > 30
assert len(profile.named("previous-token")) < 12 and len(profile.named("induction")) < 12
assert (of_heads.loc["L16H0"]["query"] - of_heads.loc["L16H0"]["key"] == 1).mean() > 0.9
spread = activity.max() / activity.min()
assert spread["L16H0"] < 1.5 < 1.8 < spread[["L18H6", "L23H4"]].min()
assert on_random.select(behaviour="previous")["L16H0"]["score"] > shares["L16H0"]["score"]["previous"] + 0.05
assert induction["L18H6"]["score"] > shares["L18H6"]["score"]["induction"] + 0.3
assert max(on_random.select(behaviour=name)["L23H4"]["score"] for name in ("previous", "induction")) < 0.15
assert 0.1 < induction.compare(profile.select(behaviour="induction")).overlap < 0.9
assert min(copying[head]["copying_low"] for head in ("L18H6", "L23H4")) > 0.53 > copying["L16H0"]["copying"] + 0.05
said = [{model.tokenizer.decode(token) for token in tokens} for tokens in most]
assert sum(f" {country}" in words for country, words in zip(countries, said, strict=True)) >= 6
assert sum(f" {capital[country]}" in words for country, words in zip(countries, said, strict=True)) >= 4
part = {name: {head: found[head] for head in HEADS} for name, found in parts.items()}
assert part["capitals"]["L23H4"]["ci_low"] > 1.5
assert max(abs(part[name]["L23H4"]["score"]) for name in ("copies", "everyday")) < 0.3
assert max(abs(found["L16H0"]["score"]) for found in part.values()) < 0.5
assert part["copies"]["L18H6"]["score"] < 0.2
of_france = by_token["L23H4"].set_index("source")["score"]
late = by_token.select(source="4 is").scores.values[29]
assert late.max() > 1 and late.min() < -1
assert of_france["3 France"] > 2 and of_france.drop("3 France").abs().max() < 0.1
loss = {name: {head: found[head] for head in HEADS} for name, found in lost.items()}
assert loss["copies"]["L16H0"]["score"] < loss["copies"]["L18H6"]["score"] - 1
assert max(loss["copies"][head]["ci_high"] for head in ("L16H0", "L18H6")) < -0.4
assert loss["capitals"]["L23H4"]["ci_high"] < -0.1
assert max(abs(loss["capitals"][head]["score"]) for head in ("L16H0", "L18H6")) < 0.2
assert all(found["ci_low"] < 0.01 and found["ci_high"] > -0.01 for found in loss["everyday"].values())
assert largest[0][0] == largest[1][0] == "L16H0" and largest[0][1] == "L17H8"
assert why.key["L16H0"]["score"] > 3 * why.key["L17H8"]["score"] > 3 and without["L16H0"]["ci_high"] < -0.5
assert abs(without["L17H8"]["score"]) < 0.1
for head in largest[1][1:]:
    assert without[head]["ci_high"] > 0 and abs(why.key[head]["score"]) < 1 and mh.HeadId.parse(head).layer < 5
assert 0.4 < first_try.table["fit"][0] < 0.5 and "Timetable" in first_try.windows.nsmallest(1, "fit")["window"].iloc[0]
for where in ("seen", "unseen"):
    better, before = mended.loc["after_a_word", where], mended.loc["after_a_copy", where]
    assert better["fit"] > before["fit"] + 0.15 and better["fit"] > 0.6 and abs(better["excess"]) < 0.06
assert {str(head) for head in profile.named("sink") if measured(str(head)).loc["first", "moved"] < 0.3} & {
    "L23H0",
    "L23H3",
    "L24H4",
}
assert readers["L18H6"] == "L16H0" and sum(first == "L16H0" for first in readers.values()) > 2
names_none = examples.of("L23H4").query("part == 'highest'")["shown"].iloc[0]
assert not any(country in names_none for country in capital)

# %%
takes_elsewhere = "L16H0"

# %%
reads_too = "L16H0"

# %%
my_text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
