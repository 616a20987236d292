"""Reading and writing files: text, tables, tensors, checksums. A file is written completely or not at all."""
