"""Reading and writing files: text and tables. A file is written completely or not at all."""
