"""The field's tasks for circuits, one a file."""
