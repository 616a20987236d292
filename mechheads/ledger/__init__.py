"""The ledger: results in a file, so that a killed run resumes where it stopped."""
