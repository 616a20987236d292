"""Reading and writing files: text, tables, checksums. A file is written completely or not at all."""
