"""The ledger: a file of finished units, so that a killed run resumes where it stopped."""
