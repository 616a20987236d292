"""The ledger: a file of finished results, so that a killed run resumes where it stopped."""
