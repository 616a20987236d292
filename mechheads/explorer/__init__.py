"""One front end to what is known of a model's heads: a page, a notebook widget, and a server for own texts."""
