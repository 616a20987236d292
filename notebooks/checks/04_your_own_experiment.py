"""Checks of what the text says about the results, and a wrong answer to each exercise."""

# %%
assert "padding" in of_padding and "prompt 0" in of_the_batch and "model" in cannot_be_stored
assert "cannot be used in text" in report.found[2]
assert directions.heads(1) == (mh.HeadId(23, 4),)
assert directions["L23H4"]["score"] > 0.8 * patched["L23H4"]["score"] > 0.4
assert (table["lead"] > 0.5).all() and 0 < (table["lead, L23H4 zeroed"] < 0).sum() < 4
assert (table["logit_diff, L23H4 zeroed"] > 0.5).all()
assert to_last_layer.loc["where its heads look"].abs().max() < 1
assert to_last_layer.loc["its MLP", "logit_diff"] < -0.5 < 0.3 < to_last_layer.loc["its MLP", "lead"]
assert 0 < interrupted_at == sum(written) < 90 and len(partial.missing) == 90 - interrupted_at
assert Ledger.list(store)[0]["units"] == 90 and Ledger.list(store)[1]["units"] == 1
assert np.array_equal(resumed.values, undisturbed.values, equal_nan=True)


# %%
@dataclass(frozen=True)
class OtherLength:
    needs: ClassVar[tuple[str, ...]] = ("z",)

    def __call__(self, z, context):
        return context.source.z[context.head]


# %%
rank = mh.log_prob

# %%
storable = shrink
