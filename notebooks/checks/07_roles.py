"""Checks of what the text says about the results, and a wrong answer to each exercise."""

# %%
assert abs(intact.detach().numpy() - log_p[:6]).max() < 1e-3
begins = losses.query("fit == 'none' and update == 1")["loss"]
assert begins.min() > ends.loc["none"].max() + 2 and ends.loc[["keep", "drop"]].max().max() < ends.loc["none"].max()
assert circuits[["G+", "G-"]].max().max() < log_p[:6].mean() - 0.5
assert (circuits[["G+", "G-"]].mean() < -0.6 - ends.loc[["keep", "drop"]].mean(axis=1).to_numpy()).all()
assert circuits.loc["in any seed", "alone"] > log_p[:6].mean() - 1 > circuits.loc["in every seed", "alone"]
assert 1.1 * by_chance < always.sum() < 0.8 * n_open.min()
assert max(abs(roles[role].values.transpose("prompt", ...).values - by_hand[role]).max() for role in by_hand) < 1e-6
assert (shares["any"] > 1.5 * shares["always"]).all()
assert listed.iloc[0].min() > 0.5
assert roles["facilitation"]["L23H4"]["score"] < 0.5 < roles["irrelevance"]["L23H4"]["score"] + 0.1
random = change.filter(like="random")
assert change.loc[15, "facilitation"] < random.loc[15].mean()  # how far below differs from processor to processor
assert change.loc[30, "facilitation"] < random.loc[30].min() - 1
assert change["irrelevance"].abs().max() < 1
assert abs(compared.spearman) < 0.4

# %%
change_of_L29H1 = 5.0

# %%
in_one_seed = tuple(np.argwhere(always)[0].tolist())

# %%
table = pd.DataFrame({"aba_abb": [0.0, 1.0, 0.0], "capitals": 0.0}, index=["none", "facilitation", "irrelevance"])
