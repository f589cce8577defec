"""Reading and changing training programs: what every codemod of this room shares.

`tree` parses and edits text without touching the rest of it, `flow` follows names through
straight-line code, `ops` brings the many spellings of one tensor operation to a single form.
"""
